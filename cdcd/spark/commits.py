"""The commits of one daemon, as the driver sees them: cuts, and the offsets at which a query starts and ends.

In: the options of a query; the progress topic, the offsets of the topics.  Out: cuts, ranges of records.
Invariant: a position that Kafka does not have any more, or not yet, is an error, never another position.
Must not: import PySpark.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property

from cdcd.errors import PositionUnavailable, SnapshotIncomplete
from cdcd.spark.connection import Connection
from cdcd.spark.cuts import (
    BatchLimits,
    Commit,
    Offsets,
    after_compaction,
    as_one,
    covers,
    cut,
    merge,
    normal,
    only,
    seen,
    total,
    without_loading,
)
from cdcd.spark.kafka import Cluster, ProgressReader, Range, check_history
from cdcd.spark.positions import (
    EARLIEST,
    OFFSETS,
    Position,
    newer,
    records_before,
    removed,
)
from cdcd.spark.source_options import SourceOptions

PROGRESS_SUFFIX = ".__progress"
READ_OFFSETS = 100_000
"""After records with so many offsets that were read, those that no batch can end at are made one.

With limits of a batch the others remain; then no more are read until batches have passed them.
"""
_PREFIX_HINT = "correct the prefix or the brokers, or start cdcd with this name"
log = logging.getLogger("cdcd.spark.source")


class Commits:
    """The driver's view of the progress topic: returns cuts, and stores the records it has read.

    A compacted progress topic does not name every partition. Partitions that it does not name have been complete for
    a long time, so their end is used, listed before the progress topic is read (`after_compaction`).
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        connection = options.connection
        self._prefix = connection.prefix
        properties = connection.read_properties()
        self._cluster = Cluster(connection.brokers, properties)
        self._reader = ProgressReader(
            connection.brokers, properties, self._prefix + PROGRESS_SUFFIX, self._cluster
        )
        self._pending: deque[Commit] = deque()
        self._unopened: list[Commit] = []
        self._incomplete: list[Commit] = []
        self._reached: Offsets = {}
        self._opened = False
        self._is_reported = self._is_absence_reported = False
        self._checked = False
        self.is_behind = False
        """Whether progress records of a backlog are not read yet."""

    def end_now(self) -> None:
        """Set the newest progress record of now as the last one that is read."""
        self._reader.end_now()

    def refresh(self, start: Offsets | None = None) -> None:
        """Read the progress records committed since the last call. `start`: where the query is, if that is known.

        Of a backlog it reads only as many as it may store (`READ_OFFSETS`), and more at the next call.
        """
        if start is not None and self.is_behind:
            self._forget(start)
            if _has_enough(start, self._pending):
                return
        if self._absence is not None and not self._is_absence_reported:
            self._is_absence_reported = True
            log.warning("%s; the query waits for the first: %s", self._absence, _PREFIX_HINT)
        ends = {} if self._opened else self._ends()
        commits, self._unopened = self._read(self._unopened, start), []
        if commits and not self._opened:
            if not self._reader.is_whole:
                complete = after_compaction(ends, commits)
                if complete is None:
                    self._unopened = commits  # the partitions' ends are inside a transaction or a snapshot
                    return
                commits = complete
            self._opened = True
        self._pending += commits
        self._pass(commits)
        is_inside = self.is_inside_snapshot and not self.is_behind
        if is_inside and not self._is_reported:
            log.warning(
                "%s: a snapshot is not complete; the batch that has it comes when it is", self._prefix
            )
        self._is_reported = is_inside

    def _pass(self, commits: Sequence[Commit]) -> None:
        """Add the complete commits to the offsets that are reached."""
        self._incomplete += commits
        complete = max((at for at, one in enumerate(self._incomplete, 1) if not one.is_part), default=0)
        self._reached = merge(self._reached, total(self._incomplete[:complete]))
        del self._incomplete[:complete]

    def reached(self, end: Offsets) -> Offsets:
        """Return the offsets of Kafka at the newest commit known, without a look at each that is pending.

        `end`: offsets that a batch has reached, also of partitions that no progress record names.
        """
        return merge(without_loading(end), self._reached)

    def _read(self, commits: list[Commit], start: Offsets | None) -> list[Commit]:
        """Return these commits and the new ones, as there may be millions: those at which no batch ends are one.

        After compaction no batch ends before the last one; otherwise `start` None asks for each.
        """
        asked, room = self._options, READ_OFFSETS
        self.is_behind = False
        for one in self._reader.read():
            commits.append(seen(one, asked.topics, loading=asked.loading))
            room -= commits[-1].size
            is_whole = self._opened or self._reader.is_whole
            if room > 0 or (is_whole and start is None):
                continue
            commits, room = as_one(start if is_whole and asked.has_limits else None, commits), READ_OFFSETS
            if start is not None and is_whole and asked.has_limits and _has_enough(start, commits):
                self.is_behind = True
                break
        return commits

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether the newest record is of a snapshot that is not complete, so that no batch may have its rows."""
        newest = (self._unopened or list(self._pending))[-1:]
        return any(one.is_part and one.snapshot is not None for one in newest)

    def newest(self, start: Offsets) -> Offsets:
        """Return the offsets of the newest commit known."""
        self._forget(start)
        return cut(start, self._pending)

    def following(self, start: Offsets, limits: BatchLimits) -> Offsets:
        """Return the end offsets of the next batch, within the limits; `start` if there is nothing new."""
        self._forget(start)
        return cut(start, self._pending, limits)

    def _forget(self, start: Offsets) -> None:
        """Remove commits up to `start`, and none after it: Spark may ask again from the same start.

        The last of them remains, because it says which tables are loading now.
        """
        while len(self._pending) > 1 and all(covers(start, self._pending[place]) for place in (0, 1)):
            self._pending.popleft()

    def initial(self) -> Offsets:
        """Return the start offsets of a new query. Raises PositionUnavailable, SnapshotIncomplete."""
        position = self._options.starting
        if position.kind == OFFSETS:
            self._refuse_newer(position, position.offsets)
            return position.offsets
        if position.kind == EARLIEST:
            return self._log_starts
        commits = self._known()
        now_us = time.time_ns() // 1000
        before = records_before(position, commits, is_whole=self._reader.is_whole, now_us=now_us)
        offsets = total(commits[:before])
        self._refuse_removed(position, offsets, total(commits), self._log_starts)
        return merge(self._log_starts, offsets)

    def batch(self) -> tuple[Offsets, Offsets]:
        """Return start and end of a batch read. Raises PositionUnavailable, SnapshotIncomplete."""
        starting, position = self._options.starting, self._options.ending
        if self._absence is not None:
            raise PositionUnavailable(self._absence, hint=_PREFIX_HINT)
        start = self.initial() if starting.kind in (EARLIEST, OFFSETS) else None
        needs_each = start is None or (position is not None and position.kind != OFFSETS)
        self.refresh(None if needs_each else start)
        start = self.initial() if start is None else start
        if position is None:
            end = self.newest(start)
            if end == start and self.is_inside_snapshot:
                raise SnapshotIncomplete("the snapshot is not complete", prefix=self._prefix)
            return start, end
        if position.kind == OFFSETS:
            end = only(position.offsets, self._options.topics)
            self._refuse_newer(position, end)
        else:
            commits = self._known()
            before = records_before(position, commits, is_whole=self._reader.is_whole)
            end = merge(self._log_starts, total(commits[:before]))
        if starting.kind == EARLIEST:
            return start, merge(start, end)
        _refuse_reversed(start, end)
        return start, merge(start, end)

    def check_start(self, start: Offsets) -> None:
        """Raise PositionUnavailable if records below these offsets are not in Kafka: its topics were made anew.

        Only the first call looks.
        """
        if not self._checked:
            self._refuse_newer(Position(OFFSETS, "offsets of the checkpoint"), start)
            self._checked = True

    def _known(self) -> list[Commit]:
        """Return the progress records of a query that starts."""
        if not self._opened:
            self.refresh()
        if self.is_inside_snapshot and self._unopened:
            raise SnapshotIncomplete("the snapshot is not complete", prefix=self._prefix)
        if self._unopened:
            raise PositionUnavailable(
                "the last transaction is written only in part, and no record before it is left",
                hint="start again when it is complete, or start at `earliest`",
                position=self._options.starting.given,
            )
        return list(self._pending)

    def _refuse_newer(self, position: Position, offsets: Offsets) -> None:
        existing = self._cluster.partitions()
        wanted = {
            (topic, int(partition)): offset
            for topic, partitions in without_loading(offsets).items()
            for partition, offset in partitions.items()
            if int(partition) in existing.get(topic, ())
        }
        for (topic, partition), end in self._cluster.high_watermarks(list(wanted)).items():
            offset = wanted[topic, partition]
            if offset > end:
                raise newer(position, topic=topic, partition=partition, offset=offset, end_offset=end)

    @staticmethod
    def _refuse_removed(position: Position, offsets: Offsets, named: Offsets, starts: Offsets) -> None:
        """Raise PositionUnavailable if a partition had records from its offset on that Kafka has removed."""
        for topic, partitions in starts.items():
            for partition, first in partitions.items():
                offset = offsets.get(topic, {}).get(partition, 0)
                if offset < min(first, named.get(topic, {}).get(partition, 0)):
                    raise removed(position, topic, partition, offset, first)

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return the ranges between two cuts. Raises HistoryMissing if Kafka no longer has all of their records."""
        return check_history(self._cluster, without_loading(start), without_loading(end))

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def _partitions(self) -> list[tuple[str, int]]:
        """Return the partitions of the topics with this prefix, without topics of a longer prefix."""
        return [
            (name, partition)
            for name, numbers in _topics_of(self._cluster, self._prefix).items()
            if self._options.topics is None or name in self._options.topics
            for partition in numbers
        ]

    @cached_property
    def _log_starts(self) -> Offsets:
        """The first offsets when the query starts."""
        return _by_topic(self._cluster.starts(self._partitions()))

    @cached_property
    def _absence(self) -> str | None:
        """What is wrong if no cdcd has written with this prefix when the query starts; looked up once."""
        topic = self._prefix + PROGRESS_SUFFIX
        if topic in self._cluster.partitions():
            return None
        return f"Kafka has no topic {topic}: no cdcd with this prefix has written to these brokers"

    def _ends(self) -> Offsets:
        return _by_topic(self._cluster.ends(self._partitions()))


def _has_enough(start: Offsets, commits: Sequence[Commit]) -> bool:
    """Return whether there is a next batch, and there are no few commits after it."""
    return sum(one.size for one in commits) >= READ_OFFSETS // 2 and any(
        not one.is_part and not covers(start, one) for one in commits
    )


def existing_tables(connection: Connection) -> list[str]:
    """Return the topics of the tables that have one. Raises Sink errors."""
    prefix = connection.prefix
    topics = _topics_of(Cluster(connection.brokers, connection.read_properties()), prefix)
    return [name for name in topics if name not in (f"{prefix}.message", f"{prefix}.transaction")]


def _topics_of(cluster: Cluster, prefix: str) -> dict[str, list[int]]:
    """Return the partitions of the topics with this prefix, without topics of a longer prefix."""
    existing = cluster.partitions()
    prefixes = [name.removesuffix(PROGRESS_SUFFIX) for name in existing if name.endswith(PROGRESS_SUFFIX)]
    prefixes = [other for other in prefixes if other.startswith(prefix + ".")]
    return {name: list(numbers) for name, numbers in existing.items() if belongs(name, prefix, prefixes)}


def _by_topic(found: Mapping[tuple[str, int], int]) -> Offsets:
    offsets: Offsets = {}
    for (topic, partition), offset in found.items():
        offsets.setdefault(topic, {})[str(partition)] = offset
    return normal(offsets)


def _refuse_reversed(start: Offsets, end: Offsets) -> None:
    for topic, partitions in end.items():
        for partition, offset in partitions.items():
            if offset < start.get(topic, {}).get(partition, 0):
                raise PositionUnavailable(
                    "the end is before the start",
                    hint="exchange both, or choose a later end",
                    topic=topic,
                    partition=partition,
                )


def belongs(topic: str, prefix: str, longer_prefixes: Sequence[str]) -> bool:
    """Return whether a topic has changes of this prefix, and is neither internal nor another daemon's."""
    if not topic.startswith(prefix + ".") or topic.startswith(prefix + ".__"):
        return False
    return not any(topic.startswith(longer + ".") for longer in longer_prefixes)
