"""Find rolled-back subtransactions by the server's transaction status. Blocking.

In: a SQL connection to a server that streams (PostgreSQL 14 and later), 32-bit xids of subtransactions whose
transaction has ended or is prepared.  Out: whether one was rolled back, or is too old for the server to know.
Invariant: the server records a rollback before the session continues, thus before it sends the transaction's end. Any
other subtransaction is committed, or still in progress while the server completes the commit.
Must not: change anything.
"""

from __future__ import annotations

from collections.abc import Collection

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch

_XIDS = 1 << 32

_ENDED = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_EXISTS = """
    SELECT EXISTS (
        SELECT FROM unnest(%s::bigint[]) AS given (xid)
        WHERE coalesce(pg_xact_status(xid::text::xid8), 'unknown') NOT IN ('committed', 'in progress'))
"""


def any_rolled_back(connection: Connection, xids: Collection[int]) -> bool:
    """Return whether one of these was rolled back or has an unknown status. Raises Source errors."""
    ((ended,),) = fetch(connection, _ENDED)
    ((found,),) = fetch(connection, _EXISTS, ([with_epoch(xid, ended) for xid in xids],))
    return bool(found)


def with_epoch(xid: int, ended: int) -> int:
    """Return the 64-bit xid that is nearest to the last ended one; a prepared transaction's xid may be higher.

    0, which is invalid, for an xid from before the first epoch.
    """
    return max(0, ended + (xid - ended + _XIDS // 2) % _XIDS - _XIDS // 2)
