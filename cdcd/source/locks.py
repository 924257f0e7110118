"""Limit the wait for locks on user tables, and name the lock holders. Blocking.

In: a SQL connection.  Out: the connection with a lock_timeout; the lock holders as text.
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
    """Return whether a statement failed because another session holds a lock."""
    return error.context.get("sqlstate") == _LOCK_NOT_AVAILABLE


def lock_holders(connection: Connection, modes: Sequence[str] = AGAINST_READING) -> str:
    """Return as text the sessions with such locks on tables of this database, "" for none. Raises Source errors."""
    return "; ".join(map(str, table_lockers(connection, modes)))


def set_lock_timeout(connection: Connection, timeout_ms: int) -> None:
    """Set the longest wait of this connection for a lock, in milliseconds. Raises Source errors."""
    fetch(connection, "SELECT set_config('lock_timeout', %s, false)", (str(timeout_ms),))


@contextlib.contextmanager
def holders_named(
    connection: Connection, timeout_ms: int, modes: Sequence[str] = AGAINST_READING
) -> Iterator[None]:
    """Limit the wait for locks in the block. Raises SourceUnavailable with the lock holders after the limit."""
    set_lock_timeout(connection, timeout_ms)
    try:
        yield
    except CdcdError as error:
        if not is_lock_timeout(error):
            raise
        holders = lock_holders(connection, modes) or "no session any more"
        raise SourceUnavailable(
            f"the lock on a table was not available within {timeout_ms} ms; held by {holders}",
            hint="wait for the end of that transaction, or ask its owner to end it, then run the command again",
        ) from error
