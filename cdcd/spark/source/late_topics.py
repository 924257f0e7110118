"""The topics that a query reads from an earlier commit than its others: it has begun to read them later. Pure.

In: the offsets of a batch's end; the commits before and after it.  Out: the topics that are behind the others.
Invariant: offsets that are the sum of the first commits of a progress topic have no late topic. Only the commits
that are read count: of a long backlog some are not, and the position in the source has to decide.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cdcd.spark.source.cuts import OWN, Commit, Offsets, add, covers

__all__ = ["Late", "late_after"]


class Late(NamedTuple):
    """`topics`: those of which commits are missing that came before others which the offsets have.

    `named`: those that the commits name. `is_known`: the commits are read. `is_last`: none is after these offsets.
    """

    topics: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    is_known: bool = False
    is_last: bool = False


def late_after(end: Offsets, passed: Offsets, commits: Iterable[Commit]) -> Late:
    """Return which topics are late at these offsets. `passed`: the sum of the commits before the first one."""
    reached = {topic: dict(numbers) for topic, numbers in passed.items()}
    missing: set[str] = set()
    late: set[str] = set()
    is_last = True
    for commit in commits:
        is_last = is_last and covers(end, commit)
        if is_last:
            add(reached, commit)
            continue
        missing |= _missing(end, commit)
        if commit.slot == OWN:  # the sum of commits whose order is not known any more
            add(reached, commit)
        elif len(late) < len(missing) and _is_had(end, reached, commit):
            late = set(missing)
    return Late(frozenset(late), is_known=True, is_last=is_last)


def _missing(end: Offsets, commit: Commit) -> set[str]:
    """Return the topics of which the offsets do not have all of a commit's records."""
    return {
        topic
        for topic, numbers in commit.offsets.items()
        if any(offset > end.get(topic, {}).get(number, 0) for number, offset in numbers.items())
    }


def _is_had(end: Offsets, reached: Offsets, commit: Commit) -> bool:
    """Return whether the offsets have records of a commit that no earlier commit has."""
    return any(
        reached.get(topic, {}).get(number, 0) < offset <= end.get(topic, {}).get(number, 0)
        for topic, numbers in commit.offsets.items()
        for number, offset in numbers.items()
    )
