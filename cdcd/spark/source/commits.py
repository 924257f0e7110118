"""The commits of one daemon, as the driver sees them: cuts, and the offsets at which a query starts and ends.

In: the options of a query; the progress topic, the offsets of the topics.  Out: cuts, ranges of records.
Invariant: a position that Kafka does not have any more, or not yet, is an error, never another position. A topic that
Kafka does not have is in no cut, unless the query has read records of it: its ranges are then an error.
Must not: import PySpark.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from cdcd.errors import PositionUnavailable, SnapshotIncomplete
from cdcd.spark.clients.kafka import Cluster, Range
from cdcd.spark.source.backlog import Backlog, backlog_after
from cdcd.spark.source.cuts import (
    ID,
    NO_LIMITS,
    BatchLimits,
    Commit,
    Offsets,
    cut,
    has_records,
    ids_of,
    loading_of,
    merge,
    normal,
    of_topics,
    only,
    position_at,
    start_of,
    total,
)
from cdcd.spark.source.first_offsets import first_between
from cdcd.spark.source.given_topics import check_names
from cdcd.spark.source.late_topics import Late, late_after
from cdcd.spark.source.positions import (
    EARLIEST,
    LATEST,
    OFFSETS,
    Position,
    newer,
    records_before,
    removed_error,
)
from cdcd.spark.source.prefix_topics import by_topic, partitions_of
from cdcd.spark.source.progress_log import ProgressLog
from cdcd.spark.source.progress_topic import PREFIX_HINT, absence, require
from cdcd.spark.source.retained_ranges import FirstOffset, check_history
from cdcd.spark.source.source_options import SourceOptions
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.source.topic_ids import TopicIds, created_again

_NO_ID = (
    "%s was recreated; the query's offsets in it have no topic id, and if they belong to the former topic, "
    "the query misses rows: in that case start a new query at `earliest`, or a mirror with an empty target"
)
_COPIED_HINT = (
    "read again when the copy is complete (`cdcd snapshot status`; `incomplete_topics` of /status has copies that "
    "wait or were stopped), end before it, leave the table out, or accept only a part of its rows with the option "
    "loading=true"
)
log = logging.getLogger("cdcd.spark.data_source")


class Commits:
    """The driver's view of the progress topic (`ProgressLog`) and of the topics; its methods return cuts."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        connection = options.connection
        self._prefix = connection.prefix
        properties = connection.read_properties()
        self._cluster = Cluster(connection.brokers, properties)
        self._ids = TopicIds(self._cluster, options.topics)
        self._log = ProgressLog(options, self._cluster, self._ids)
        self._is_reported = self._is_absence_reported = False
        self._reported: set[str] = set()
        self._checked = self._has_checked_names = self._ends_now = False

    @property
    def is_behind(self) -> bool:
        """Whether progress records of a backlog are not read yet."""
        return self._log.is_behind

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether a snapshot is not complete, so that no batch may have its rows."""
        return self._log.is_inside_snapshot

    @property
    def shared(self) -> dict[str, tuple[str, ...]]:
        """By topic, the slots that write to it at the same time, as far as progress records are read."""
        return self._log.shared

    def end_now(self) -> None:
        """Read no further than the progress record that is the newest now. Raises PositionUnavailable without any."""
        require(self._cluster, self._prefix)
        self._ends_now = True
        self._log.end_now()

    def refresh(self, start: Offsets | None = None, *, each: bool = False) -> None:
        """Read the progress records committed since the last call, as `ProgressLog.refresh` describes it.

        Raises PositionUnavailable if the start is in a former topic, if it has records without a progress topic,
        and if the query ends now and cannot know where.
        """
        if self._absence is not None and not self._is_absence_reported:
            self._is_absence_reported = True
            log.warning("%s; the query waits for the first: %s", self._absence, PREFIX_HINT)
        if not self._log.has_topic and any(
            has_records(start or {}, topic) for topic in of_topics(start or {})
        ):
            require(self._cluster, self._prefix)  # the query has read records, so it was there
        self._log.refresh(start, each=each)
        if self._ends_now:
            self._refuse_waiting()
        if start is not None:
            self._ids.check(start)
            self._report_unknown(start)
        self._report_snapshot()

    def _report_snapshot(self) -> None:
        is_inside = self.is_inside_snapshot and not self.is_behind
        if is_inside and not self._is_reported:
            log.warning(
                "%s: a snapshot is not complete; no batch has its rows until the snapshot is complete",
                self._prefix,
            )
        self._is_reported = is_inside

    def _report_unknown(self, start: Offsets) -> None:
        """Warn of offsets that may be of a former topic: those of an earlier version, or of a user, have no id."""
        known = ids_of(start).keys() | self._reported
        for topic in of_topics(start).keys() - known:
            if self._ids.was_created_again(topic) and has_records(start, topic):
                self._reported.add(topic)
                log.warning(_NO_ID, topic)

    def check_names(self) -> None:
        """Raise SparkReadError, PositionUnavailable for a topic or a partition of the options that never existed.

        The check waits until cdcd has written and a backlog of progress records is read, which may name deleted
        topics.
        """
        if self._has_checked_names or self.is_behind or self._absence is not None:
            return
        positions = (self._options.starting, self._options.ending)
        named = self._log.named | self._ids.described_topics
        check_names(self._cluster, self._prefix, self._options.topics, positions, named)
        self._has_checked_names = True

    def known_end(self, end: Offsets) -> Offsets:
        """Return the offsets of Kafka at the newest known commit, without adding up the pending commits.

        `end`: offsets that a batch has reached, also of partitions that no progress record names.
        """
        return self._ids.with_ids(merge(of_topics(end), self._log.reached), end)

    def newest(self, start: Offsets) -> Offsets:
        """Return the offsets of the newest commit known."""
        return self.next_end(start, NO_LIMITS)

    def next_end(self, start: Offsets, limits: BatchLimits) -> Offsets:
        """Return the end offsets of the next batch, within the limits; `start` if there is nothing new."""
        self._log.forget(start)
        end = cut(start, self._log.pending, limits)
        if of_topics(end) == of_topics(start) and loading_of(end) == loading_of(start):
            return start
        return self._ids.with_ids(end, start)

    def position(self, end: Offsets) -> SourcePosition:
        """Return the position in the source of the end that `next_end` has returned last."""
        return position_at(end, self._log.pending)

    def late(self, end: Offsets) -> Late:
        """Return which topics of these offsets are behind the others, as far as the last `refresh` has read."""
        if not self._log.pending:
            return Late()
        found = late_after(end, self._log.passed, self._log.pending)
        return found._replace(
            named=frozenset(self._log.reached), is_last=found.is_last and not self.is_behind
        )

    def backlog(self, reached: Offsets) -> Backlog:
        """Return what the topics have after these offsets, as far as the last `refresh` has read.

        It is not known without a progress record, nor while it is not known which one is the first to be read.
        """
        if self._log.is_empty or self._log.is_waiting:
            return Backlog()
        newest = self.known_end(reached)
        return backlog_after(reached, self._log.pending, newest, is_behind=self.is_behind)

    def initial(self) -> Offsets:
        """Return the start offsets of a new query. Raises PositionUnavailable, SnapshotIncomplete."""
        position = self._options.starting
        if position.kind == OFFSETS:
            self._ids.check(position.offsets)
            self._refuse_newer(position, position.offsets)
            return position.offsets if self._options.begins_at_0 else self._filled(position.offsets)
        if position.kind == EARLIEST:
            return self._ids.with_ids(self._log_starts, {})
        if self._options.loading:  # its commits may be inside a snapshot; a position may not
            others = Commits(replace(self._options, loading=False))
            try:
                return others.initial()
            finally:
                others.close()
        return self._at(position)

    def _filled(self, named: Offsets) -> Offsets:
        """Return given offsets, with the first ones that Kafka has of the partitions that they do not name."""
        first = self._ids.with_ids(only(self._log_starts, frozenset(self._log_starts) - named.keys()), {})
        given = {topic: self._log_starts.get(topic, {}) | one for topic, one in named.items()}
        return normal(first | given)

    def _at(self, position: Position) -> Offsets:
        """Return the offsets of a start that is the end of a commit."""
        commits, parts = self._known()
        now_us = time.time_ns() // 1000
        before = records_before(position, commits, parts, is_whole=self._log.is_whole, now_us=now_us)
        offsets = total(commits[:before])
        self._refuse_removed(position, offsets, commits[before:])
        for topic in sorted(frozenset[str]().union(*(one.former for one in commits[before:]))):
            raise created_again(topic)
        return self._ids.with_ids(merge(self._log_starts, offsets), {})

    def batch(self) -> tuple[Offsets, Offsets]:
        """Return start and end of a batch read. Raises PositionUnavailable, SnapshotIncomplete."""
        starting, position = self._options.starting, self._options.ending
        if position is not None and position.kind == LATEST:
            position = None
        if self._absence is not None:
            raise PositionUnavailable(self._absence, hint=PREFIX_HINT)
        start = self.initial() if starting.kind in (EARLIEST, OFFSETS) else None
        needs_each = start is None or (position is not None and position.kind != OFFSETS)
        self.refresh(start, each=needs_each)
        self.check_names()
        start = self.initial() if start is None else start
        if position is None:
            end = self.newest(start)
            self._refuse_copied(loading_of(end))
            if end == start and self.is_inside_snapshot:
                raise SnapshotIncomplete("the snapshot is not complete", prefix=self._prefix)
            if end == start:
                self._refuse_waiting()
            return start, end
        end = self._end(position, start)
        if starting.kind != EARLIEST:
            _refuse_reversed(start, of_topics(end))
        return start, merge(start, end)

    def _refuse_copied(self, loading: frozenset[str]) -> None:
        """Raise SnapshotIncomplete for a batch read that ends while cdcd copies these tables."""
        if loading:
            raise SnapshotIncomplete(
                "at the end of this batch read a table lacks rows that only a copy by cdcd brings",
                hint=_COPIED_HINT,
                topics=", ".join(sorted(loading)),
            )

    def _end(self, position: Position, start: Offsets) -> Offsets:
        """Return the end of a batch read that has one."""
        if position.kind == OFFSETS:
            end = self._asked(position.offsets)
            self._refuse_other_topics(start, end)
            self._refuse_newer(position, end)
            return end
        commits, parts = self._known()
        before = records_before(position, commits, parts, is_whole=self._log.is_whole)
        self._refuse_copied(commits[before - 1].loading if before else frozenset())
        return merge(self._log_starts, total(commits[:before]))

    def _asked(self, offsets: Offsets) -> Offsets:
        """Return given offsets of the query's topics, with their ids."""
        topics = self._options.topics
        return offsets if topics is None else only(offsets, topics | {ID + topic for topic in topics})

    def _refuse_other_topics(self, start: Offsets, end: Offsets) -> None:
        """Raise PositionUnavailable if an end is of another topic than the start, or of a former one."""
        self._ids.check(start)
        self._ids.check(end)
        begun = ids_of(start)
        for topic, one in ids_of(end).items():
            if begun.get(topic, one) != one:
                raise created_again(topic)

    def check_start(self, start: Offsets) -> None:
        """Raise PositionUnavailable if records below these offsets are not in Kafka: its topics were created again.

        Only the first call checks.
        """
        if not self._checked:
            self._refuse_newer(Position(OFFSETS, "offsets of the checkpoint"), start)
            self._checked = True

    def _known(self) -> tuple[list[Commit], list[Commit]]:
        """Return the commits that a query knows when it starts, and the newest records of incomplete ones."""
        if not self._log.is_opened:
            self.refresh()
        if not self._log.is_opened and self.is_inside_snapshot:
            raise SnapshotIncomplete("the snapshot is not complete", prefix=self._prefix)
        self._refuse_waiting()
        return list(self._log.pending), self._log.parts

    def _refuse_waiting(self) -> None:
        if not self._log.is_opened and self._log.is_waiting:
            raise PositionUnavailable(
                "the last transaction is not complete in Kafka, which has no earlier progress record",
                hint="start again when the transaction is complete",
                position=self._options.starting.given,
            )

    def _refuse_newer(self, position: Position, offsets: Offsets) -> None:
        existing = self._cluster.partitions()
        wanted = {
            (topic, int(partition)): offset
            for topic, partitions in only(of_topics(offsets), self._options.topics).items()
            for partition, offset in partitions.items()
            if int(partition) in existing.get(topic, ())
        }
        for (topic, partition), end in self._cluster.high_watermarks(list(wanted)).items():
            offset = wanted[topic, partition]
            if offset > end:
                raise newer(position, topic=topic, partition=partition, offset=offset, end_offset=end)

    def _refuse_removed(self, position: Position, offsets: Offsets, commits: Sequence[Commit]) -> None:
        """Raise PositionUnavailable if Kafka has removed records that commits after a position may have had.

        What it has removed is none of them if the commits say that all of theirs come later (`first_between`).
        """
        named = total(commits)
        for topic, partitions in self._log_starts.items():
            for partition, first in partitions.items():
                offset, end = (of.get(topic, {}).get(partition, 0) for of in (offsets, named))
                if offset >= min(first, end):
                    continue
                begun = first_between(commits, topic, int(partition), offset, end)
                if begun is None or begun < first:
                    raise removed_error(position, topic, partition, offset, first)

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return the ranges between two cuts. Raises HistoryMissing if Kafka no longer has all of their records.

        An empty batch has none: Spark plans one at the end of the last batch, which may have a start.
        """
        if start != end:
            start = start_of(end) or start
        return self._checked_ranges(start, end, partial(self._first_of, start))

    def batch_ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return the ranges of a batch read, from what `batch` has returned. Raises HistoryMissing as `ranges` does.

        A read from `earliest` begins with the first records that Kafka has now: its retention may have removed others
        since the start was determined, and none of these was asked for.
        """
        if self._options.starting.kind != EARLIEST:
            return self.ranges(start, end)
        found = self._checked_ranges(start, end, lambda part: sys.maxsize)
        return [part for part in found if part.start < part.end]

    def _checked_ranges(self, start: Offsets, end: Offsets, first_of: FirstOffset) -> list[Range]:
        if self.is_behind:  # the slot's record of a topic that was created again may not be read yet
            self._ids.look_again(start, [topic for topic in start if start[topic] != end.get(topic)])
        self._ids.check(start)
        self._ids.check(end)
        return check_history(self._cluster, of_topics(start), of_topics(end), first_of)

    def _first_of(self, start: Offsets, part: Range) -> int | None:
        """Return the offset of the first record of a range, None if no progress record says it.

        A repeated batch is planned before any progress record is read. Records of which none is left may have been
        of this partition, even for a single removed offset: with at_least_once no marker is after a row, and nothing
        that is left says which delivery those records had.
        """
        if not self._log.pending:
            self.refresh(start)
        if not self._log.is_opened:
            return None
        if not self._log.has_all_since(part.topic, part.partition, part.start):
            return None
        return first_between(self._log.pending, part.topic, part.partition, part.start, part.end)

    def without_deleted(self, offsets: Offsets) -> Offsets:
        """Return the offsets of topics that were not deleted."""
        found = of_topics(offsets)
        return only(found, frozenset(found) - self._cluster.missing(found))

    def close(self) -> None:
        """Close the connections to Kafka."""
        self._log.close()

    @cached_property
    def _log_starts(self) -> Offsets:
        """The first offsets when the query starts."""
        return by_topic(
            self._cluster.starts(partitions_of(self._cluster, self._prefix, self._options.topics))
        )

    @cached_property
    def _absence(self) -> str | None:
        """The problem if Kafka has no progress topic of this prefix when the query starts; determined once."""
        return absence(self._cluster, self._prefix)


def _refuse_reversed(start: Offsets, end: Offsets) -> None:
    for topic, partitions in end.items():
        for partition, offset in partitions.items():
            if offset < start.get(topic, {}).get(partition, 0):
                raise PositionUnavailable(
                    "the end is before the start",
                    hint="swap start and end, or choose a later end",
                    topic=topic,
                    partition=partition,
                )
