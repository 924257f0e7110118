"""`make bench-spark ARGS="--mirror --rows 2000000"`: what a batch of the mirror costs, and how late its rows are.

In: the rows of the larger of two mirrors; the other one has a hundredth.
Out: for each the rows per second of the first load, the seconds and the CPU of a batch of 10,000 updated rows, the
bytes that it writes, and the time from the commit in Kafka to the version for commits of 10 rows.
"""

from __future__ import annotations

import os
import resource
import statistics
import threading
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.batches import BatchReport
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.session import run_to_end, session
from tests.bench.spark.backlog import PREFIX, Writer
from tests.support.waiting import eventually

UPDATES = 10_000
BATCHES = 5
SMALL_ROWS = 10
COMMITS = 100
SHARE = 100


def by_mirrors(rows: int) -> None:
    """Print the table."""
    print(
        f"{'rows':>10} {'load rows/s':>12} {'batch s':>8} {'CPU s':>7} {'MB':>7} {'p50 ms':>7} {'p99 ms':>7}"
    )
    spark = session("cdcd bench", "2")
    for count in (rows // SHARE, rows):
        _measured(spark, count)
    spark.stop()


def _measured(spark: SparkSession, rows: int) -> None:
    cache = Cache()
    with (
        TemporaryDirectory() as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
    ):
        writer = Writer(kafka.bootstrap, registry.url)
        writer.write(rows)
        connection = Connection(kafka.bootstrap, PREFIX, registry=RegistryAccess(registry.url))
        target = str(Path(folder, "mirror"))
        started_s = time.monotonic()
        _run(spark, connection, target)
        load_s = time.monotonic() - started_s
        batches, cpu, written = [], [], []
        step = rows // UPDATES
        for _ in range(BATCHES):
            writer.update(UPDATES, step)
            before, cpu_s = _files(target), _cpu_s()
            reports = _run(spark, connection, target)
            batches.append(sum(one.seconds for one in reports))
            cpu.append(_cpu_s() - cpu_s)
            written.append(sum(size for path, size in _files(target).items() if path not in before))
        late = sorted(_latencies(spark, connection, target, writer))
        figures = statistics.median(batches), statistics.median(cpu), statistics.median(written) / 1e6
        print(
            f"{rows:10,} {rows / load_s:12,.0f} {figures[0]:8.2f} {figures[1]:7.2f} {figures[2]:7.1f} "
            f"{late[len(late) // 2] * 1000:7.0f} {late[int(len(late) * 0.99)] * 1000:7.0f}",
            flush=True,
        )


def _run(spark: SparkSession, connection: Connection, target: str) -> list[BatchReport]:
    reports: list[BatchReport] = []
    failure = run_to_end(lambda: mirror(spark, connection, target, on_batch=reports.append))
    assert failure is None, failure
    return reports


def _latencies(spark: SparkSession, connection: Connection, target: str, writer: Writer) -> list[float]:
    """Return the seconds from the end of a commit to the version that has it."""
    reached: list[tuple[int, float]] = []
    seen = threading.Event()

    def note(report: BatchReport) -> None:
        reached.append((report.commit_lsn, time.monotonic()))
        seen.set()

    query = mirror(spark, connection, target, trigger="0 seconds", on_batch=note)
    found = []
    try:
        for _ in range(COMMITS):
            seen.clear()
            commit_lsn = writer.update(SMALL_ROWS, 1)
            committed_s = time.monotonic()
            eventually(partial(_has, reached, commit_lsn), "the commit is visible", 60)
            found.append(reached[-1][1] - committed_s)
    finally:
        query.stop()
    return found


def _has(reached: list[tuple[int, float]], commit_lsn: int) -> bool:
    return bool(reached) and reached[-1][0] >= commit_lsn


def _files(target: str) -> dict[str, int]:
    return {
        os.path.join(folder, name): os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(target)
        for name in names
    }


def _cpu_s() -> float:
    """Return the CPU of this process, which has the driver's Python; Spark's JVM is no part of it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
