"""Positions in the source: the LSN below which all commits are in Kafka, or in a mirror, for each slot. Pure.

In: the positions of progress records.  Out: positions that can be compared.
Invariant: an LSN means something only on a timeline of a server. A position of an idle stream may be beyond the point
at which a promoted server has left the timeline: the new timeline uses the LSNs between them again (F58). Positions
of two slots say nothing about each other: one slot may be far behind the other one.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

NOTHING = 0
"""An LSN before all commits."""


class Origin(NamedTuple):
    """The server and the timeline of an LSN. `began_lsn`: where the timeline began, 0 for the first one.

    Empty, and 0: unknown.
    """

    system_identifier: str = ""
    timeline: int = 0
    began_lsn: int = 0


UNKNOWN_ORIGIN = Origin()


@lru_cache(maxsize=64)
def origin_of(system_identifier: str, timeline: int, began_lsn: int) -> Origin:
    """Return the one object of an origin: a backlog may have millions of commits."""
    return Origin(system_identifier, timeline, began_lsn)


class SlotPosition(NamedTuple):
    """All commits that a slot sends are before `end_lsn`, or not yet there. 0: unknown. The rest is its `Origin`."""

    end_lsn: int
    system_identifier: str = ""
    timeline: int = 0
    began_lsn: int = 0


JOINING = SlotPosition(NOTHING)
"""Of a slot that has never had a position: its first transaction or snapshot is not complete."""


class SourcePosition(NamedTuple):
    """The position of offsets in the source: all commits below `end_lsn` are before them; 0 if unknown.

    `commit_us`: the time of the last of these commits (Unix epoch, microseconds), 0 if unknown. `slots`: by slot, its
    position; `end_lsn` is the lowest of them. `ended`: the slots that have no position any more. One that is
    in neither is where it was: compaction may have left only later records of it. `first`: by slot, an LSN before
    which it has sent no commit; unknown without one.
    """

    end_lsn: int = 0
    commit_us: int = 0
    slots: Mapping[str, SlotPosition] = {}
    ended: frozenset[str] = frozenset()
    first: Mapping[str, int] = {}


def lowest(slots: Mapping[str, SlotPosition]) -> int:
    """Return the LSN below which all commits of each slot are, 0 if it is unknown."""
    return min((one.end_lsn for one in slots.values()), default=0)


def has_reached(position: SourcePosition, before: SourcePosition) -> bool:
    """Return whether a position in the records of the same daemon is one that was reached before, or a later one.

    In doubt it is not: that of another server, or of a copy of the server, may be an earlier or a later one.
    """
    if not before.slots:
        return position.end_lsn >= before.end_lsn
    known = {slot: one for slot, one in before.slots.items() if one != JOINING and slot not in position.ended}
    return all(_is_at_or_after(position.slots.get(slot, JOINING), one) for slot, one in known.items())


def _is_at_or_after(after: SlotPosition, before: SlotPosition) -> bool:
    if "" != before.system_identifier != after.system_identifier != "":
        return False
    if before.timeline and after.timeline and before.timeline != after.timeline:
        return after.timeline > before.timeline
    return after.end_lsn >= before.end_lsn


def held_until(before: SlotPosition, after: SlotPosition, commit_lsn: int) -> int | None:
    """Return the LSN up to which a slot's earlier position is true in the history of a later one; None: completely.

    `commit_lsn`: of an applied commit: cdcd follows a server to a later timeline if that has all written commits.
    """
    if "" != before.system_identifier != after.system_identifier != "":
        return NOTHING
    if before.timeline == after.timeline or not (before.timeline and after.timeline):
        # A lower position on one timeline is that of a server that was restored from a copy.
        return None if after.end_lsn >= before.end_lsn else NOTHING
    if after.timeline < before.timeline:
        return NOTHING
    # The position has the beginning of its own timeline, which tells nothing about a timeline in between.
    is_next = after.timeline == before.timeline + 1 and after.began_lsn > 0
    return after.began_lsn if is_next else commit_lsn
