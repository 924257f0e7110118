"""What a session asks PostgreSQL beside the stream, each question over a connection of its own. Blocking.

In: where the source is.  Out: the server's identity, the slot, what was prepared before, who was rolled back.
Invariant: a question leaves no connection open, whatever its answer.
Must not: be called from the event loop's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from cdcd.errors import PublicationMissing, SlotAhead, SourceSetup
from cdcd.model import PreparedBefore
from cdcd.runtime.recovery import Resume
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity, identify
from cdcd.source.prepared import prepared_before
from cdcd.source.publication import CONFLICT_MEND, conflicting_tables, missing_publications
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import SlotState, read_slot
from cdcd.source.subtransactions import any_rolled_back


def which_server(source: SourceSettings) -> ServerIdentity:
    """Return who the server is, if it can send all that is published.

    Raises SourceSetup for a standby and for what its decoding would fail at, PublicationMissing, and Source errors.
    """
    with contextlib.closing(connect_sql(source)) as connection:
        server = identify(connection)
        if server.in_recovery:
            raise SourceSetup("the server is a standby", hint="point source.dsn at the primary")
        missing = missing_publications(connection, source.publications)
        if missing:
            raise PublicationMissing(
                f"publication does not exist: {', '.join(missing)}",
                hint="create it, or run `cdcd init`; nothing is read without it (F39, F72)",
            )
        conflicting = conflicting_tables(connection, source.publications)
    if conflicting:
        what = "; ".join(f"table {table.schema}.{table.name}: {table.conflict}" for table in conflicting)
        raise SourceSetup(what, hint=CONFLICT_MEND)
    return server


def which_slot(source: SourceSettings) -> SlotState | None:
    """Return the slot as it is now, None when there is none. Raises Source errors."""
    with contextlib.closing(connect_sql(source)) as connection:
        return read_slot(connection, source.slot)


def what_is_prepared(source: SourceSettings, begin: Resume) -> PreparedBefore:
    """Return what was prepared before a slot became cdcd's and may be lost; asked once the slot is held.

    Raises SlotAhead (F3): the slot may have been advanced between the verdict and START_REPLICATION.
    """
    with contextlib.closing(connect_sql(source)) as connection:
        slot = read_slot(connection, source.slot)
        if slot is not None and (slot.confirmed_flush_lsn or 0) > begin.start_lsn:
            raise SlotAhead(
                "the slot was advanced while cdcd was starting",
                hint="find what else reads this slot or has advanced it; then take a new snapshot",
                slot=source.slot,
                stored_lsn=begin.start_lsn,
                confirmed_lsn=slot.confirmed_flush_lsn,
            )
        if not source.two_phase:
            return PreparedBefore()  # all of it comes at COMMIT PREPARED, whatever was confirmed (F34)
        return prepared_before(connection) if begin.prepared_before is None else begin.prepared_before


def is_any_rolled_back(source: SourceSettings, xids: Collection[int]) -> bool:
    """Return whether one of these subtransactions was rolled back. Raises Source errors."""
    with contextlib.closing(connect_sql(source)) as connection:
        return any_rolled_back(connection, xids)
