"""What a halt at the beginning of a session says: what has happened, what may be missing, and the ways on.

In: what was compared.  Out: errors of the tree, and the ways on that each has.
Invariant: a halt where changes may be missing names between which LSNs, as `from_lsn` and `to_lsn`; each names the
commands that go on, and only those that are allowed for it (`ways_on`).
Must not: decide which halt it is (`start_decision` does), do I/O.
"""

from __future__ import annotations

import enum

from cdcd.errors import (
    CdcdError,
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
)
from cdcd.lsn import Lsn, format_lsn


class Resolution(enum.Enum):
    """A command that goes on from a halt."""

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
    SourceBehind: frozenset(),  # its LSNs are those of other changes, which the topics have already
}
_RESOLUTION_HINT = (
    "find the cause first. Run `cdcd resnapshot` to copy the tables again, or `cdcd resume --accept-gap` to continue "
    "without the missing changes; both mark the gap in the topics: see docs/slot-gone.md"
)


def resolutions_of(halt: CdcdError) -> frozenset[Resolution]:
    """Return the commands that go on from this halt; none where none mends it."""
    return _RESOLUTIONS_BY_HALT.get(type(halt), frozenset())


def slot_missing(slot: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """The slot of the stored position is gone."""
    return SlotMissing(
        f'slot "{slot}" does not exist any more. Kafka holds changes up to {format_lsn(from_lsn)}; those committed '
        "since then cannot be read",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_dropped_by_wal_guard(slot: str, why: str, holder: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """The WAL guard gives the slot up, or has (F21)."""
    return SlotDroppedByWalGuard(
        f'the WAL guard gives slot "{slot}" up to save the primary\'s disk: {why}; its WAL is held by {holder}. '
        f"Changes committed since {format_lsn(from_lsn)} are lost",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_lost(slot: str, reason: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """The server has given the slot up (F23)."""
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
    """The slot cannot be read, and cdcd never has: the topics have nothing that a gap could be in."""
    return SlotUnusable(
        f'slot "{slot}" cannot be read any more ({reason}), and cdcd has never read from it',
        hint="choose another source.slot.name; or, if no other program reads it, `cdcd drop-slot` and start again: "
        "cdcd creates it again; changes committed before are not in "
        "the stream, as with every first start",
        slot=slot,
        reason=reason,
    )


def slot_ahead(slot: str, from_lsn: Lsn, to_lsn: Lsn, *, how: str) -> SourceError:
    """The slot stands beyond what cdcd has written (F3, F10); `how` it came there."""
    return SlotAhead(
        f'slot "{slot}" is confirmed up to {format_lsn(to_lsn)}, but Kafka holds changes only up to '
        f"{format_lsn(from_lsn)}: {how}. Changes in between may be missing",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def slot_unsynchronised(slot: str, from_lsn: Lsn, to_lsn: Lsn) -> SourceError:
    """The promoted server's copy of the slot was not usable yet (F57)."""
    return SlotUnsynchronised(
        f'the server was promoted before its copy of slot "{slot}" was synchronized, so the slot cannot be read. '
        f"Kafka holds changes up to {format_lsn(from_lsn)}",
        hint=_RESOLUTION_HINT,
        slot=slot,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
    )


def other_source(name: str, was: object, now: object, from_lsn: Lsn) -> SourceError:
    """The server or its database is not the one that was read."""
    return SourceMismatch(
        f"the stored position belongs to another server or database: {name} was {was}, is {now}",
        hint="point source.dsn at the one that was read before; or use another name, which gives new topics and a "
        "new slot; or, if this server has replaced the other and its WAL is further, run `cdcd resnapshot`",
        from_lsn=from_lsn,
    )


def timeline_past(was: int, now: int, switch_lsn: Lsn, from_lsn: Lsn) -> SourceError:
    """What cdcd wrote last never happened on the server's timeline (F58)."""
    return SourceTimeline(
        f"the server switched from timeline {was} to {now} at {format_lsn(switch_lsn)}, before the stored position "
        f"{format_lsn(from_lsn)}: Kafka holds changes that are not in the server's history, and other changes may "
        "get their LSNs",
        hint="point source.dsn at the server whose history has them, if there is one; readers have to drop the "
        f"changes after switch_lsn; {_RESOLUTION_HINT}",
        switch_lsn=switch_lsn,
        from_lsn=switch_lsn,
        to_lsn=from_lsn,
    )


def timeline_unknown(was: int, now: int, from_lsn: Lsn) -> SourceError:
    """The server's timeline does not come from that of the stored position (F58)."""
    return SourceTimeline(
        f"timeline {now} of the server does not descend from timeline {was} of the stored position: the "
        "server is a former primary, was restored to a point in time, or has lost its timeline history",
        hint=f"point source.dsn at the server that was read before; {_RESOLUTION_HINT}",
        from_lsn=from_lsn,
        to_lsn=None,
    )


def timeline_conflict(number: int, was_lsn: Lsn, began_lsn: Lsn, from_lsn: Lsn) -> SourceError:
    """Another server was promoted to a timeline of the same number (F58)."""
    return SourceTimeline(
        f"timeline {number} of this server began at {format_lsn(began_lsn)}, that of the stored position at "
        f"{format_lsn(was_lsn)}: two servers were promoted independently, and each has changes that the other lacks",
        hint=f"point source.dsn at the server that was read before; {_RESOLUTION_HINT}",
        from_lsn=min(was_lsn, began_lsn, from_lsn),
        to_lsn=None,
    )


def slot_older(slot: str, made_lsn: Lsn, confirmed_lsn: Lsn) -> SourceError:
    """The slot stands before the point where cdcd made it: this server parted from the other one before (F62)."""
    return SourceBehind(
        f'slot "{slot}" is confirmed only up to {format_lsn(confirmed_lsn)}, before {format_lsn(made_lsn)}, where '
        "cdcd created it: the server is an older copy",
        hint="point source.dsn at the server that was read before, or use another name",
        slot=slot,
        made_lsn=made_lsn,
        confirmed_lsn=confirmed_lsn,
    )


def server_behind(from_lsn: Lsn, server_lsn: Lsn) -> SourceError:
    """The server's WAL does not reach to the stored position (F62)."""
    return SourceBehind(
        f"the server's WAL ends at {format_lsn(server_lsn)}, before the stored position {format_lsn(from_lsn)}: it "
        "was restored, or is another copy",
        hint="point source.dsn at the server that was read before; a restored server gives other changes the LSNs "
        "that the topics have already, so use another name: it gives new topics, a new slot and a new snapshot",
        stored_lsn=from_lsn,
        server_lsn=server_lsn,
        from_lsn=server_lsn,
        to_lsn=from_lsn,
    )
