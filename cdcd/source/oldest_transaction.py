"""Find the oldest writing transaction of the server, which also makes the slot retain WAL (F22). Blocking.

In: a SQL connection.  Out: the transaction's description, and its age.
Invariant: prepared transactions count, in every database. Transactions that this role may not see are left out.
Must not: show the queries of a transaction.
"""

from __future__ import annotations

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch

# Only a transaction with an xid holds back restart_lsn. Other roles' xact_start is NULL without pg_read_all_stats.
_OLDEST = """
    SELECT format('pid %s of %s in database %s (%s)', pid, usename, datname,
                  coalesce(nullif(application_name, ''), 'no application name')) AS name,
           extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s
    FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT format('prepared transaction %s of %s in database %s', quote_literal(gid), owner, database),
           extract(epoch FROM clock_timestamp() - prepared)::float8
    FROM pg_prepared_xacts
    ORDER BY age_s DESC LIMIT 1
"""


def oldest_writer(connection: Connection) -> tuple[str, float] | None:
    """Return the oldest writing transaction and its age in seconds; None if none is visible. Raises Source errors."""
    rows = fetch(connection, _OLDEST)
    return (rows[0][0], rows[0][1]) if rows else None
