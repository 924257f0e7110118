"""Write a heartbeat into the source, and check whether the role may do so (F12). Blocking.

In: a SQL connection.  Out: the heartbeat's LSN.
Invariant: a heartbeat is a logical message outside any transaction, with cdcd's prefix and no content. It needs no
table and no xid and causes no bloat; a read-only session can write it, a standby cannot (F60).
Must not: write heartbeats more often than the caller asks.
"""

from __future__ import annotations

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.lsn import Lsn, parse_lsn
from cdcd.model import HEARTBEAT_PREFIX
from cdcd.source.connection import fetch

_MAY = """
    SELECT coalesce(bool_or(has_function_privilege(oid, 'EXECUTE')), false) FROM pg_proc
    WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace
      AND proargtypes[2] = 'text'::regtype
"""


def write_heartbeat(connection: Connection) -> Lsn:
    """Write a heartbeat and return its LSN. Raises SourceSetup without the privilege, or another Source error."""
    rows = fetch(connection, "SELECT pg_logical_emit_message(false, %s, '')::text", (HEARTBEAT_PREFIX,))
    return parse_lsn(rows[0][0])


def may_write_heartbeat(connection: Connection) -> bool:
    """Return whether this role may call pg_logical_emit_message. Raises Source errors."""
    return bool(fetch(connection, _MAY)[0][0])
