"""Where to begin: the stored position, the slot and the server compared, before anything is streamed.

In: the last progress record, the slot's state, the server's identity and, where its timeline is not the stored one,
its history; what the configuration wants.
Out: `Resume`, `Snapshot`, or an error of the tree: one to wait for (retry AUTO), or a halt that says why.
Invariant: a position is resumed only when the slot has not been confirmed beyond it (F3) and the server is the
one it was taken from (F10, F58, F62). cdcd confirms nothing that it has not stored first, an idle stream's
position included, so a slot ahead of the store was moved by somebody else.
Must not: do I/O; the shell fetches the arguments and obeys.
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
from cdcd.model import PreparedBefore, Progress, began_at
from cdcd.recovery import halts


class Slot(Protocol):
    """What the verdict reads of a slot (`pg_replication_slots`)."""

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


class Server(Protocol):
    """What the verdict reads of a server (IDENTIFY_SYSTEM)."""

    @property
    def system_identifier(self) -> str: ...  # noqa: D102
    @property
    def timeline(self) -> int: ...  # noqa: D102
    @property
    def database(self) -> str: ...  # noqa: D102
    @property
    def wal_lsn(self) -> Lsn: ...  # noqa: D102
    @property
    def in_recovery(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Resume:
    """Stream from `start_lsn`; drop what has a commit LSN up to `written_commit_lsn` (F4).

    `prepared_before`: what somebody else may have confirmed before. None: PostgreSQL has to be asked, because cdcd
    has not been there yet.
    """

    start_lsn: Lsn
    written_commit_lsn: Lsn
    prepared_before: PreparedBefore | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Make the slot and copy the tables. `begun_topics` hold rows of an attempt that was cut off.

    `commit_lsn` and `end_lsn` are how far the topics had come before: a server that is behind is still seen by them
    when this attempt is cut off as well (F62).
    """

    drop_slot: bool
    begun_topics: tuple[str, ...]
    commit_lsn: Lsn = INVALID_LSN
    end_lsn: Lsn = INVALID_LSN


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration says about the slot and the beginning."""

    slot: str
    create_slot: bool
    snapshot: bool
    two_phase: bool = False


def verdict(
    stored: Progress | None,
    slot: Slot | None,
    server: Server,
    wanted: Wanted,
    history: Mapping[int, Lsn] | None = None,
) -> Resume | Snapshot:
    """Decide how a session begins. Raises a `SourceError` when it must not, or not yet.

    `history`: where the ancestors of the server's timeline were left, needed when it is not the stored one.
    """
    check_primary(server)
    if slot is not None:
        check_ours(slot, server, wanted.slot)
    if stored is not None:
        _check_source(stored, server)
        stored = on_timeline(stored, server.timeline, history or {})
        if stored.end_lsn > server.wal_lsn:
            # Whatever the slot is: what begins here would have LSNs that the topics have already (F62).
            raise halts.server_behind(stored.end_lsn, server.wal_lsn)
        if stored.phase == "snapshot":
            _check_finishable(stored, wanted)
            # The exported snapshot died with its connection (F37): what was copied is copied again, and the
            # slot is made again with it, whatever has become of the first one.
            return Snapshot(slot is not None, stored.snapshot_tables, stored.commit_lsn, stored.end_lsn)
    if slot is not None:
        _check_readable(slot, stored, server, wanted)
    if stored is None:
        return _first_start(slot, server, wanted)
    return _go_on(stored, slot, server, wanted)


def check_primary(server: Server) -> None:
    """Raise SourceStandby, to be waited for: a standby's slots cannot be read, and nothing is made on it (F57)."""
    if server.in_recovery:
        raise SourceStandby("the server is a standby")


def _first_start(slot: Slot | None, server: Server, wanted: Wanted) -> Resume | Snapshot:
    if slot is None:
        if not wanted.create_slot:
            raise SlotMissing(
                "the slot does not exist and source.slot.create is false",
                # With a snapshot wanted, only the daemon can make the slot (F36).
                hint="set source.slot.create: true"
                if wanted.snapshot
                else "run `cdcd init`, or set source.slot.create: true",
                slot=wanted.slot,
            )
        return Snapshot(drop_slot=False, begun_topics=())
    if wanted.snapshot:
        raise SlotUnusable(
            "the slot exists but cdcd has no progress record for it, so the snapshot cannot join the stream",
            hint="it may be another program's, or of a daemon with another name: choose another source.slot.name, "
            "which cdcd makes together with the snapshot. If `cdcd init` made it, set snapshot.mode: never to begin "
            "at its position",
            slot=wanted.slot,
        )
    _check_free(slot, wanted)
    # F34: as long as a slot does not have two_phase, what was prepared comes whole at its COMMIT PREPARED.
    prepared_before = None if slot.two_phase else PreparedBefore()
    start_lsn = slot.confirmed_flush_lsn or 0
    return Resume(start_lsn=start_lsn, written_commit_lsn=0, prepared_before=prepared_before)


def _go_on(stored: Progress, slot: Slot | None, server: Server, wanted: Wanted) -> Resume:
    if slot is None:
        raise halts.slot_missing(wanted.slot, stored.end_lsn, server.wal_lsn)
    confirmed_lsn = slot.confirmed_flush_lsn
    if confirmed_lsn is not None and confirmed_lsn > stored.end_lsn:
        how = _how_ahead(stored, slot)
        raise halts.slot_ahead(wanted.slot, stored.end_lsn, confirmed_lsn, how=how)
    if confirmed_lsn is not None and confirmed_lsn < stored.identity.slot_lsn:
        raise halts.slot_older(wanted.slot, stored.identity.slot_lsn, confirmed_lsn)
    _check_free(slot, wanted)
    return Resume(stored.end_lsn, stored.commit_lsn, stored.prepared_before)


def _how_ahead(stored: Progress, slot: Slot) -> str:
    """Say how a slot came beyond the stored position, as far as it shows.

    A slot is made where the WAL ends, and its restart LSN only ever goes forward: one below the stored position is
    that of the slot which cdcd has read.
    """
    if slot.restart_lsn is not None and slot.restart_lsn < stored.end_lsn:
        return "another consumer has read or advanced it"
    if stored.identity.two_phase not in (None, slot.two_phase):
        return "it was dropped and created again, with another two_phase"
    return "it was dropped and created again, or another consumer has read or advanced it"


def _check_free(slot: Slot, wanted: Wanted) -> None:
    if slot.active:
        # F18, F74: a walsender of our own last session, which the server has not given up yet, is one too.
        raise SlotActive("another walsender holds the slot", slot=wanted.slot)


def check_ours(slot: Slot, server: Server, name: str) -> None:
    """Raise SlotUnusable for a slot that can never be ours, whoever holds it: waiting would not end (F80)."""
    if slot.plugin != "pgoutput" or slot.database != server.database:
        raise SlotUnusable(
            "the slot belongs to another plugin or database",
            hint="it is another program's: choose another source.slot.name",
            slot=name,
            plugin=slot.plugin,
            database=slot.database,
        )


def _check_finishable(stored: Progress, wanted: Wanted) -> None:
    if stored.snapshot_tables and not wanted.snapshot:
        raise SourceSetup(
            "a snapshot was begun and cut off, and snapshot.mode: never would leave its rows as they are",
            hint="set snapshot.mode: initial to take it again, or choose another name",
            slot=wanted.slot,
        )


def _check_readable(slot: Slot, stored: Progress | None, server: Server, wanted: Wanted) -> None:
    if slot.two_phase and not wanted.two_phase:
        # F35: the server sends prepared transactions of such a slot whether or not the stream asks for them.
        # The other way round the server switches the slot itself, at START_REPLICATION and for good.
        hint = "set source.protocol.two_phase: true, and restart cdcd"
        if stored is not None:  # else it may be somebody else's (F80)
            exchange = decoded_at_commit_prepared(wanted.slot)
            hint += (
                "; or exchange the slot for one without it, at its position: run "
                f"{exchange} in the source database, then `cdcd resume`"
            )
        raise SlotUnusable(
            "the slot has two_phase, so it sends transactions at PREPARE, and the configuration has it off",
            hint=hint,
            slot=wanted.slot,
        )
    lost_by = slot.invalidation_reason or ("wal_removed" if slot.wal_status == "lost" else None)
    if stored is None and (lost_by or (slot.synced and slot.temporary)):
        raise halts.slot_never_read(wanted.slot, lost_by or "not synchronised")
    if stored is not None and lost_by:
        raise halts.slot_lost(wanted.slot, lost_by, stored.end_lsn, server.wal_lsn)
    if stored is not None and slot.temporary and slot.synced:
        raise halts.slot_unsynchronised(wanted.slot, stored.end_lsn, server.wal_lsn)
    if slot.temporary:
        raise SlotUnusable(
            "the slot is another session's temporary one",
            hint="choose another source.slot.name",
            slot=wanted.slot,
        )


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

    What was written has to lie before the point where its timeline was left. A position that only an idle stream
    was confirmed to may lie beyond: nothing was written for it, so the session begins at that point, below which
    both timelines are one. A timeline is known by where it began, too: who is promoted takes the next number that it
    knows of, which another server may have taken as well.
    """
    was = stored.identity.timeline
    switch_lsn = history.get(was)
    if was != timeline and switch_lsn is None:
        raise halts.timeline_unknown(was, timeline, stored.end_lsn)
    expected_lsn, began_lsn = stored.identity.timeline_lsn, began_at(was, history)
    if expected_lsn and began_lsn and expected_lsn != began_lsn:
        raise halts.timeline_conflict(was, expected_lsn, began_lsn, stored.end_lsn)
    if switch_lsn is None:
        return stored
    written_lsn = max(stored.commit_lsn, stored.part.commit_lsn if stored.part is not None else 0)
    if written_lsn >= switch_lsn:
        raise halts.timeline_past(was, timeline, switch_lsn, stored.end_lsn)
    return replace(stored, end_lsn=min(stored.end_lsn, switch_lsn))
