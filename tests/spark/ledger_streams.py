"""Streams of the tables between which money moves, with a ledger that judges each batch.

In: the daemon's configuration, limits of a batch.  Out: the ledger; the rows of each batch.
Invariant: a batch is added to the ledger once, also one that Spark repeats. `read` continues where the last one
ended, with other limits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdcd.spark.data_source import CdcdDataSource, register
from cdcd.spark.session import run_to_end
from cdcd.spark.source.cuts import Offsets
from tests.faults.transfers import TABLES, TOTAL
from tests.spark.ledger import COLUMNS, Change, Ledger

TRIGGER_S = 0.2
STARTS = 60
"""How often a query is started until the machine starts its worker within Spark's 10 seconds."""


class LedgerStream(Protocol):
    """A stream whose batches are judged."""

    ledger: Ledger
    batches: list[list[Change]]

    def read(
        self, limits: Mapping[str, str], stopping: threading.Event | None = None, count: int = 0
    ) -> None:
        """Read `count` batches, or until `stopping` is set; without both, up to the newest commit."""


class SparkStream:
    """A stream of Spark, with a checkpoint. Raises Spark's errors."""

    def __init__(self, spark: SparkSession, config: Path, checkpoint: Path) -> None:
        register(spark)
        self._spark, self._options, self._checkpoint = spark, _options(config), checkpoint
        self._lock = threading.Lock()
        self._last_batch, self._enough = -1, 0
        self._stopping: threading.Event | None = None
        self.ledger = Ledger(TOTAL)
        self.batches: list[list[Change]] = []

    def read(
        self, limits: Mapping[str, str], stopping: threading.Event | None = None, count: int = 0
    ) -> None:
        """See `LedgerStream`."""
        self._stopping, self._enough = stopping, self.ledger.batches + count

        def start() -> StreamingQuery:
            frame = self._spark.readStream.format("cdcd").options(**self._options, **limits).load()
            writing = frame.select(*COLUMNS).writeStream.foreachBatch(self._judge)
            writing = writing.option("checkpointLocation", str(self._checkpoint))
            often = {"processingTime": f"{TRIGGER_S} seconds"}
            trigger: dict[str, Any] = {"availableNow": True} if stopping is None else often
            return writing.trigger(**trigger).start()

        if failure := run_to_end(start, stopping, starts=STARTS):
            raise failure

    def _judge(self, frame: DataFrame, number: int) -> None:
        """Add a batch, once: Spark repeats one whose end it has not stored when it was stopped."""
        with self._lock:
            rows = [Change(*row) for row in frame.collect()]
            if number > self._last_batch:
                self.ledger.add(rows)
                self.batches.append(rows)
                self._last_batch = number
            if self._stopping is not None and self.ledger.batches >= self._enough:
                self._stopping.set()


class DirectStream:
    """The same source, called in the order in which Spark calls it, in this process: it needs no second to start."""

    def __init__(self, config: Path) -> None:
        self._options = _options(config)
        self._reached: Offsets | None = None
        self.ledger = Ledger(TOTAL)
        self.batches: list[list[Change]] = []

    def read(
        self, limits: Mapping[str, str], stopping: threading.Event | None = None, count: int = 0
    ) -> None:
        """See `LedgerStream`."""
        enough = self.ledger.batches + count
        source = CdcdDataSource({**self._options, **limits})
        reader = source.streamReader(source.schema())
        try:
            reached: Offsets = reader.initialOffset() if self._reached is None else self._reached
            while stopping is None or not stopping.is_set():
                end = _stored(reader.latestOffset(reached, reader.getDefaultReadLimit()))
                if end != reached:
                    batches = [one for part in reader.partitions(reached, end) for one in reader.read(part)]
                    self._judge([row for one in batches for row in one.to_pylist()])
                    self._reached = reached = end
                    if stopping is not None and self.ledger.batches >= enough:
                        return
                elif stopping is None:
                    return
                else:
                    stopping.wait(TRIGGER_S)
        finally:
            reader.stop()

    def _judge(self, rows: list[dict[str, Any]]) -> None:
        changes = [Change(*(_field(row, name) for name in COLUMNS)) for row in rows]
        self.ledger.add(changes)
        self.batches.append(changes)


def _options(config: Path) -> dict[str, str]:
    return {"config": str(config), "table": ",".join(f"public.{table}" for table in TABLES)}


def _stored(offsets: Offsets) -> Offsets:
    """Return offsets as Spark's checkpoint returns them."""
    found: Offsets = json.loads(json.dumps(offsets))
    return found


def _field(row: Any, name: str) -> Any:
    for part in name.split("."):
        row = None if row is None else row[part]
    return row
