"""Rows as large as the brokers allow: from a real daemon through typed columns, and beyond the client's own limit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import SMALL_JVM, KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.data_source import register
from cdcd.spark.source.ranges import read_ranges
from tests.integration.conftest import NewDaemon, new_daemon
from tests.spark.ranges import Topic
from tests.support.daemon import await_confirmed

__all__ = ["new_daemon"]
ROW_BYTES = 50_000_000
VALUE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1562500) i)"
LIMIT_BYTES = "60000000"
BEYOND_BYTES = 120_000_000
"""librdkafka's own limit of an answer is 100 MB."""


@pytest.fixture(scope="module")
def roomy_broker(artefacts: Cache, stack_folder: Path) -> Iterator[KafkaBroker]:
    """A broker that accepts such records."""
    heap, settings = ("-Xmx1200m", *SMALL_JVM[1:]), {"socket.request.max.bytes": "300000000"}
    folder = stack_folder / "roomy-kafka-of-spark"
    with KafkaBroker(folder, cache=artefacts, jvm_flags=heap, settings=settings) as broker:
        yield broker


@pytest.mark.nightly
def test_a_row_of_fifty_megabytes_passes_through_typed_columns(
    spark: SparkSession,
    roomy_broker: KafkaBroker,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", dbname=database)
    sink = {
        "bootstrap_servers": roomy_broker.bootstrap,
        "topics": {"properties": {"max.message.bytes": LIMIT_BYTES}},
        "properties": {"message.max.bytes": LIMIT_BYTES},
    }
    with new_daemon(postgres, database, sink=sink) as daemon:
        daemon.start().wait_state("streaming")
        postgres.execute(f"INSERT INTO t VALUES (1, 'before'), (2, {VALUE}), (3, 'after')", dbname=database)
        await_confirmed(postgres, daemon)
        register(spark)
        typed = (
            spark.read.format("cdcd").option("config", str(daemon.config_path)).option("table", "public.t")
        )
        columns = ("after.id", F.length("after.v"), F.sha2("after.v", 256))
        found = sorted(map(tuple, typed.load().select(*columns).collect()))
    expected = postgres.execute(
        "SELECT id, length(v), encode(sha256(v::bytea), 'hex') FROM t ORDER BY id", dbname=database
    )
    assert found == [tuple(row) for row in expected]
    assert found[1][1] == ROW_BYTES


@pytest.mark.nightly
def test_a_record_beyond_the_default_limit_of_an_answer(
    implementation: str, roomy_broker: KafkaBroker
) -> None:
    limit = str(BEYOND_BYTES + 1_000_000)
    topic = Topic(roomy_broker.bootstrap, partitions=1, config={"max.message.bytes": limit})
    values = (b"before", os.urandom(BEYOND_BYTES), b"after")
    producer = Producer({"bootstrap.servers": roomy_broker.bootstrap, "message.max.bytes": int(limit)})
    for value in values:
        producer.produce(topic.name, value, partition=0)
        assert producer.flush(120) == 0
    batches = read_ranges(roomy_broker.bootstrap, {}, topic.ranges())
    found = [hashlib.sha256(one.as_py()).digest() for batch in batches for one in batch["value"]]
    assert found == [hashlib.sha256(value).digest() for value in values]
