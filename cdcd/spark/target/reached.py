"""Which commits a version of a mirror has, by an LSN. Pure.

In: versions with the positions of their slots; an LSN, of which the timeline, the server and the slot may be known.
Out: whether the version has all commits up to there, and up to which LSN.
Invariant: in doubt a version does not have a commit. Versions before format 9 have one position without a timeline,
which is used as it is, unless a later timeline than the first one is asked for.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cdcd.lsn import format_lsn
from cdcd.spark.source.source_position import JOINING, NOTHING, SlotPosition, SourcePosition, held_until
from cdcd.spark.target.versions import TargetVersion

__all__ = ["Wanted", "held_in", "left_after", "missing", "positions_after", "reached_lsn"]

_FIRST_TIMELINE = 1
_BEFORE_TIMELINES = "the mirror has no timeline: restart it with this version of cdcd"


class Wanted(NamedTuple):
    """All commits up to an LSN: on this timeline of the server or a later one, by this slot. None: not known."""

    lsn: int
    timeline: int | None = None
    slot: str | None = None
    system_identifier: str | None = None


def reached_lsn(version: TargetVersion, slot: str | None = None) -> int:
    """Return the LSN up to which a version has all commits of a slot, None: of each slot; 0: unknown."""
    if not version.positions:
        return max(version.end_lsn, version.commit_lsn)
    return min(one.end_lsn for one in _asked(version, slot).values())


def _asked(version: TargetVersion, slot: str | None) -> Mapping[str, SlotPosition]:
    """Return the positions that have to reach an LSN."""
    if slot is None:
        return version.positions
    return {slot: version.positions.get(slot, JOINING)}


def missing(version: TargetVersion, wanted: Wanted) -> dict[str, str]:
    """Return what the error of a wait that is over says, empty if the version has all commits up to there."""
    if not version.positions:
        return _missing_before_timelines(version, wanted)
    for slot, one in sorted(_asked(version, wanted.slot).items()):
        is_there = wanted.system_identifier in (None, "", one.system_identifier)
        is_there &= one.timeline >= (wanted.timeline or 0)
        if not is_there or one.end_lsn < wanted.lsn:
            return {
                "reached": format_lsn(one.end_lsn),
                "timeline": str(one.timeline or "unknown"),
                "slot": slot,
                **(
                    {}
                    if slot in version.positions
                    else {"slots_of_mirror": ", ".join(sorted(version.positions))}
                ),
            }
    return {}


def _missing_before_timelines(version: TargetVersion, wanted: Wanted) -> dict[str, str]:
    reached = reached_lsn(version)
    if reached >= wanted.lsn and (wanted.timeline or 0) > _FIRST_TIMELINE:
        return {"reached": format_lsn(reached), "reason": _BEFORE_TIMELINES}
    return {} if reached >= wanted.lsn else {"reached": format_lsn(reached)}


def held_in(version: TargetVersion, latest: TargetVersion) -> int:
    """Return the LSN up to which a version has all commits in the history of the source that the latest one has.

    It is never lower than that of an earlier version: `left` bounds all versions before a change.
    """
    bounds = [lsn for number, lsn in latest.left if version.number <= number]
    known = [one.end_lsn for one in version.positions.values() if one != JOINING]
    return min([*bounds, *(known or [reached_lsn(version)])])


def positions_after(version: TargetVersion, position: SourcePosition) -> dict[str, SlotPosition]:
    """Return the positions of a version's slots at a position in the source."""
    slots = {slot: _after(version.positions.get(slot, JOINING), one) for slot, one in position.slots.items()}
    # A slot that was replaced remains until another one has a position: a version before has that of no other.
    ended = position.ended if any(one != JOINING for one in slots.values()) else frozenset[str]()
    unseen = version.positions.keys() - slots.keys() - ended
    return {**{slot: version.positions[slot] for slot in unseen}, **slots}


def _after(before: SlotPosition, after: SlotPosition) -> SlotPosition:
    """Return a slot's next position. One whose known records are parts, as after a compaction, is where it was."""
    if JOINING in (before, after) and after.end_lsn == NOTHING:
        return before
    return after


def left_after(
    version: TargetVersion, slots: Mapping[str, SlotPosition], first: Mapping[str, int]
) -> tuple[tuple[int, int], ...]:
    """Return `TargetVersion.left` of the version after this one, which has these positions.

    `first`: by slot, an LSN before which it has sent no commit. A bound that is above this version's own position
    remains: versions before this one may have been beyond it.
    """
    oldest = version.complete[0][0] if version.complete else 0
    left = tuple(one for one in version.left if one[0] >= oldest)
    bounds = [
        min(lsn, after.end_lsn)
        for slot, after in slots.items()
        if (lsn := _held(version, slot, after, first.get(slot, NOTHING))) is not None
    ]
    return (*left, (version.number, min(bounds))) if bounds else left


def _held(version: TargetVersion, slot: str, after: SlotPosition, first_lsn: int) -> int | None:
    """Return the LSN up to which a version's commits are in the history of a slot's next position, None: all."""
    if not version.positions:
        return held_until(SlotPosition(version.end_lsn), after, version.commit_lsn)
    before = version.positions.get(slot, JOINING)
    known = [one for one in version.positions.values() if one.end_lsn != NOTHING]
    commit_lsn = version.commit_lsn if len(known) == 1 else NOTHING
    if before != JOINING:
        return held_until(before, after, commit_lsn)
    if after == JOINING:
        return None
    # A slot of which the version has no commit: it may have sent some from its first position on, and none before.
    bounds = [first_lsn]
    for one in known:
        ahead = after._replace(end_lsn=max(after.end_lsn, one.end_lsn))
        if (lsn := held_until(one, ahead, commit_lsn)) is not None:
            bounds.append(lsn)
    return min(bounds)
