"""The errors of halts at the start of a session: what happened, which changes may be missing, and the resolutions.

In: the values that were compared.  Out: errors of the tree, and the resolutions of each.
Invariant: a halt with possibly missing changes has their range in `from_lsn` and `to_lsn`. Each halt names the
commands that resolve it, and only those (`resolutions_of`).
Must not: decide which halt applies (`start_decision` does), do I/O.
"""

from __future__ import annotations

import enum

from cdcd.errors import (
    CdcdError,
    PreparedMissing,
    SlotAhead,
    SlotDroppedByWalGuard,
    SlotLost,
    SlotMissing,
    SlotUnsynchronised,
    SlotUnusable,
    SourceBehind,
    SourceError,
    SourceMismatch,
    SourceTimeline,
    TopicMismatch,
    TopicReplaced,
)
from cdcd.lsn import Lsn, format_lsn


class Resolution(enum.Enum):
    """A command that resolves a halt."""

    ACCEPT_GAP = "cdcd resume --accept-gap"
    RESNAPSHOT = "cdcd resnapshot"


_GAP_OR_SNAPSHOT = frozenset({Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT})
_RESOLUTIONS_BY_HALT: dict[type[CdcdError], frozenset[Resolution]] = {
    SlotMissing: _GAP_OR_SNAPSHOT,
    SlotDroppedByWalGuard: _GAP_OR_SNAPSHOT,
    SlotLost: _GAP_OR_SNAPSHOT,
    SlotAhead: _GAP_OR_SNAPSHOT,
    SlotUnsynchronised: _GAP_OR_SNAPSHOT,
    SourceTimeline: _GAP_OR_SNAPSHOT,
    SourceMismatch: frozenset({Resolution.RESNAPSHOT}),
    SourceBehind: frozenset(),  # the server gives LSNs to new changes that other changes in the topics already have
}
_DECIDED_OTHERWISE = (TopicMismatch, TopicReplaced, PreparedMissing)
_RESOLUTION_HINT = (
    "find the cause first. Run `cdcd resnapshot` to copy the tables again, or `cdcd resume --accept-gap` to "
    "continue without the missing changes; both mark the gap in the topics: see docs/slot-gone.md"
)


def resolutions_of(halt: CdcdError) -> frozenset[Resolution]:
    """Return the commands that resolve this halt; empty if none does."""
    was, now = (halt.context.get(name) for name in ("stored_timeline", "timeline"))
    if isinstance(halt, SourceTimeline) and isinstance(was, int) and isinstance(now, int) and now <= was:
        # Later changes would sort before those in the topics; those of another timeline of the same number do not,
        # if all of them have higher LSNs, which a new snapshot waits for (F58).
        return frozenset({Resolution.RESNAPSHOT}) if now == was else frozenset()
    return _RESOLUTIONS_BY_HALT.get(type(halt), frozenset())


def needs_decision(halt: CdcdError) -> bool:
    """Return whether a retry alone halts again: an operator has to decide about changes, records or a name."""
    return type(halt) in _RESOLUTIONS_BY_HALT or isinstance(halt, _DECIDED_OTHERWISE)


def slot_missing(slot: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """Return the error of a start whose slot does not exist any more."""
    return SlotMissing(
        f'slot "{slot}" does not exist any more. Kafka holds changes up to {format_lsn(from_lsn)}; those committed '
        "since then cannot be read",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_dropped_by_wal_guard(slot: str, why: str, holder: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """Return the error of a slot that the WAL guard drops, or has dropped (F21)."""
    return SlotDroppedByWalGuard(
        f'the WAL guard drops slot "{slot}" to protect the primary\'s disk: {why}; its WAL is held by {holder}. '
        f"Changes committed since {format_lsn(from_lsn)} are lost",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_lost(slot: str, reason: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """Return the error of a slot that the server has invalidated (F23)."""
    return SlotLost(
        f'the server has invalidated slot "{slot}" ({reason}). Kafka holds changes up to {format_lsn(from_lsn)}; '
        "those committed since then are lost",
        hint=_RESOLUTION_HINT,
        slot=slot,
        reason=reason,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_never_read(slot: str, reason: str) -> SourceError:
    """Return the error of an unreadable slot that cdcd has never read: the topics have no records before a gap."""
    return SlotUnusable(
        f'slot "{slot}" cannot be read any more ({reason}), and cdcd has never read from it',
        hint="choose another source.slot.name; or, if no other program reads the slot, run `cdcd drop-slot` and "
        "start cdcd again: it creates the slot. As at each first start, the stream does not have changes "
        "committed before the creation",
        slot=slot,
        reason=reason,
    )


def slot_ahead(slot: str, from_lsn: Lsn, to_lsn: Lsn, *, how: str) -> SourceError:
    """Return the error of a slot confirmed beyond the stored position (F3, F10). `how`: the cause, if known."""
    return SlotAhead(
        f'slot "{slot}" is confirmed up to {format_lsn(to_lsn)}, but Kafka holds changes only up to '
        f"{format_lsn(from_lsn)}: {how}. Changes in between may be missing",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_unsynchronised(slot: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """Return the error of a promoted server whose copy of the slot was not synchronized (F57)."""
    return SlotUnsynchronised(
        f'the server was promoted before its copy of slot "{slot}" was synchronized, so the slot cannot be read. '
        f"Kafka holds changes up to {format_lsn(from_lsn)}",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def other_source(name: str, was: object, now: object, from_lsn: Lsn) -> SourceError:
    """Return the error of a server or database other than that of the stored position."""
    return SourceMismatch(
        f"the stored position belongs to another server or database: {name} was {was}, is {now}",
        hint="point source.dsn at the server and database that cdcd read before; or choose another `name`, which "
        "creates new topics and a new slot; or, if this server has replaced the other server and its WAL ends "
        "later, run `cdcd resnapshot`",
        from_lsn=from_lsn,
    )


def timeline_past(was: int, now: int, switch_lsn: Lsn, from_lsn: Lsn) -> SourceError:
    """Return the error of a server whose timeline was left before the last changes that cdcd wrote (F58)."""
    return SourceTimeline(
        f"the server switched from timeline {was} to {now} at {format_lsn(switch_lsn)}, before the stored position "
        f"{format_lsn(from_lsn)}: Kafka holds changes that are not in the server's history, and the server may "
        "give the LSNs of these changes to others",
        hint="point source.dsn at the server whose history has these changes, if there is one; otherwise "
        f"readers have to drop the changes after switch_lsn: {_RESOLUTION_HINT}",
        switch_lsn=switch_lsn,
        from_lsn=switch_lsn,
        to_lsn=from_lsn,
    )


def timeline_unknown(was: int, now: int, was_lsn: Lsn, left_lsn: Lsn, from_lsn: Lsn) -> SourceError:
    """Return the error of a server whose timeline does not descend from that of the stored position (F58).

    `was_lsn`: where the stored timeline began. `left_lsn`: where the server left the last one before it, which the
    first timeline never does. The histories diverged at the earlier of both. INVALID_LSN: not known.
    """
    is_known = was_lsn and (left_lsn or now == 1)
    return SourceTimeline(
        f"timeline {now} of the server does not descend from timeline {was} of the stored position: the "
        "server is a former primary, was restored to a point in time, or has lost its timeline history",
        hint=_timeline_hint(was, now),
        stored_timeline=was,
        timeline=now,
        from_lsn=min(was_lsn, left_lsn or was_lsn, from_lsn) if is_known else None,
        to_lsn=None,
    )


def timeline_conflict(number: int, now: int, was_lsn: Lsn, began_lsn: Lsn, from_lsn: Lsn) -> SourceError:
    """Return the error of a server that was promoted to another timeline of the same number (F58)."""
    return SourceTimeline(
        f"timeline {number} of this server began at {format_lsn(began_lsn)}, that of the stored position at "
        f"{format_lsn(was_lsn)}: two servers were promoted independently, and each has changes that the other "
        "lacks",
        hint=_timeline_hint(number, now),
        stored_timeline=number,
        timeline=now,
        from_lsn=min(was_lsn, began_lsn, from_lsn),
        to_lsn=None,
    )


def _timeline_hint(was: int, now: int) -> str:
    """Return the hint that names the resolutions: readers sort changes by timeline, then by LSN."""
    former = "point source.dsn at the server that was read before"
    if now > was:
        return f"{former}; {_RESOLUTION_HINT}"
    new_name = "set another `name`, which gives new topics, a new slot and a new snapshot"
    if now < was:
        return f"{former}; if that server does not exist any more, {new_name}"
    return (
        f"{former}; if that server does not exist any more, run `cdcd resnapshot`, which copies the tables again "
        f"once the server's WAL ends after the position in the topics, or {new_name}: see docs/slot-gone.md"
    )


def slot_older(slot: str, made_lsn: Lsn, confirmed_lsn: Lsn) -> SourceError:
    """Return the error of a slot confirmed before the LSN where cdcd created it: the server is an old copy (F62)."""
    return SourceBehind(
        f'slot "{slot}" is confirmed only up to {format_lsn(confirmed_lsn)}, before {format_lsn(made_lsn)}, where '
        "cdcd created it: the server is an older copy",
        hint="point source.dsn at the server that was read before, or choose another `name`",
        slot=slot,
        made_lsn=made_lsn,
        confirmed_lsn=confirmed_lsn,
    )


def server_behind(from_lsn: Lsn, server_lsn: Lsn) -> SourceError:
    """Return the error of a server whose WAL ends before the stored position (F62)."""
    return SourceBehind(
        f"the server's WAL ends at {format_lsn(server_lsn)}, before the stored position {format_lsn(from_lsn)}: "
        "the server was restored, or is another copy",
        hint="point source.dsn at the server that was read before; a restored server gives other changes the LSNs "
        "that the topics have already, so set another `name`, which gives new topics, a new slot and a new "
        "snapshot",
        stored_lsn=from_lsn,
        server_lsn=server_lsn,
        from_lsn=server_lsn,
        to_lsn=from_lsn,
    )
