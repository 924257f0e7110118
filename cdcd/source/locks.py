"""How long to wait for the lock of a user's table, and who holds it. Blocking.

In: a SQL connection.  Out: one whose statements do not wait longer; the holders in words.
Must not: wait for such a lock itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SourceUnavailable
from cdcd.source.blockers import AGAINST_READING, table_lockers
from cdcd.source.connection import fetch

_LOCK_NOT_AVAILABLE = "55P03"


def is_lock_timeout(error: CdcdError) -> bool:
    """Say whether a statement was given up because somebody holds a lock."""
    return error.context.get("sqlstate") == _LOCK_NOT_AVAILABLE


def lock_holders(connection: Connection, modes: Sequence[str] = AGAINST_READING) -> str:
    """Return who keeps tables of this database from being read; "" where nobody does. Raises Source errors."""
    return "; ".join(map(str, table_lockers(connection, modes)))


def set_lock_timeout(connection: Connection, patience_ms: int) -> None:
    """Let no statement on this connection wait longer for a lock. Raises Source errors."""
    fetch(connection, "SELECT set_config('lock_timeout', %s, false)", (str(patience_ms),))


@contextlib.contextmanager
def holders_named(
    connection: Connection, patience_ms: int, modes: Sequence[str] = AGAINST_READING
) -> Iterator[None]:
    """Let no statement wait longer for a lock; whoever holds it is named then. Raises SourceUnavailable."""
    set_lock_timeout(connection, patience_ms)
    try:
        yield
    except CdcdError as error:
        if not is_lock_timeout(error):
            raise
        holders = lock_holders(connection, modes) or "nobody any more"
        raise SourceUnavailable(
            f"a table is locked, and was waited for {patience_ms} ms: {holders}",
            hint="have whoever runs that transaction end it, or wait for it, then run this again",
        ) from error
