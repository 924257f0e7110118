"""Identify the server: system identifier, timeline, database, and WAL position. Blocking.

In: a SQL or a walsender connection.  Out: `ServerIdentity`, for the comparison with stored positions (F58, F62).
Invariant: the timeline is that of the WAL being written now, not of the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import SourceUnavailable
from cdcd.lsn import Lsn, parse_lsn
from cdcd.source.connection import fetch

# The clock is read first: all transactions committed by then are below the WAL position that is read afterwards.
# A checkpoint follows a promotion late; the name of the current WAL file has the new timeline at once.
_IDENTIFY = """
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, s.system_identifier::text,
           CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
                ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END,
           current_database()::text,
           current_setting('server_version_num')::int,
           (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                 ELSE pg_current_wal_flush_lsn() END)::text,
           pg_is_in_recovery(),
           (SELECT (extract(epoch FROM least(a.stats_reset, b.stats_reset)) * 1000000)::bigint
            FROM pg_stat_archiver a, pg_stat_bgwriter b)
    FROM pg_control_system() s
"""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """One server at one moment. `wal_lsn`: flushed on a primary, replayed on a standby.

    `clock_us`: the server's clock (Unix epoch); transactions committed before it are below `wal_lsn`.
    `statistics_since_us`: the start of the server's statistics (by its clock), None if unknown. A crash resets all of
    them, a user may reset single ones.
    """

    system_identifier: str
    timeline: int
    database: str
    version_num: int
    wal_lsn: Lsn
    in_recovery: bool
    clock_us: int = 0
    statistics_since_us: int | None = None


def identify(connection: Connection) -> ServerIdentity:
    """Return the identity of the server on this connection. Raises Source errors."""
    clock_us, system, timeline, database, version_num, wal_lsn, in_recovery, since_us = fetch(
        connection, _IDENTIFY
    )[0]
    return ServerIdentity(
        system, timeline, database, version_num, parse_lsn(wal_lsn), in_recovery, clock_us, since_us
    )


def check_same_server(connection: Connection, expected: ServerIdentity) -> None:
    """Raise SourceUnavailable if this connection leads to another server than `expected` (F59).

    With several hosts in the DSN, or a changing host name, each connection may lead to a different server.
    """
    now = identify(connection)
    for name in ("system_identifier", "timeline", "database", "in_recovery"):
        was, is_now = getattr(expected, name), getattr(now, name)
        if was != is_now:
            raise SourceUnavailable(
                f"another server answers on this connection than on the previous one: {name} was {was}, is {is_now}",
                hint="no action is needed: cdcd compares the server with the stored position again",
            )
