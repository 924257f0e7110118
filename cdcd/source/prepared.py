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

_NEXT = "SELECT txid_snapshot_xmax(txid_current_snapshot())"
_PREPARED = "SELECT transaction::text::bigint FROM pg_prepared_xacts WHERE database = current_database()"


@dataclass(frozen=True, slots=True)
class PreparedBefore:
    """The xids (32 bits) that were prepared and undecided when the session began.

    `next_xid` is behind all that had ended by then. `is_own_position`: the session begins where cdcd itself has
    stored that it was.
    """

    next_xid: int
    undecided: frozenset[int]
    is_own_position: bool

    @property
    def may_be_lost(self) -> int:
        """How many undecided transactions may have been confirmed by somebody else before."""
        return 0 if self.is_own_position else len(self.undecided)

    def may_have_rows(self, xid: int) -> bool:
        """Return whether a COMMIT PREPARED of this xid that comes without rows may have lost them."""
        if self.is_own_position:
            return False
        is_later = (xid - self.next_xid) % _XIDS < _XIDS // 2
        return xid in self.undecided or not is_later


def prepared_before(connection: Connection, *, is_own_position: bool) -> PreparedBefore:
    """Look at what is prepared now. Raises Source errors."""
    ((next_xid,),) = fetch(connection, _NEXT)
    undecided = frozenset(xid for (xid,) in fetch(connection, _PREPARED))
    return PreparedBefore(next_xid % _XIDS, undecided, is_own_position)
