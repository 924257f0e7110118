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

_EXISTS = """
    SELECT EXISTS (
        SELECT FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS now,
                    unnest(%s::bigint[]) AS given (xid)
        WHERE coalesce(pg_xact_status((next - (next - xid) %% (1::bigint << 32))::text::xid8), 'unknown')
              NOT IN ('committed', 'in progress'))
"""
"""An xid is the latest of its 32 bits that was given already."""


def any_rolled_back(connection: Connection, xids: Collection[int]) -> bool:
    """Return whether one of these was rolled back, or whether that is not known any more. Raises Source errors."""
    return bool(fetch(connection, _EXISTS, (list(xids),))[0][0])
