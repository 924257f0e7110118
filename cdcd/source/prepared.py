"""What is prepared when cdcd first holds a slot that somebody else has confirmed. Blocking.

In: a SQL connection, once START_REPLICATION holds the slot.  Out: `PreparedBefore`.
Invariant: the server sends a transaction whose PREPARE does not begin below the session's start with all it has
changed. cdcd itself never confirms beyond a PREPARE that is undecided (F33), but somebody else may have before the
slot became cdcd's: whatever has a COMMIT PREPARED without rows then is in what is returned here, or had none. What
has only locked rows looks the same and is in it as well. Later sessions do not ask, since the answer would be another
by then: the progress record keeps it.
"""

from __future__ import annotations

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.model import PreparedBefore
from cdcd.source.connection import fetch

# Decisions of other databases are not sent.
_UNDECIDED = """
    SELECT transaction::text::bigint, gid FROM pg_prepared_xacts WHERE database = current_database()
"""
_WAL_LSN = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


def prepared_before(connection: Connection) -> PreparedBefore:
    """Look at what is prepared now, and where the WAL is. Raises Source errors."""
    undecided = frozenset((xid, gid) for xid, gid in fetch(connection, _UNDECIDED))
    # Only now: the decision of what was not prepared any more stands in the WAL, so below this.
    ((until_lsn,),) = fetch(connection, _WAL_LSN)
    return PreparedBefore(int(until_lsn), undecided)
