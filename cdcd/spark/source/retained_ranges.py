"""The ranges of records of a batch, once Kafka is known to have all of them.

In: two cuts.  Out: ranges of partitions.
Invariant: a record that Kafka has removed, or does not have in this topic, is an error before the first task begins.
A topic that Kafka does not have is left out only of a query that has read none of its records.
Must not: read records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from cdcd.errors import HistoryMissing, SinkUnavailable
from cdcd.spark.clients.kafka import UNKNOWN, Cluster, Range
from cdcd.spark.source.cuts import Offsets, normal

log = logging.getLogger("cdcd.spark.data_source")
SETTLES_WITHIN_S = 5.0
"""The maximum delay with which a broker knows a new topic, or a new leader's records."""
LOOK_AGAIN_S = 0.25
_SHORTER = "a topic has fewer records than the progress records name: it was recreated, or has lost records"
_DELETED_HINT = (
    "start a new query, with a new checkpoint, at `earliest`; a mirror needs an empty target: the rows of the "
    "deleted topic are not in Kafka any more"
)
Places = dict[tuple[str, int], int]
FirstOffset = Callable[[Range], int | None]


def _unknown(_: Range) -> int | None:
    return None


def check_history(
    cluster: Cluster, start: Offsets, end: Offsets, first_of: FirstOffset = _unknown
) -> list[Range]:
    """Return the ranges between two cuts. Raises HistoryMissing if Kafka does not have all of their records.

    A start is the offset of the marker that ends a Kafka transaction, or of a row if cdcd writes without Kafka
    transactions (at_least_once). Kafka does not report whether it removed a marker or a row: `first_of` returns the
    offset of the first record of a range, None if it is not known. A range begins with the first record that Kafka
    has. A topic that was deleted is left out of a query that begins with it.
    """
    wanted = [
        Range(topic, int(partition), start.get(topic, {}).get(partition, 0), offset)
        for topic, partitions in normal(end).items()
        for partition, offset in partitions.items()
    ]
    ranges, log_starts, log_ends = _with_bounds(cluster, [part for part in wanted if part.start != part.end])
    retained: list[Range] = []
    for part in ranges:
        place = part.topic, part.partition
        is_removed = part.start > part.end
        if part.start < log_starts[place]:
            first = first_of(part)
            is_removed = first is None or first < log_starts[place]
        retained.append(replace(part, start=max(part.start, log_starts[place])))
        if is_removed or part.end > log_ends[place]:
            raise HistoryMissing(
                "Kafka removed records that were not read yet" if is_removed else _SHORTER,
                topic=part.topic,
                partition=part.partition,
                wanted_offset=part.start,
                first_offset=log_starts[place],
                end_offset=part.end if is_removed else log_ends[place],
            )
    return retained


def _with_bounds(cluster: Cluster, ranges: list[Range]) -> tuple[list[Range], Places, Places]:
    """Return the ranges of topics that exist, the first offsets, and the next ones.

    A topic that is missing, or shorter, is queried again for a while before it is an error.
    """
    until_s = time.monotonic() + SETTLES_WITHIN_S
    while True:
        is_last = time.monotonic() > until_s
        try:
            log_starts, log_ends = cluster.bounds([(part.topic, part.partition) for part in ranges])
        except SinkUnavailable as error:
            if error.context.get("reason") not in UNKNOWN:
                raise
            if is_last:
                existing = _left(cluster, ranges)
                if existing == ranges:  # a leader does not know a partition that is listed
                    raise
                ranges = existing
        else:
            if is_last or all(log_ends[part.topic, part.partition] >= part.end for part in ranges):
                return ranges, log_starts, log_ends
        time.sleep(LOOK_AGAIN_S)


def _left(cluster: Cluster, ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges of topics that exist.

    Raises HistoryMissing for a partition that an existing topic lacks, and where the query has read a missing topic.
    """
    existing, missing = cluster.partitions(), cluster.missing({part.topic for part in ranges})
    for part in ranges:
        if part.partition not in existing.get(part.topic, (part.partition,)):
            raise HistoryMissing(_SHORTER, topic=part.topic, partition=part.partition, end_offset=part.end)
        if part.topic in missing and part.start:
            raise HistoryMissing(
                "a topic was deleted before all of its records were read",
                hint=_DELETED_HINT,
                topic=part.topic,
                partition=part.partition,
                wanted_offset=part.start,
                end_offset=part.end,
            )
    for topic in sorted(missing):
        log.warning("%s was deleted", topic)
    return [part for part in ranges if part.topic not in missing]


class DeletedTopics:
    """The topics that progress records name and Kafka no longer has. `known`: those that were reported."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.known: set[str] = set()

    def has_all(self, topics: frozenset[str]) -> bool:
        """Return whether none of the topics exists."""
        return self._cluster.missing(topics) == topics and self.among(topics) == topics

    def among(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that do not exist. A topic that is missing for the first time is queried again."""
        until_s = time.monotonic() + SETTLES_WITHIN_S
        while topics:
            missing = self._cluster.missing(topics)
            new = missing - self.known
            self.known -= frozenset(topics) - missing
            if new and time.monotonic() <= until_s:
                time.sleep(LOOK_AGAIN_S)
                continue
            for topic in sorted(new):
                log.warning("%s was deleted: the query leaves it out", topic)
            self.known |= new
            return missing
        return frozenset()
