"""What the topics have after a position: a mirror's backlog. Pure.

In: offsets, the commits after them.  Out: the distance, in offsets and by topic, and the age of the first commit.
Invariant: an unknown distance is None, never 0.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cdcd.spark.source.cuts import Commit, Offsets, covers, distance, of_topics

__all__ = ["Backlog", "backlog_after", "distances"]


class Backlog(NamedTuple):
    """What the topics have after a position, as far as their progress records were read.

    `offsets`: the distance to the newest commit, None if unknown. `is_pending`: there is a commit after the position.
    `oldest_us`: the time from which the first one counts (Unix epoch, microseconds), 0 if unknown. `topics`: the
    distance in each topic that has one, as far as the newest known commit.
    """

    offsets: int | None = None
    is_pending: bool = True
    oldest_us: int = 0
    topics: Mapping[str, int] = MappingProxyType({})


def backlog_after(
    offsets: Offsets, commits: Iterable[Commit], newest: Offsets, *, is_behind: bool
) -> Backlog:
    """Return what is after these offsets. `newest`: those of the newest known commit; `is_behind`: there are more."""
    reached = of_topics(offsets)
    first = next((one for one in commits if not covers(offsets, one)), None)
    topics = distances(reached, of_topics(newest))
    is_pending = is_behind or first is not None
    total = None if is_behind else sum(topics.values())
    oldest_us = 0 if first is None else first.since_us or first.commit_us
    return Backlog(total, is_pending, oldest_us, topics)


def distances(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the number of offsets between two cuts, of each topic that has some."""
    found = {topic: distance(start, {topic: partitions}) for topic, partitions in end.items()}
    return {topic: count for topic, count in found.items() if count}
