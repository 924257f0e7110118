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

_NOW = """
    SELECT txid_snapshot_xmax(txid_current_snapshot()),
           (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())
"""


@dataclass(frozen=True, slots=True)
class PreparedBefore:
    """The first xid (32 bits) that was not yet given when the session began, and how many were undecided then.

    `is_own_position`: the session begins where cdcd itself has stored that it was.
    """

    next_xid: int
    undecided: int
    is_own_position: bool

    @property
    def may_be_lost(self) -> int:
        """How many undecided transactions may have been confirmed by somebody else before."""
        return 0 if self.is_own_position else self.undecided

    def may_have_rows(self, xid: int) -> bool:
        """Return whether a COMMIT PREPARED of this xid that comes without rows may have lost them."""
        if self.is_own_position:
            return False
        is_later = (xid - self.next_xid) % _XIDS < _XIDS // 2
        return not is_later


def prepared_before(connection: Connection, *, is_own_position: bool) -> PreparedBefore:
    """Look at what is prepared now. Raises Source errors."""
    ((next_xid, undecided),) = fetch(connection, _NOW)
    return PreparedBefore(next_xid % _XIDS, undecided, is_own_position)
