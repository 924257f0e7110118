"""`make bench-spark ARGS="--merge --rows 2000000"`: a mirror beside a hand-written pipeline with MERGE (`merge`).

In: the rows of the tables, the number of rounds.
Out: for each way the rows per second and the CPU of the first load, and the seconds and the CPU of a batch of 10,000
updated rows: the median of the rounds, which alternate between the ways; and the peaks of the driver's memory, its
Python and its JVM. All ways read the same topics with the same
Spark, and have the same number of rows at the end.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.bench.spark import envelopes
from tests.bench.spark.backlog import PREFIX, TABLES, Writer
from tests.bench.spark.jars import AVRO_SERIES, avro_jar, delta_jars, kafka_jars
from tests.bench.spark.wanted import said
from tests.support.spark_versions import python_with_spark

WAYS = {"parquet": "mirror, parquet", "delta": "mirror, delta", "merge": "from_avro + MERGE"}
UPDATES = 10_000
MAX_ROWS = 500_000
WANTED = 3.0
"""How many times the rate of the peer, and how many times its CPU for a row."""


@dataclass
class Way:
    """A running program, and what its steps have cost."""

    process: subprocess.Popen[str]
    loads: list[dict[str, float]] = field(default_factory=list)
    batches: list[dict[str, float]] = field(default_factory=list)
    end: dict[str, float] = field(default_factory=dict)

    def asked(self, line: str) -> dict[str, float]:
        """Return the answer to a line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer


def by_merges(rows: int, rounds: int) -> None:
    """Print the table."""
    cache = Cache()
    with (
        TemporaryDirectory() as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
        ExitStack() as stack,
    ):
        writer = Writer(kafka.bootstrap, registry.url)
        writer.write(rows)
        given = {
            "brokers": kafka.bootstrap,
            "registry": registry.url,
            "prefix": PREFIX,
            "topics": [f"{PREFIX}.{table}" for table in TABLES],
            "max_rows": MAX_ROWS,
            "jars": [str(jar) for jar in (avro_jar(), *kafka_jars(), *delta_jars())],
            "schema": envelopes.schema(),
            "pruned": envelopes.pruned_schema(envelopes.all_columns()),
        }
        ways = {name: stack.enter_context(_running({**given, "way": name}, folder)) for name in WAYS}
        for step in ("warm", "load"):  # the JVM compiles the code of both ways in the first load
            for way in ways.values():
                way.loads.append(way.asked(step))
        for _ in range(rounds + 1):  # the first one warms up
            writer.update(UPDATES, rows // UPDATES)
            for way in ways.values():
                way.batches.append(way.asked("batch"))
        for way in ways.values():
            way.end = way.asked("rows")
        assert {way.end["rows"] for way in ways.values()} == {rows}, ways
        _show(rows, ways)


@contextmanager
def _running(given: dict[str, Any], folder: str) -> Iterator[Way]:
    own = {**given, "folder": str(Path(folder, given["way"]))}
    command = [str(python_with_spark(AVRO_SERIES)), "-m", "tests.bench.spark.merge", json.dumps(own)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the program with Spark has ended")
        yield Way(process)
        process.stdin.close()


def _show(rows: int, ways: dict[str, Way]) -> None:
    print(
        f"{'way':18} {'load rows/s':>12} {'CPU s/M rows':>13} {'batch s':>8} {'CPU s':>7}"
        f" {'Python MB':>10} {'JVM MB':>7}"
    )
    costs = {}
    for name, way in ways.items():
        load, batches = way.loads[-1], way.batches[1:]
        batch_s, cpu_s = (statistics.median(one[what] for one in batches) for what in ("s", "cpu_s"))
        costs[name] = rows / load["s"], rows / load["cpu_s"], 1 / batch_s, 1 / cpu_s
        million = load["cpu_s"] / rows * 1e6
        print(
            f"{WAYS[name]:18} {costs[name][0]:12,.0f} {million:13.1f} {batch_s:8.2f} {cpu_s:7.2f}"
            f" {way.end['python_mb']:10.0f} {way.end['jvm_mb']:7.0f}",
            flush=True,
        )
    for name in ("parquet", "delta"):
        ratios = [mine / others for mine, others in zip(costs[name], costs["merge"], strict=True)]
        for what, ratio in zip(
            ("load", "load, a CPU second", "batch", "batch, a CPU second"), ratios, strict=True
        ):
            print(f"{WAYS[name]}: {ratio:.2f} times the rate of the peer ({what}), {said(ratio, WANTED)}")
