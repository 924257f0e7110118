"""Whether what Kafka has removed before a Kafka transaction was a record that is not read yet: its first offsets.

In: the headers of progress records; commits in order.  Out: the first offset of a partition's records.
Invariant: what is not known is None, and the removed records then count as lost.
Must not: do I/O.

The offset after the last record of a transaction in a partition is that of its marker. If retention has removed it,
a reader that continues there cannot distinguish it from a record. The next transaction says where its records begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdcd.spark.source.cuts import Commit, Offsets

FIRST_OFFSETS = "cdcd.first_offsets"
"""The header of a progress record, JSON: {topic: {partition: offset}}. With at_least_once there is none."""
Headers = Sequence[tuple[str, bytes | None]]


def first_offsets(headers: Headers | None) -> Offsets | None:
    """Return the offsets of the header; None without it, and where it cannot be read."""
    value = dict(headers or ()).get(FIRST_OFFSETS)
    if value is None:
        return None
    try:
        return {
            str(topic): {str(int(number)): int(first) for number, first in numbers.items()}
            for topic, numbers in json.loads(value).items()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def earlier(one: Offsets | None, other: Offsets | None) -> Offsets | None:
    """Return for each partition the smaller offset of both; None if one is not known."""
    if one is None or other is None:
        return None
    found = {topic: dict(numbers) for topic, numbers in one.items()}
    for topic, numbers in other.items():
        known = found.setdefault(topic, {})
        for number, first in numbers.items():
            known[number] = min(first, known.get(number, first))
    return found


def earliest_of(commits: Iterable[Commit]) -> Offsets:
    """Return for each partition the first offset of its records in all of these commits.

    A partition is absent if one of the commits that name it has no first offset of it.
    """
    found: Offsets = {}
    unknown: set[tuple[str, str]] = set()
    for commit in commits:
        firsts = commit.firsts or {}
        for topic, numbers in commit.offsets.items():
            known, of_topic = firsts.get(topic, {}), found.setdefault(topic, {})
            for number in numbers:
                if number in known:
                    of_topic[number] = min(known[number], of_topic.get(number, known[number]))
                else:
                    unknown.add((topic, number))
    for topic, number in unknown:
        found[topic].pop(number, None)
    return found


def of_named(firsts: Offsets | None, offsets: Offsets) -> Offsets | None:
    """Return the first offsets of the partitions that a commit names: no query uses others, so none are stored."""
    if firsts is None or firsts.keys() <= offsets.keys():
        return firsts
    return {topic: found for topic, found in firsts.items() if topic in offsets}


def first_between(commits: Iterable[Commit], topic: str, partition: int, start: int, end: int) -> int | None:
    """Return the offset of the first record of a partition between two cuts, None if it is not known.

    `commits`: all of them between the cuts; they may have more. It is not known either if none of them ends at `end`.
    """
    number, firsts, reached = str(partition), [], start
    for commit in commits:
        offset = commit.offsets.get(topic, {}).get(number, 0)
        if start < offset <= end:
            first = (commit.firsts or {}).get(topic, {}).get(number)
            if first is None:
                return None
            firsts.append(first)
            reached = max(reached, offset)
    return min(firsts) if firsts and reached == end else None
