"""Queries of a session in addition to the stream, each over a connection of its own. Blocking.

In: the source's settings.  Out: the server's timelines, the slot, transactions prepared before, rolled back xids.
Invariant: a query leaves no connection open, whatever its result.
Must not: be called from the event loop's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from cdcd.model import PreparedBefore, Timelines
from cdcd.recovery.halts import slot_ahead
from cdcd.recovery.start_decision import Resume, check_primary
from cdcd.source.blockers import sessions_holding
from cdcd.source.connection import connect_replication, connect_sql
from cdcd.source.identity import ServerIdentity, check_same_server, identify
from cdcd.source.prepared import prepared_before
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import SlotState, read_slot
from cdcd.source.start_lock import owner_of
from cdcd.source.subtransactions import any_rolled_back
from cdcd.source.timeline import read_history
from cdcd.waits import Blocker


def timelines_of(source: SourceSettings, server: ServerIdentity) -> Timelines:
    """Return the server's timeline and its history (F58). Raises Source errors.

    The history is needed even if the stored position is on this timeline: later changes may have been committed on
    the one before. Another server, such as the former primary, may lack its file, and would give no history (F59).
    """
    if server.timeline == 1:
        return Timelines(1, {})
    with contextlib.closing(connect_replication(source)) as connection:
        check_same_server(connection, server)
        return Timelines(server.timeline, read_history(connection, server.timeline))


def slot_state(source: SourceSettings, expected: ServerIdentity | None = None) -> SlotState | None:
    """Return the slot as it is now, None if it does not exist. Raises Source errors.

    `expected`: the server that has to answer; the slot of another server proves nothing (F59).
    """
    with contextlib.closing(connect_sql(source)) as connection:
        if expected is not None:
            check_same_server(connection, expected)
        return read_slot(connection, source.slot)


def slot_holders(source: SourceSettings) -> tuple[Blocker, ...]:
    """Return the sessions that hold the slot or its start lock. Raises Source errors."""
    with contextlib.closing(connect_sql(source)) as connection:
        slot = read_slot(connection, source.slot)
        pids = {slot.active_pid if slot is not None else None, owner_of(connection, source.slot)}
        return sessions_holding(connection, [pid for pid in pids if pid is not None])


def prepared_before_slot(source: SourceSettings, begin: Resume, expected: ServerIdentity) -> PreparedBefore:
    """Return the transactions prepared before cdcd owned the slot, which may be lost; called with the slot held.

    Raises SlotAhead (F3): the slot may have been advanced between the verdict and START_REPLICATION.
    """
    with contextlib.closing(connect_sql(source)) as connection:
        # F59: checked again now that the stream runs; the session leaves a server that was demoted meanwhile.
        check_primary(identify(connection))
        check_same_server(connection, expected)
        slot = read_slot(connection, source.slot)
        confirmed_lsn = (slot.confirmed_flush_lsn or 0) if slot is not None else 0
        if confirmed_lsn > begin.start_lsn:
            raise slot_ahead(
                source.slot, begin.start_lsn, confirmed_lsn, how="it was advanced while cdcd was starting"
            )
        if not source.two_phase:
            # The server sends all of it at COMMIT PREPARED, whatever was confirmed (F34).
            return PreparedBefore()
        return prepared_before(connection) if begin.prepared_before is None else begin.prepared_before


def is_any_rolled_back(source: SourceSettings, expected: ServerIdentity, xids: Collection[int]) -> bool:
    """Return whether one of these subtransactions of `expected` was rolled back. Raises Source errors."""
    with contextlib.closing(connect_sql(source)) as connection:
        check_same_server(connection, expected)
        return any_rolled_back(connection, xids)
