"""What is prepared when a session begins: which COMMIT PREPARED without rows is a loss. Blocking.

In: a SQL connection, once START_REPLICATION holds the slot; whether the position that the session begins at is
cdcd's own.  Out: `PreparedBefore`.
Invariant: the server sends a transaction whose PREPARE lies in the session's WAL with all it has changed. What it
does not send had nothing, or its PREPARE lies before. cdcd itself never confirms beyond a PREPARE that is undecided
(F33), so before its own position there is none; somebody else may have confirmed one before a slot became cdcd's.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch

_XIDS = 1 << 32

_PREPARED = """
    SELECT p.transaction::text::bigint FROM pg_prepared_xacts p WHERE p.database = current_database() AND EXISTS (
        SELECT FROM pg_locks own JOIN pg_locks held USING (virtualtransaction)
        WHERE own.locktype = 'transactionid' AND own.transactionid = p.transaction AND own.granted
        AND own.pid IS NULL AND held.pid IS NULL AND held.locktype = 'relation'
        AND held.mode NOT IN ('AccessShareLock', 'RowShareLock'))
"""
"""A prepared transaction has no pid; what it has written it has locked more than for reading."""


@dataclass(frozen=True, slots=True)
class PreparedBefore:
    """What was prepared and undecided when the session began.

    `wrote`: the 32-bit xids of those that had locked a table for writing; `next_xid`: the first that was not yet
    given. `is_own_position`: the session begins where cdcd itself has stored that it was.
    """

    wrote: frozenset[int]
    next_xid: int
    is_own_position: bool

    def may_have_rows(self, xid: int) -> bool:
        """Return whether a COMMIT PREPARED of this xid that comes without rows may have lost them."""
        if xid in self.wrote:
            return True
        if self.is_own_position:
            return False
        is_later = (xid - self.next_xid) % _XIDS < _XIDS // 2
        return not is_later


def prepared_before(connection: Connection, *, is_own_position: bool) -> PreparedBefore:
    """Look at what is prepared now. Raises Source errors."""
    ((next_xid,),) = fetch(connection, "SELECT txid_snapshot_xmax(txid_current_snapshot())")
    return PreparedBefore(
        wrote=frozenset(xid for (xid,) in fetch(connection, _PREPARED)),
        next_xid=next_xid % _XIDS,
        is_own_position=is_own_position,
    )
