"""`make bench-spark ARGS=--kafka`: servers of its own, a topic of records, and the ways to read it (`pipeline`)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.bench.spark import envelopes
from tests.bench.spark.asked import asked
from tests.bench.spark.jars import AVRO_SERIES, avro_jar, kafka_jars
from tests.bench.spark.wanted import said
from tests.spark.events import register_schema
from tests.spark.topics import TopicsWriter
from tests.support.spark_versions import python_with_spark
from tests.support.topics import create_topic

PARTITIONS = 4
RECORDS_OF_A_COMMIT = 100_000
WANTED = 2.0
"""How many times the rate of Spark's own source."""
LARGE_JVM = ("-Xmx1g", "-Xshare:auto")


@contextmanager
def pipeline_rounds(rows: int) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Yield what measures a round: for each way its name, its seconds, and its CPU seconds by process."""
    cache = Cache()
    with (
        TemporaryDirectory() as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache, jvm_flags=LARGE_JVM) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
    ):
        topics = TopicsWriter(kafka.bootstrap, registry.url, "shop")
        topic = filled(topics, rows)
        given = {
            "brokers": kafka.bootstrap,
            "registry": registry.url,
            "prefix": topics.prefix,
            "topic": topic,
            "broker": kafka.pid,
            "jars": [str(jar) for jar in (avro_jar(), *kafka_jars())],
            "schema": envelopes.schema(),
            "pruned": envelopes.pruned_schema(envelopes.all_columns()),
        }
        topics.close()
        command = [str(python_with_spark(AVRO_SERIES)), "-m", "tests.bench.spark.pipeline", json.dumps(given)]
        with asked(command) as measured_round:
            yield measured_round


def by_pipelines(rows: int, rounds: int) -> None:
    """Print the rows per second and the CPU of each way."""
    with pipeline_rounds(rows) as measured_round:
        lines = [line for _ in range(rounds) for line in measured_round()]
    results: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        results.setdefault(line["way"], []).append(line)
    print(f"{rows} records from Kafka to 13 columns, local[2], {rounds} rounds; CPU seconds a million rows")
    print(f"{'way':18} {'rows/s':>12} {'JVM':>7} {'workers':>8} {'both':>7} {'broker':>7}")
    medians = {name: median_of(lines) for name, lines in results.items()}
    for name, one in medians.items():
        million = rows / 1e6
        spark_s = one["jvm_s"] + one["python_s"]
        print(
            f"{name:18} {rows / one['s']:12,.0f} {one['jvm_s'] / million:7.2f} {one['python_s'] / million:8.2f} "
            f"{spark_s / million:7.2f} {one['broker_s'] / million:7.2f}",
            flush=True,
        )
    mine, others = medians["cdcd, a table"], medians["kafka + from_avro"]
    rate = others["s"] / mine["s"]
    cpu = (others["jvm_s"] + others["python_s"]) / (mine["jvm_s"] + mine["python_s"])
    print(f"the table's rate is {rate:.2f} times that of kafka + from_avro, {said(rate, WANTED)}")
    print(f"its rows for a second of Spark's CPU are {cpu:.2f} times as many, {said(cpu, WANTED)}")


def median_of(lines: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    figures = ("s", "jvm_s", "python_s", "broker_s")
    return {name: statistics.median(line[name] for line in lines) for name in figures}


def filled(topics: TopicsWriter, rows: int) -> str:
    """Write so many records, in commits of a Kafka transaction each; return the topic."""
    topic = f"{topics.prefix}.public.orders"
    create_topic(topics.bootstrap, topic, PARTITIONS)
    schema_id = register_schema(topics.registry_url, f"{topic}-value", envelopes.schema())
    values = envelopes.records(rows, schema_id=schema_id)
    for number, first in enumerate(range(0, rows, RECORDS_OF_A_COMMIT), start=1):
        part = values.slice(first, min(RECORDS_OF_A_COMMIT, rows - first)).to_pylist()
        topics.commit(
            number * 10, [(topic, at % PARTITIONS, b"%d" % at, value) for at, value in enumerate(part)]
        )
    return topic
