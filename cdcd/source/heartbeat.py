"""Write a heartbeat into the source, and say whether the role may (F12). Blocking.

In: a SQL connection.  Out: the heartbeat's LSN.
Invariant: it is a logical message outside any transaction, with a prefix of its own and no content: no table, no
xid, no bloat, and a read-only session writes it too. A standby cannot (F60).
Must not: be written more often than asked for.
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
    """Write one; its LSN. Raises SourceSetup without the right, SourceUnavailable, or another Source error."""
    rows = fetch(connection, "SELECT pg_logical_emit_message(false, %s, '')::text", (HEARTBEAT_PREFIX,))
    return parse_lsn(rows[0][0])


def may_write_heartbeat(connection: Connection) -> bool:
    """Return whether this role may call what writes one."""
    return bool(fetch(connection, _MAY)[0][0])
