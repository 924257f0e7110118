"""`make bench-spark ARGS="--tables 1,100,1000"`: what a batch of the mirror costs, by the number of its tables.

In: numbers of tables.  Out: for each number and format the seconds of the first load of 10 rows a table, and the
medians of two kinds of batches: one row of each table is updated, and one row of one table.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.mirroring.batches import BatchReport
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.session import run_to_end, session
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter

ROWS = 10
BATCHES = 5
ITEMS = [column("id", "int", required=True), column("body", "string"), column("n", "long")]


def by_tables(counts: Sequence[int]) -> None:
    """Print the table."""
    cache = Cache()
    with (
        TemporaryDirectory() as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
    ):
        spark = session("cdcd bench", "2")
        print(
            f"{'tables':>6} {'format':8} {'load s':>7} {'each, s':>8} {'one, s':>7}",
            flush=True,
        )
        for count in counts:
            topics = TopicsWriter(kafka.bootstrap, registry.url, f"t{uuid.uuid4().hex[:8]}")
            source = _Source(topics, count)
            ways = [_Way(spark, topics, str(Path(folder, f"{count}-{one}")), one) for one in TABLE_FORMATS]
            for way in ways:
                way.load()
            for _ in range(BATCHES):
                for changed in ("each", "one"):
                    source.update(count if changed == "each" else 1)
                    for way in ways:
                        way.apply(changed)
            for way in ways:
                way.show(count)
            topics.close()
        spark.stop()


class _Source:
    """The tables, each with its rows."""

    def __init__(self, topics: TopicsWriter, count: int) -> None:
        self._topics, self._commits = topics, 1
        self._tables = [topics.table(f"items_{number}", ITEMS) for number in range(count)]
        self._commit([self._sent(one, "r", row) for one in self._tables for row in range(ROWS)])

    def update(self, count: int) -> None:
        """Change a row of so many tables, in one commit."""
        self._commits += 1
        self._commit([self._sent(one, "u", self._commits % ROWS) for one in self._tables[:count]])

    def _sent(self, table: Table, op: str, row: int) -> list[Any]:
        after = {"id": row, "body": f"text {self._commits}", "n": self._commits}
        return self._topics.change(table, op, self._commits * 10, row + 1, after=after)

    def _commit(self, sent: list[list[Any]]) -> None:
        self._topics.commit(self._commits * 10, [one for some in sent for one in some])
        self._topics.wait_until_visible()


class _Way:
    """A mirror in one format."""

    def __init__(
        self, spark: SparkSession, topics: TopicsWriter, target: str, table_format: TableFormat
    ) -> None:
        self._run = partial(mirror, spark, topics.connection, target, format=table_format, on_error="fail")
        self._target, self._format = target, table_format
        self._load_s = 0.0
        self._batches: dict[str, list[float]] = {}

    def load(self) -> None:
        """Run the first load."""
        begun_s = time.monotonic()
        self._applied()
        self._load_s = time.monotonic() - begun_s

    def apply(self, changed: str) -> None:
        """Run a batch."""
        self._batches.setdefault(changed, []).append(sum(one.seconds for one in self._applied()))

    def _applied(self) -> list[BatchReport]:
        reports: list[BatchReport] = []
        failure = run_to_end(lambda: self._run(on_batch=reports.append))
        assert failure is None, failure
        return reports

    def show(self, count: int) -> None:
        """Print a line. The mirror has to have all rows."""
        opened = read_mirror(self._target)
        assert [opened.rows(topic) for topic in opened.topics] == [ROWS] * count
        each_s, one_s = (statistics.median(self._batches[changed]) for changed in ("each", "one"))
        print(f"{count:6} {self._format:8} {self._load_s:7.1f} {each_s:8.2f} {one_s:7.2f}", flush=True)
