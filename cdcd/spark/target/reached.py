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
from cdcd.spark.source.source_position import NOTHING, SlotPosition, held_until
from cdcd.spark.target.versions import TargetVersion

__all__ = ["Wanted", "held_in", "left_after", "missing", "reached_lsn"]

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
    return {slot: version.positions.get(slot, SlotPosition(NOTHING))}


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
            }
    return {}


def _missing_before_timelines(version: TargetVersion, wanted: Wanted) -> dict[str, str]:
    reached = reached_lsn(version)
    if reached >= wanted.lsn and (wanted.timeline or 0) > _FIRST_TIMELINE:
        return {"reached": format_lsn(reached), "reason": _BEFORE_TIMELINES}
    return {} if reached >= wanted.lsn else {"reached": format_lsn(reached)}


def held_in(version: TargetVersion, latest: TargetVersion) -> int:
    """Return the LSN up to which a version has all commits in the history of the source that the latest one has."""
    bounds = [lsn for number, lsn in latest.left if version.number <= number]
    return min([reached_lsn(version), *bounds])


def left_after(version: TargetVersion, slots: Mapping[str, SlotPosition]) -> tuple[tuple[int, int], ...]:
    """Return `TargetVersion.left` of the version after this one, which has these positions."""
    oldest = version.complete[0][0] if version.complete else 0
    left = tuple(one for one in version.left if one[0] >= oldest)
    bounds = [lsn for slot, after in slots.items() if (lsn := _held(version, slot, after)) is not None]
    if not bounds or min(bounds) >= reached_lsn(version):
        return left
    return (*left, (version.number, min(bounds)))


def _held(version: TargetVersion, slot: str, after: SlotPosition) -> int | None:
    """Return the LSN up to which a version's commits are in the history of a slot's next position, None: all."""
    if after.end_lsn == NOTHING and slot not in version.positions:
        return None
    if not version.positions:
        return held_until(SlotPosition(version.end_lsn), after, version.commit_lsn)
    positions = {name: one for name, one in version.positions.items() if one.end_lsn != NOTHING}
    commit_lsn = version.commit_lsn if len(positions) == 1 else NOTHING
    if slot in positions:
        known = (
            after.end_lsn or positions[slot].end_lsn
        )  # the server of a position that is not known yet is known
        return held_until(positions[slot], after._replace(end_lsn=known), commit_lsn)
    # A slot that the version did not have: it may have sent commits from its first position on, and none before.
    bounds = [after.end_lsn]
    for one in positions.values():
        ahead = after._replace(end_lsn=max(after.end_lsn, one.end_lsn))
        if (lsn := held_until(one, ahead, commit_lsn)) is not None:
            bounds.append(lsn)
    return min(bounds)
