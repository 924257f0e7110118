"""Which subtransactions were rolled back, by the server's own account of transaction ids. Blocking.

In: a SQL connection to a server that streams (PostgreSQL 14 and later), 32-bit xids of subtransactions whose
transaction has ended or is prepared.  Out: whether one was rolled back, or is so old that nobody knows.
Invariant: a subtransaction is marked as rolled back before its session goes on, so before its transaction's end is
sent; one that was kept is committed, or in progress still where the server is not done with the commit yet.
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
    """Return whether one of these was rolled back, or whether that is not known any more. Raises Source errors."""
    ((ended,),) = fetch(connection, _ENDED)
    ((found,),) = fetch(connection, _EXISTS, ([with_epoch(xid, ended) for xid in xids],))
    return bool(found)


def with_epoch(xid: int, ended: int) -> int:
    """Return the xid of 64 bits that is nearest to what has ended last; what is prepared may lie beyond.

    0, which is none, for one from before the first epoch.
    """
    return max(0, ended + (xid - ended + _XIDS // 2) % _XIDS - _XIDS // 2)
