"""The position with which cdcd goes on from a halt, when somebody has decided so.

In: the stored position, the halt, slot and server as they are.  Out: the progress record to write instead.
Invariant: the record has the gap, so the next session marks it in the topics before it writes anything else. A
position is never one that makes readers mistake changes for others: where what follows would sort before what the
topics have, by its timeline or its LSN, there is none.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdcd.errors import CdcdError, ResumeRefused, SourceTimeline
from cdcd.lsn import Lsn
from cdcd.model import Gap, PartPosition, PreparedBefore, Progress, SourceIdentity, Timelines
from cdcd.recovery.halts import Resolution, resolutions_of
from cdcd.recovery.start_decision import Server, Slot

REQUESTED = "requested"
"""The reason of a gap that nothing but the wish for a new snapshot has made."""


def check_accepts_gap(halt: CdcdError | None) -> CdcdError:
    """Return the halt that a gap is the way on from. Raises ResumeRefused, or the error that is another's to mend."""
    if halt is None:
        raise ResumeRefused(
            "nothing is missing: the slot goes on where the stored position ends",
            hint="start cdcd; `cdcd resume` has a halted daemon retry",
        )
    if Resolution.ACCEPT_GAP not in resolutions_of(halt):
        raise ResumeRefused(
            f"accepting a gap does not resolve this: {halt.code}: {halt.message}",
            hint=halt.advice or "see the halt's own hint",
        )
    return halt


def needs_new_slot(slot: Slot | None) -> bool:
    """Return whether the slot can never be read again, or is not there."""
    return slot is None or slot.temporary or slot.wal_status == "lost" or slot.invalidation_reason is not None


def after_gap(
    stored: Progress,
    halt: CdcdError,
    slot_lsn: Lsn,
    identity: SourceIdentity,
    timelines: Timelines,
    prepared_before: PreparedBefore,
    now_us: int,
) -> Progress:
    """Return the record that goes on where the slot stands now, at `slot_lsn`. Raises ResumeRefused.

    After a promotion that what was written does not survive (F58), the timelines are one up to the switch point, and
    all of that was written: what comes from there on is new, if the slot is not beyond it. It is read from before
    where a PREPARE holds the position back (F33).
    """
    if stored.phase == "snapshot":
        raise ResumeRefused(
            "a snapshot is not complete: what was not copied of it would be missing for good",
            hint="`cdcd resnapshot` copies the tables again",
        )
    switch_lsn = halt.context.get("switch_lsn")
    to_lsn, end_lsn = slot_lsn, slot_lsn
    if isinstance(switch_lsn, int):
        to_lsn, end_lsn = max(slot_lsn, switch_lsn), max(slot_lsn, min(switch_lsn, stored.end_lsn))
    allows_parts, written_lsn = isinstance(halt, SourceTimeline), _written_lsn(stored)
    if allows_parts:
        _check_later(stored, timelines.at(to_lsn))
    is_back = to_lsn <= stored.end_lsn or (allows_parts and to_lsn <= written_lsn)
    # What goes back is told so, and where the timeline is the same, it is marked behind all that the topics have.
    from_lsn = max(_from_lsn(stored), written_lsn + 1) if is_back else _from_lsn(stored)
    return replace(
        stored,
        identity=identity,
        phase="streaming",
        commit_lsn=to_lsn - 1 if is_back else max(stored.commit_lsn, to_lsn - 1),
        end_lsn=end_lsn,
        commit_us=0,  # what follows the gap may have been committed long ago
        offsets={},
        snapshot_tables=(),
        prepared_before=prepared_before,
        # F58: what is written in part on another timeline does not come again, whatever has its LSN on this one.
        part=None if allows_parts else _part_to_resume(stored, to_lsn),
        gap=Gap(from_lsn, to_lsn, halt.code, now_us),
    )


def before_snapshot(
    stored: Progress,
    server: Server,
    identity: SourceIdentity,
    topics: Iterable[str],
    reason: str,
    now_us: int,
) -> Progress:
    """Return the record that begins a new snapshot, which empties `topics` first. Raises ResumeRefused."""
    if server.timeline != stored.identity.timeline:
        _check_later(stored, server.timeline)
    written_lsn = _written_lsn(stored)
    last_lsn = max(written_lsn + 1, stored.end_lsn)
    # Equal is enough: the slot that is made next writes WAL, and its consistent point lies behind that.
    if server.wal_lsn < last_lsn:
        raise ResumeRefused(
            "the server's WAL ends before what the topics have: readers put changes in the order of their LSNs, and "
            "would take the new rows for older ones",
            hint="use another name: it gives new topics, a new slot and a new snapshot",
            stored_lsn=last_lsn,
            server_lsn=server.wal_lsn,
        )
    return replace(
        stored,
        identity=identity,
        phase="snapshot",
        commit_lsn=written_lsn,
        offsets={},
        snapshot_tables=tuple(sorted({*stored.snapshot_tables, *topics})),
        prepared_before=PreparedBefore(),
        part=None,
        gap=Gap(_from_lsn(stored), None, reason, now_us),
        topics_at=-1,  # nothing of the topics is counted on any more, and the record of them may be what is amiss
    )


def _check_later(stored: Progress, timeline: int) -> None:
    """Raise ResumeRefused unless what follows, on this timeline, sorts behind what was written (F58).

    A former primary is on an earlier one, and a server that pg_upgrade has made begins at the first again.
    """
    if timeline <= stored.identity.timeline:
        raise ResumeRefused(
            "what follows is of a timeline that is not later than that of what the topics have: readers put changes "
            "in the order of their timelines, and would take the new ones for older",
            hint="use another name: it gives new topics, a new slot and a new snapshot",
            stored_timeline=stored.identity.timeline,
            timeline=timeline,
        )


def _part_to_resume(stored: Progress, to_lsn: Lsn) -> PartPosition | None:
    """Return the part of a transaction that is written already, if the server sends that transaction again."""
    part = stored.part
    return part if part is not None and stored.end_lsn < to_lsn <= part.commit_lsn else None


def _written_lsn(stored: Progress) -> Lsn:
    """Return the highest commit LSN that a topic has: of the last whole transaction, or of one written in part."""
    return max(stored.commit_lsn, stored.part.commit_lsn if stored.part is not None else 0)


def _from_lsn(stored: Progress) -> Lsn:
    """Return since when changes may be missing: since an earlier gap, if no topic was told of it yet."""
    return stored.end_lsn if stored.gap is None else min(stored.gap.from_lsn, stored.end_lsn)
