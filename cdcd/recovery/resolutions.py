"""The position with which cdcd continues after a halt, when an operator has decided so.

In: the stored position, the halt, slot and server as they are.  Out: the progress record to write instead.
Invariant: the record has the gap, so the next session marks it in the topics before it writes anything else. If later
changes would sort before records that the topics have, by timeline or LSN, readers would confuse them: then there is
no such position.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdcd.errors import CdcdError, ResumeRefused, SourceTimeline
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import (
    CopyState,
    Gap,
    PartPosition,
    PreparedBefore,
    Progress,
    SourceIdentity,
    TableCopyState,
    Timelines,
)
from cdcd.recovery.halts import Resolution, resolutions_of
from cdcd.recovery.start_decision import Server, Slot, is_same_database, on_timeline

REQUESTED = "requested"
"""The reason of a gap that was made only by the request for a new snapshot."""


def check_accepts_gap(halt: CdcdError | None) -> CdcdError:
    """Return the halt, if an accepted gap resolves it. Raises ResumeRefused otherwise."""
    if halt is None:
        raise ResumeRefused(
            "nothing is missing: the slot continues where the stored position ends",
            hint="start cdcd; if it is halted, run `cdcd resume`; if it halts again, follow the hint of that halt",
        )
    if Resolution.ACCEPT_GAP not in resolutions_of(halt):
        raise ResumeRefused(
            f"accepting a gap does not resolve this: {halt.code}: {halt.message}",
            hint=halt.advice or "see the halt's own hint",
        )
    return halt


def needs_new_slot(slot: Slot | None) -> bool:
    """Return whether the slot can never be read again, or does not exist."""
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
    """Return the record that continues at the slot's present position, `slot_lsn`. Raises ResumeRefused.

    After a promotion that discards changes written already (F58), both timelines have the same changes up to the
    switch point, and all of these are written: later changes are new, if the slot is not beyond that point. The
    stream begins earlier if a PREPARE holds the position back (F33).
    """
    if stored.phase == "snapshot":
        raise ResumeRefused(
            "a snapshot is not complete: the rows that it has not copied yet would never arrive",
            hint="`cdcd resnapshot` copies the tables again",
        )
    stored, from_lsn = _on_timeline_of(identity, stored, timelines)
    switch_lsn = halt.context.get("switch_lsn")
    to_lsn, end_lsn = slot_lsn, slot_lsn
    if isinstance(switch_lsn, int):
        to_lsn, end_lsn = max(slot_lsn, switch_lsn), max(slot_lsn, min(switch_lsn, stored.end_lsn))
    allows_parts, written_lsn = isinstance(halt, SourceTimeline), stored.written_lsn
    if allows_parts:
        _check_later(stored, timelines.at(to_lsn))
    is_back = to_lsn <= stored.end_lsn or (allows_parts and to_lsn <= written_lsn)
    if is_back:
        # The gap's LSNs show that the position moves back; on the same timeline, its marker sorts after all records.
        from_lsn = max(_from_lsn(stored), written_lsn + 1)
    return replace(
        stored,
        identity=identity,
        phase="streaming",
        commit_lsn=to_lsn - 1 if is_back else max(stored.commit_lsn, to_lsn - 1),
        end_lsn=end_lsn,
        commit_us=0,  # changes after the gap may have been committed long ago
        offsets={},
        snapshot_tables=(),
        prepared_before=prepared_before,
        # F58: a transaction written in part on another timeline is not sent again, whatever has its LSN on this one.
        part=None if allows_parts else _part_to_resume(stored, to_lsn),
        gap=Gap(from_lsn, to_lsn, _reason(stored, halt.code), now_us),
        copy=_without_copies(stored) if allows_parts else _begun_again(stored.copy),
        signals_at=-1,
    )


def _without_copies(stored: Progress) -> CopyState | None:
    """Return the state of which only the position in the topic of signals is left."""
    return None if stored.next_signal < 0 else CopyState(signals_at=stored.next_signal)


def _begun_again(copy: CopyState | None) -> CopyState | None:
    """Return the state in which copies begin again that a change in the gap makes incomplete.

    Where rows are compared, rows were deleted in this gap, too. Where rows are read by blocks, an update in the gap
    may have moved a row from a block that is still to be read into one that was.
    """
    if copy is None:
        return None
    tables = {
        relid: one.from_the_first_row() if _depends_on_each_change(one) else one
        for relid, one in copy.tables.items()
    }
    return replace(copy, tables=tables)


def _depends_on_each_change(table: TableCopyState) -> bool:
    return table.compared_from is not None or (table.is_by_blocks and not table.is_scanned)


def before_snapshot(
    stored: Progress,
    server: Server,
    identity: SourceIdentity,
    timelines: Timelines,
    topics: Iterable[str],
    reason: str,
    now_us: int,
) -> Progress:
    """Return the record that begins a new snapshot, which empties `topics` first. Raises ResumeRefused."""
    stored, from_lsn = _on_timeline_of(identity, stored, timelines)
    if server.timeline != stored.identity.timeline:
        _check_later(stored, server.timeline)
    written_lsn = stored.written_lsn
    last_lsn = max(written_lsn + 1, stored.end_lsn)
    # Equal is enough: creating the slot writes WAL, and its consistent point is after that.
    if server.wal_lsn < last_lsn:
        raise ResumeRefused(
            "the server's WAL ends before the last changes in the topics: readers sort changes by LSN, and would "
            "treat the new rows as older ones",
            hint="set another `name`, which gives new topics, a new slot and a new snapshot",
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
        gap=Gap(from_lsn, None, _reason(stored, reason), now_us),
        copy=None,
        signals_at=stored.next_signal,
        topics_at=-1,  # the new snapshot does not depend on the record of the topics, which may be wrong
    )


def _check_later(stored: Progress, timeline: int) -> None:
    """Raise ResumeRefused unless later changes, on this timeline, sort after the records in the topics (F58).

    A former primary is on an earlier timeline, and a server made by pg_upgrade begins with timeline 1 again.
    """
    if timeline <= stored.identity.timeline:
        raise ResumeRefused(
            "the server's timeline is not later than that of the changes in the topics: readers sort changes by "
            "timeline, and would treat the new ones as older ones",
            hint="set another `name`, which gives new topics, a new slot and a new snapshot",
            stored_timeline=stored.identity.timeline,
            timeline=timeline,
        )


def _part_to_resume(stored: Progress, to_lsn: Lsn) -> PartPosition | None:
    """Return the part of a transaction that is written already, if the server sends that transaction again."""
    part = stored.part
    return part if part is not None and stored.end_lsn < to_lsn <= part.commit_lsn else None


def _on_timeline_of(identity: SourceIdentity, stored: Progress, timelines: Timelines) -> tuple[Progress, Lsn]:
    """Return the stored position as a start sees it, on its server's timeline, and where the gap begins (F58).

    If the position is not in the history of that timeline, all changes since the histories diverged may be missing;
    INVALID_LSN if that point is not known. A position of another server or database is returned unchanged.
    """
    if is_same_database(stored.identity, identity):
        try:
            stored = on_timeline(stored, timelines.now, timelines.left)
        except SourceTimeline as parted:
            parted_lsn = parted.context["from_lsn"]
            return stored, min(_from_lsn(stored), parted_lsn if isinstance(parted_lsn, int) else INVALID_LSN)
    return stored, _from_lsn(stored)


def _reason(stored: Progress, reason: str) -> str:
    """Return the reason of the gap: a promotion, if an earlier gap has it and was not marked yet.

    By this reason readers know that changes in the topics never happened on this server (F58).
    """
    is_parted = stored.gap is not None and stored.gap.reason == SourceTimeline.code
    return SourceTimeline.code if is_parted else reason


def _from_lsn(stored: Progress) -> Lsn:
    """Return the LSN from which changes may be missing: that of an earlier gap, if it was not marked yet."""
    return stored.end_lsn if stored.gap is None else min(stored.gap.from_lsn, stored.end_lsn)
