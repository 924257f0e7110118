"""The batches of a mirror: from one PostgreSQL commit to a later one.

In: a connection, the version to continue from, the options of `format("cdcd")`.
Out: the end of each batch, and its records.
Invariant: the ends are those that `format("cdcd")` plans for a stream, with the loading tables and the ids of the
topics; the first batch begins at the version's offsets. A table that is read from an earlier commit than the others
is loading, too (`late_tables`).
Must not: store a position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from cdcd.errors import ConfigError, MirrorInconsistent
from cdcd.spark.clients.connection import Connection
from cdcd.spark.data_source import CdcdStreamReader
from cdcd.spark.mirroring.batches import is_table
from cdcd.spark.mirroring.late_tables import LateTables
from cdcd.spark.mirroring.records import Records, read_in_spark, read_on_driver
from cdcd.spark.session import parallelism
from cdcd.spark.source.backlog import Backlog
from cdcd.spark.source.cuts import Offsets, distance, of_topics, with_loading, without_start
from cdcd.spark.source.pieces import pieces
from cdcd.spark.source.read_limits import ReadMaxRows
from cdcd.spark.source.record_sizes import UNKNOWN_BYTES, RecordSizes
from cdcd.spark.source.source_options import parse_options
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.target.versions import TargetVersion

FEW_TASKS = 4
"""With so many tasks at a time or fewer, the driver folds a load: Spark's tasks take more than twice the CPU for the
same records, which go through the JVM, its cache and its shuffle; and the driver folds several buckets at a time."""
FILLED = 0.9
"""The part of the bytes that the driver folds that a batch should have: it does not know the next records' sizes."""
LEAST_ROWS = 10_000
"""A batch is not limited to fewer rows: with larger ones, or little memory of the driver, Spark's tasks fold it."""
_INTERVAL = re.compile(
    r"(\d+(?:\.\d+)?)\s*(millisecond|ms|second|s|minute|min|hour|h|day|d)s?", re.IGNORECASE
)
_SECONDS = {
    "millisecond": 0.001,
    "ms": 0.001,
    "second": 1,
    "s": 1,
    "minute": 60,
    "min": 60,
    "hour": 3600,
    "h": 3600,
    "day": 86_400,
    "d": 86_400,
}


class MirrorSource:
    """The batches of one mirror. `end`: of the current batch. `driver_bytes`: the most that the driver folds."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        start: TargetVersion,
        options: Mapping[str, str],
        driver_bytes: int,
    ) -> None:
        self._spark, self._connection, self._driver_bytes = spark, connection, driver_bytes
        offsets = with_loading(start.offsets, frozenset(start.loading))
        own = {"startingOffsets": json.dumps(offsets), "loading": "true", "ids": "true"}
        asked = parse_options(connection.options() | dict(options) | own)
        self._reader = CdcdStreamReader(replace(asked, begins_at_0=True))
        self._sizes = RecordSizes(connection)
        self._start: Offsets = {}
        self._reached: Offsets = {}
        """The end of the current batch as the reader has it, without the late tables."""
        self._late = LateTables(start, asked.topics)
        self._offset_bytes = 0.0
        """The bytes of an offset in the last batch that the driver has read, or tried to read."""
        self.end: Offsets = {}
        self.position = SourcePosition()
        """The position of `end` in the source; unknown while a table is late: the others are ahead of it."""

    def begin(self, *, ends_now: bool) -> None:
        """Begin at the start offsets. `ends_now`: the commit that is the newest now is the last one."""
        self.end = self._reached = self._reader.initialOffset()
        if ends_now:
            self._reader.prepareForTriggerAvailableNow()

    def advance(self) -> bool:
        """Set the end of the next batch; return whether there is one. Raises the errors of the source."""
        before = self.end
        while True:
            self._advance()
            # The end of a copy is no batch of its own while the table is late.
            if self.end != before or self._reached == self._start:
                return self.end != before

    def _advance(self) -> None:
        self._start = self._reached
        self._reached = without_start(self._next_end())
        self._late.note(self._reader, self._start, self._reached)
        self.end = with_loading(self._reached, self._late.tables)
        self.position = SourcePosition() if self._late.topics else self._reader.position(self._reached)

    def _next_end(self) -> Offsets:
        """Return the end of the next batch: where Spark runs few tasks, it is as large as the driver can fold."""
        end = self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit())
        fitting = int(self._driver_bytes * FILLED / (self._offset_bytes or UNKNOWN_BYTES))
        rows = max(fitting, LEAST_ROWS)
        if not self._driver_bytes or distance(self._start, of_topics(end)) <= rows:
            return end
        if parallelism(self._spark) > FEW_TASKS:
            return end
        return self._reader.latestOffset(self._start, ReadMaxRows(rows))

    @property
    def refused(self) -> dict[str, MirrorInconsistent]:
        """By topic, why its table cannot be mirrored, as far as the last `advance` has seen."""
        return {topic: _shared_by(topic, slots) for topic, slots in self._reader.shared.items()}

    def backlog(self, *, is_applied: bool) -> Backlog:
        """Return what the topics have after the current batch, or with it, as far as the last `advance` has seen.

        By topic it has those of tables.
        """
        found = self._reader.backlog(self._reached if is_applied else self._start)
        of_tables = {
            topic: one for topic, one in found.topics.items() if is_table(topic, self._connection.prefix)
        }
        return found._replace(topics=of_tables)

    def records(self, buckets: int) -> Records:
        """Return the records of the current batch. The driver tries to read a batch that should not be too large."""
        ranges = self._reader.ranges(self._start, self._reached)
        offsets = sum(part.end - part.start for part in ranges)
        if self._offset_bytes * offsets <= self._driver_bytes:
            found, self._offset_bytes = read_on_driver(self._connection, ranges, self._driver_bytes)
            if found is not None:
                return found
        shares = pieces(ranges, self._sizes.of(ranges), parallelism(self._spark))
        return read_in_spark(self._spark, self._connection, shares, buckets)

    def close(self) -> None:
        """Close the connections to Kafka."""
        self._reader.stop()


def _shared_by(topic: str, slots: Collection[str]) -> MirrorInconsistent:
    return MirrorInconsistent(
        "several slots write to the topic at the same time, so the order of its changes is not known",
        hint="give each slot topics of its own (`sink.topics.shared_with` is what allows this), then copy the table "
        "again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`",
        topic=topic,
        slots=", ".join(slots),
    )


def seconds_of(interval: str) -> float:
    """Return the seconds of an interval as Spark writes it: "2 seconds", "100 milliseconds". Raises ConfigError."""
    found = _INTERVAL.fullmatch(interval.strip())
    if found is None:
        raise ConfigError(
            f"{interval!r} is not an interval",
            hint='write "2 seconds", "100 milliseconds" or "7 days"; a trigger may also be "available_now"',
        )
    return float(found[1]) * _SECONDS[found[2].lower()]
