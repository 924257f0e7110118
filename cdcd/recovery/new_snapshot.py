"""Decide whether a start takes a new snapshot by itself: `snapshot.mode` `when_needed` and `always`.

In: what `verdict` gets.  Out: its verdict, or that of the progress record which requests a new snapshot.
Invariant: the record is the one that `cdcd resnapshot` would write. No slot is dropped that may belong to another
program: a slot beyond the stored position has to be provably the one that cdcd has read. Another server, database or
timeline, and a server that is behind, halt: only an operator knows which server is the right one.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cdcd.errors import (
    CdcdError,
    ResumeRefused,
    SlotAhead,
    SlotDroppedByWalGuard,
    SlotLost,
    SlotMissing,
    SlotUnsynchronised,
    SourceSetup,
)
from cdcd.model import Progress, Timelines
from cdcd.recovery.resolutions import REQUESTED, before_snapshot
from cdcd.recovery.snapshot_modes import REPEATING_MODES, Mode
from cdcd.recovery.start_decision import (
    Resume,
    Server,
    Slot,
    Snapshot,
    StartOptions,
    is_known_slot,
    on_timeline,
    verdict,
)

_RESOLVED = frozenset({SlotMissing, SlotLost, SlotAhead, SlotUnsynchronised, SlotDroppedByWalGuard})
REASONS = (REQUESTED, *sorted(error.code for error in _RESOLVED))
"""Each `Decision.new_snapshot`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a session begins. `stored`: the position that it continues, or the request for a new snapshot.

    `new_snapshot`: why cdcd requests one, the code of a halt or `REQUESTED`; None if it does not.
    """

    verdict: Resume | Snapshot
    stored: Progress | None
    new_snapshot: str | None = None
    halt: CdcdError | None = None
    """The halt that the new snapshot resolves."""


def is_resolved_by(mode: Mode, error: CdcdError) -> bool:
    """Return whether a new snapshot may resolve this error, which has ended a session; the next start decides."""
    return mode in REPEATING_MODES and type(error) in _RESOLVED


def decide(
    stored: Progress | None,
    slot: Slot | None,
    server: Server,
    wanted: StartOptions,
    timelines: Timelines,
    topics: Iterable[str] = (),
    now_us: int = 0,
) -> Decision:
    """Return where a session begins. Raises the errors of `verdict`, unless a new snapshot resolves the halt.

    `topics`: those that hold rows of the published tables; a new snapshot empties them.
    """
    if wanted.mode in REPEATING_MODES and not wanted.create_slot:
        raise SourceSetup(
            f"snapshot.mode is {wanted.mode}, which needs cdcd to create the slot again, but source.slot.create "
            "is false",
            hint="set source.slot.create: true, or another snapshot.mode",
            slot=wanted.slot,
        )
    halt = None
    try:
        found = verdict(stored, slot, server, wanted, timelines.left)
    except CdcdError as error:
        if stored is None or not _resolves(error, slot, stored, wanted, timelines):
            raise
        halt = error
    else:
        if stored is None or isinstance(found, Snapshot) or not wanted.is_due:
            return Decision(found, stored)
    reason = REQUESTED if halt is None else halt.code
    identity = replace(stored.identity, timeline=server.timeline, timeline_lsn=timelines.now_lsn)
    try:
        requested = before_snapshot(stored, server, identity, timelines, topics, reason, now_us)
    except ResumeRefused as error:
        raise halt or error from None
    # The session reads the record of the topics, and resets it.
    requested = replace(requested, topics_at=stored.topics_at)
    begin = verdict(requested, slot, server, wanted, timelines.left)
    return Decision(begin, requested, reason, halt)


def _resolves(
    error: CdcdError, slot: Slot | None, stored: Progress, wanted: StartOptions, timelines: Timelines
) -> bool:
    if not is_resolved_by(wanted.mode, error):
        return False
    if not isinstance(error, SlotAhead):
        return True
    # F58: on the server's timeline, because an idle position of another one may be beyond any slot's restart LSN.
    return slot is not None and is_known_slot(slot, on_timeline(stored, timelines.now, timelines.left))
