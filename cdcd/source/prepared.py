"""Find the transactions that are prepared when cdcd first uses a slot that another client has confirmed. Blocking.

In: a SQL connection, after START_REPLICATION has acquired the slot.  Out: `PreparedBefore`.
Invariant: the server sends a transaction with all its changes if its PREPARE is not below the session's start LSN.
cdcd itself never confirms beyond an undecided PREPARE (F33), but a previous client of the slot may have. Every later
COMMIT PREPARED without rows is of a transaction in the result, or of one without changes; a transaction that only
locked rows looks the same and is also in the result. Later sessions do not query this, since the result would differ:
the progress record stores it.
"""

from __future__ import annotations

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.model import PreparedBefore
from cdcd.source.connection import fetch

# The server does not send decisions of other databases.
_UNDECIDED = """
    SELECT transaction::text::bigint, gid FROM pg_prepared_xacts WHERE database = current_database()
"""
_WAL_LSN = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


def prepared_before(connection: Connection) -> PreparedBefore:
    """Return the currently prepared transactions, and the end of the WAL. Raises Source errors."""
    undecided = frozenset((xid, gid) for xid, gid in fetch(connection, _UNDECIDED))
    # After the query: the decision of a transaction that it did not return is already in the WAL, below this LSN.
    ((until_lsn,),) = fetch(connection, _WAL_LSN)
    return PreparedBefore(int(until_lsn), undecided)
