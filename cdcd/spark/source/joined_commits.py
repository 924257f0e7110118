"""Commits at which no batch can end, combined into one: a backlog may have millions of them.

In: complete commits in order.  Out: fewer commits, whose sum is the same.
Invariant: a joined commit has a first offset of a partition only if each of its commits has one.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdcd.spark.source.cuts import SEVERAL, Commit, Offsets, covers, total
from cdcd.spark.source.first_offsets import earliest_of


def as_one(start: Offsets | None, commits: Sequence[Commit], *, rest: bool = False) -> list[Commit]:
    """Return the commits; the first ones, which `start` covers, are combined into one. `start` None: all are.

    `rest`: the others are combined into another one, whose first offsets are then those after `start`.
    """
    count = 0
    while count < len(commits) and (start is None or covers(start, commits[count])):
        count += 1
    others = commits[count:]
    return [*_joined(commits[:count]), *(_joined(others) if rest else others)]


def _joined(commits: Sequence[Commit]) -> Sequence[Commit]:
    return [join_commits(commits)] if len(commits) > 1 else commits


def join_commits(commits: Sequence[Commit]) -> Commit:
    """Return complete commits as one."""
    former = frozenset[str]().union(*(one.former for one in commits))
    slot = commits[-1].slot if len({one.slot for one in commits}) == 1 else SEVERAL
    commit_us = max(one.commit_us for one in commits)  # of two slots the last commit may be an earlier one
    positions = commits[-1].slot_positions if slot == SEVERAL else commits[-1].positions
    joined = replace(
        commits[-1],
        offsets=total(commits),
        former=former,
        commit_us=commit_us,
        slot=slot,
        positions=positions,
    )
    return replace(joined, firsts=earliest_of(commits))


def without_firsts(commits: Sequence[Commit]) -> list[Commit]:
    """Return commits without their first offsets."""
    return [one if one.firsts is None else replace(one, firsts=None) for one in commits]
