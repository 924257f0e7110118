"""Who keeps WAL back beside cdcd: the oldest transaction of the server that writes (F22). Blocking.

In: a SQL connection.  Out: its name for a person, and its age.
Invariant: a prepared transaction counts, in whatever database; what this role may not see is not made up.
Must not: show what a transaction does.
"""

from __future__ import annotations

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch

# Only one that has got an xid holds a slot's restart_lsn back; others see NULL there without pg_read_all_stats.
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
    """Return the oldest transaction that writes and its age in seconds; None without one that can be seen."""
    rows = fetch(connection, _OLDEST)
    return (rows[0][0], rows[0][1]) if rows else None
