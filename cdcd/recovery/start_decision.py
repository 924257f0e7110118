"""Decide where a session begins: compare the stored position, the slot and the server before anything is streamed.

In: the last progress record, the slot's state, the server's identity, the history of its timeline if that is not the
stored one, the options of the configuration.
Out: `Resume`, `Snapshot`, or an error of the tree: one to wait for (retry AUTO), or a halt with its reason.
Invariant: a position is resumed only if the slot has not been confirmed beyond it (F3) and the server is the one of
the position (F10, F58, F62). cdcd stores every position before it confirms the position, also on an idle stream, so
another program has moved a slot that is ahead of the stored position.
Must not: do I/O; the caller fetches the arguments and acts on the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cdcd.errors import (
    SlotActive,
    SlotMissing,
    SlotUnusable,
    SourceSetup,
    SourceStandby,
    decoded_at_commit_prepared,
)
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import CopyState, PreparedBefore, Progress, began_at
from cdcd.recovery import halts
from cdcd.recovery.snapshot_modes import COPYING_MODES, Mode


class Slot(Protocol):
    """The columns of `pg_replication_slots` that the verdict depends on."""

    @property
    def plugin(self) -> str | None: ...  # noqa: D102
    @property
    def database(self) -> str | None: ...  # noqa: D102
    @property
    def active(self) -> bool: ...  # noqa: D102
    @property
    def temporary(self) -> bool: ...  # noqa: D102
    @property
    def synced(self) -> bool: ...  # noqa: D102
    @property
    def restart_lsn(self) -> Lsn | None: ...  # noqa: D102
    @property
    def confirmed_flush_lsn(self) -> Lsn | None: ...  # noqa: D102
    @property
    def wal_status(self) -> str | None: ...  # noqa: D102
    @property
    def invalidation_reason(self) -> str | None: ...  # noqa: D102
    @property
    def two_phase(self) -> bool: ...  # noqa: D102


class DatabaseIdentity(Protocol):
    """A database and its server."""

    @property
    def system_identifier(self) -> str: ...  # noqa: D102
    @property
    def database(self) -> str: ...  # noqa: D102


class Server(DatabaseIdentity, Protocol):
    """The values of IDENTIFY_SYSTEM that the verdict depends on."""

    @property
    def timeline(self) -> int: ...  # noqa: D102
    @property
    def wal_lsn(self) -> Lsn: ...  # noqa: D102
    @property
    def in_recovery(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Resume:
    """Stream from `start_lsn`; drop transactions with a commit LSN up to `written_commit_lsn` (F4).

    `prepared_before`: prepared transactions that another consumer may have confirmed. None: PostgreSQL has to be
    queried, because cdcd has not used the slot yet.
    """

    start_lsn: Lsn
    written_commit_lsn: Lsn
    prepared_before: PreparedBefore | None
    copy: CopyState | None = None
    """The floors of tables that were copied at a later point than the stream's start."""


@dataclass(frozen=True, slots=True)
class CopyLeft:
    """The rest of an interrupted snapshot, whose slot exists. The stream begins at `stream_lsn`.

    `since_us`: from this time on, commits may not be durable until the copy is complete.
    """

    state: CopyState
    stream_lsn: Lsn
    since_us: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Create the slot and copy the tables. `begun_topics` may have rows of an interrupted attempt.

    `commit_lsn` and `end_lsn`: the position of the topics before. They detect a server that is behind, also if this
    attempt is interrupted as well (F62).
    """

    drop_slot: bool
    begun_topics: tuple[str, ...]
    commit_lsn: Lsn = INVALID_LSN
    end_lsn: Lsn = INVALID_LSN
    left: CopyLeft | None = None
    """Copy only these tables, and keep the slot."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of the configuration that concern the slot and the start."""

    slot: str
    create_slot: bool
    mode: Mode
    two_phase: bool = False
    is_due: bool = False
    """Whether a process with `always` has yet to begin its snapshot."""

    @property
    def snapshot(self) -> bool:
        """Whether a first start copies the tables."""
        return self.mode in COPYING_MODES

    @property
    def snapshot_only(self) -> bool:
        """Whether no stream follows the snapshot, so that a complete one needs no slot."""
        return self.mode == "initial_only"


def verdict(
    stored: Progress | None,
    slot: Slot | None,
    server: Server,
    wanted: StartOptions,
    history: Mapping[int, Lsn] | None = None,
) -> Resume | Snapshot:
    """Decide how a session begins. Raises a `SourceError` if it must not begin, or not yet.

    `history`: the LSNs at which the ancestors of the server's timeline were left, needed if it is not the stored one.
    """
    check_primary(server)
    if slot is not None:
        check_ours(slot, server, wanted.slot, stored)
    if stored is not None:
        _check_source(stored, server)
        stored = on_timeline(stored, server.timeline, history or {})
        last_lsn = max(stored.end_lsn, stored.copy.point_lsn if stored.copy is not None else INVALID_LSN)
        if last_lsn > server.wal_lsn:
            # Whatever the slot's state: new changes would get LSNs that the topics have already (F62).
            raise halts.server_behind(last_lsn, server.wal_lsn)
        if stored.phase == "snapshot":
            _check_finishable(stored, wanted)
            # The exported snapshot ended with its connection (F37).
            return _finish_snapshot(stored, slot, wanted)
    if slot is not None:
        _check_readable(slot, stored, server, wanted)
    if stored is None:
        return _first_start(slot, server, wanted)
    return _go_on(stored, slot, server, wanted)


def is_anew(begin: Resume | Snapshot | None) -> bool:
    """Return whether all tables are copied, so that nothing of the topics' history is needed."""
    return isinstance(begin, Snapshot) and begin.left is None


def check_primary(server: Server) -> None:
    """Raise SourceStandby, which is retried: a standby's slots cannot be read, and none is created there (F57)."""
    if server.in_recovery:
        raise SourceStandby("the server is a standby")


def _first_start(slot: Slot | None, server: Server, wanted: StartOptions) -> Resume | Snapshot:
    if slot is None:
        if not wanted.create_slot:
            raise SlotMissing(
                "the slot does not exist and source.slot.create is false",
                # For a snapshot, only the daemon can create the slot (F36).
                hint="set source.slot.create: true"
                if wanted.snapshot
                else "run `cdcd init`, or set source.slot.create: true",
                slot=wanted.slot,
            )
        return Snapshot(drop_slot=False, begun_topics=())
    if wanted.snapshot:
        raise SlotUnusable(
            "the slot exists but cdcd has no progress record for it, so the snapshot cannot join the stream",
            hint="the slot may belong to another program, or to a daemon with another name: choose another "
            "source.slot.name, which cdcd creates together with the snapshot. If `cdcd init` created the slot, set "
            "snapshot.mode: never to begin at its position",
            slot=wanted.slot,
        )
    _check_free(slot, wanted)
    # F34: without two_phase, the server sends a prepared transaction completely at its COMMIT PREPARED.
    prepared_before = None if slot.two_phase else PreparedBefore()
    start_lsn = slot.confirmed_flush_lsn or 0
    return Resume(start_lsn=start_lsn, written_commit_lsn=0, prepared_before=prepared_before)


def _go_on(stored: Progress, slot: Slot | None, server: Server, wanted: StartOptions) -> Resume:
    if slot is None:
        raise halts.slot_missing(wanted.slot, stored.end_lsn, server.wal_lsn)
    confirmed_lsn = slot.confirmed_flush_lsn
    if confirmed_lsn is not None and confirmed_lsn > stored.end_lsn:
        how = _how_ahead(stored, slot)
        raise halts.slot_ahead(wanted.slot, stored.end_lsn, confirmed_lsn, how=how)
    if confirmed_lsn is not None and confirmed_lsn < stored.identity.slot_lsn:
        raise halts.slot_older(wanted.slot, stored.identity.slot_lsn, confirmed_lsn)
    _check_free(slot, wanted)
    return Resume(stored.end_lsn, stored.commit_lsn, stored.prepared_before, stored.copy)


def _how_ahead(stored: Progress, slot: Slot) -> str:
    """Return how a slot got beyond the stored position, as far as its state shows."""
    if is_known_slot(slot, stored):
        return "another consumer has read or advanced it"
    if stored.identity.two_phase not in (None, slot.two_phase):
        return "the slot was recreated with another two_phase"
    return "the slot was recreated, or another consumer has read or advanced it"


def is_known_slot(slot: Slot, stored: Progress) -> bool:
    """Return whether this is provably the slot that cdcd has read.

    A slot is created at the end of the WAL, and its restart LSN never moves back, so a restart LSN below the stored
    position proves it.
    """
    return slot.restart_lsn is not None and slot.restart_lsn < stored.end_lsn


def _finish_snapshot(stored: Progress, slot: Slot | None, wanted: StartOptions) -> Snapshot:
    """Copy what is left of the snapshot, if its slot still exists; otherwise copy all tables, with a new slot."""
    again = Snapshot(slot is not None, stored.snapshot_tables, stored.commit_lsn, stored.end_lsn)
    if wanted.snapshot_only and stored.copy is not None and not stored.copy.pending:
        # Complete, except for tables that an earlier version may have left: those that are still to be copied are.
        return replace(again, drop_slot=False, left=CopyLeft(stored.copy, stored.end_lsn, stored.commit_us))
    if stored.copy is None or slot is None or not _is_unread(slot, stored, wanted):
        return again
    _check_free(slot, wanted)
    return replace(again, drop_slot=False, left=CopyLeft(stored.copy, stored.end_lsn, stored.commit_us))


def _is_unread(slot: Slot, stored: Progress, wanted: StartOptions) -> bool:
    """Return whether this is the slot of the stored snapshot, and its stream can still begin at the same point."""
    is_lost = slot.invalidation_reason is not None or slot.wal_status == "lost"
    is_same = slot.confirmed_flush_lsn == stored.identity.slot_lsn == stored.end_lsn and not slot.temporary
    return is_same and not is_lost and slot.two_phase in (False, wanted.two_phase)


def _check_free(slot: Slot, wanted: StartOptions) -> None:
    if slot.active:
        # F18, F74: this may also be the walsender of our own last session, which the server has not ended yet.
        raise SlotActive("another walsender holds the slot", slot=wanted.slot)


def check_ours(slot: Slot, server: Server, name: str, stored: Progress | None) -> None:
    """Raise SlotUnusable for a slot that can never be ours, so that cdcd does not wait for its holder (F80).

    Raises SourceMismatch if the server or the database is the wrong one: the slot may be our own, of the right one.
    """
    if slot.plugin != "pgoutput" or slot.database != server.database:
        if stored is not None:
            _check_source(stored, server)
        raise SlotUnusable(
            "the slot belongs to another plugin or database",
            hint="the slot belongs to another program: choose another source.slot.name",
            slot=name,
            plugin=slot.plugin,
            database=slot.database,
        )


def _check_finishable(stored: Progress, wanted: StartOptions) -> None:
    is_left = stored.snapshot_tables or (stored.copy is not None and stored.copy.incomplete)
    if is_left and not wanted.snapshot:
        raise SourceSetup(
            f"a snapshot was interrupted, and with snapshot.mode: {wanted.mode} its rows would remain incomplete",
            hint="set snapshot.mode: initial to complete it, or choose another name",
            slot=wanted.slot,
        )


def _check_readable(slot: Slot, stored: Progress | None, server: Server, wanted: StartOptions) -> None:
    if slot.two_phase and not wanted.two_phase:
        # F35: the server sends prepared transactions of such a slot whether or not the stream asks for them.
        # In the opposite case the server switches the slot at START_REPLICATION, permanently.
        hint = "set source.protocol.two_phase: true, and restart cdcd"
        if stored is not None:  # else the slot may be another program's (F80)
            exchange = decoded_at_commit_prepared(wanted.slot)
            hint += (
                "; or replace the slot with one at the same position, without two_phase: run "
                f"{exchange} in the source database, then `cdcd resume`"
            )
        raise SlotUnusable(
            "the slot has two_phase on, so the server sends transactions at PREPARE, but "
            "source.protocol.two_phase is false",
            hint=hint,
            slot=wanted.slot,
        )
    lost_by = slot.invalidation_reason or ("wal_removed" if slot.wal_status == "lost" else None)
    if stored is None and (lost_by or (slot.synced and slot.temporary)):
        raise halts.slot_never_read(wanted.slot, lost_by or "not synchronized")
    if stored is not None and lost_by:
        raise halts.slot_lost(wanted.slot, lost_by, stored.end_lsn, server.wal_lsn)
    if stored is not None and slot.temporary and slot.synced:
        raise halts.slot_unsynchronised(wanted.slot, stored.end_lsn, server.wal_lsn)
    if slot.temporary:
        raise SlotUnusable(
            "the slot is a temporary slot of another session",
            hint="choose another source.slot.name",
            slot=wanted.slot,
        )


def is_same_database(one: DatabaseIdentity, other: DatabaseIdentity) -> bool:
    """Return whether both are of one database of one server, whatever its timeline."""
    return (one.system_identifier, one.database) == (other.system_identifier, other.database)


def _check_source(stored: Progress, server: Server) -> None:
    expected = stored.identity
    for name, was, now in (
        ("system_identifier", expected.system_identifier, server.system_identifier),
        ("database", expected.database, server.database),
    ):
        if was != now:
            raise halts.other_source(name, was, now, stored.end_lsn)


def on_timeline(stored: Progress, timeline: int, history: Mapping[int, Lsn]) -> Progress:
    """Return the stored position as it is on the server's timeline (F58). Raises SourceTimeline.

    All written changes have to be before the point where their timeline was left. The position of an idle stream may
    be beyond that point: no changes were written there, so the session begins at the point, before which both
    timelines have the same WAL. The LSN where a timeline began identifies it too: a promoted server takes the next
    number that it knows, which another server may have taken as well.
    """
    was = stored.identity.timeline
    switch_lsn = history.get(was)
    expected_lsn, began_lsn = stored.identity.timeline_lsn, began_at(was, history)
    if was != timeline and switch_lsn is None:
        raise halts.timeline_unknown(was, timeline, expected_lsn, began_lsn, stored.end_lsn)
    if expected_lsn and began_lsn and expected_lsn != began_lsn:
        raise halts.timeline_conflict(was, timeline, expected_lsn, began_lsn, stored.end_lsn)
    if switch_lsn is None:
        return stored
    if stored.written_lsn >= switch_lsn:
        raise halts.timeline_past(was, timeline, switch_lsn, stored.end_lsn)
    return replace(stored, end_lsn=min(stored.end_lsn, switch_lsn))
