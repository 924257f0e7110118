"""An advisory lock for a session's start: until the session streams, no walsender holds the slot (F69).

In: the source's settings, a slot's name.  Out: the lock, or SlotActive with the owner's pid.
Invariant: the lock belongs to a connection of its own, which the server closes after `wal_sender_timeout` without a
query. A frozen or disconnected owner thus loses the lock as it would lose the slot. A working owner sends queries
three times as often. An owner that loses the lock is notified.
Must not: be relied on for exactly-once delivery: Kafka ensures that no other producer writes (producer epoch, F64).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SlotActive, SourceUnavailable
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.settings import SourceSettings

LOCK_TIMEOUT_MS = 2000
"""How long to wait for the lock: longer than a session holds it that only checks whether the slot is in use."""
LONGEST_SILENCE_S = 10.0
_LOCK_NOT_AVAILABLE = "55P03"

# With wal_sender_timeout = 0, idle_session_timeout is also 0: a frozen owner never loses the slot or the lock.
# By name, because PostgreSQL 12 and 13 lack the setting: there a frozen owner has the lock as long as its connection.
_PREPARE = """
    SELECT w.setting::bigint, set_config('lock_timeout', %s, false),
           (SELECT set_config(i.name, w.setting, false) FROM pg_settings i WHERE i.name = 'idle_session_timeout')
    FROM pg_settings w WHERE w.name = 'wal_sender_timeout'
"""
_OWNER = """
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) + objid::bigint = %s
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class StartLock:
    """The lock of one session. `on_lost` is called, in another thread, if the lock's connection is lost."""

    def __init__(self, settings: SourceSettings, on_lost: Callable[[CdcdError], None]) -> None:
        self._settings = settings
        self._on_lost = on_lost
        self._over = threading.Event()

    def acquire(self) -> int:
        """Acquire the lock and hold it until `release`; return the pid of its connection. Blocking.

        Raises SlotActive, and Source errors.
        """
        connection = connect_sql(self._settings)
        try:
            silence_s = self._take(connection)
        except BaseException:
            connection.close()
            raise
        keeping = threading.Thread(
            target=self._keep, args=(connection, silence_s), name="cdcd-start-lock", daemon=True
        )
        keeping.start()
        return connection.info.backend_pid

    def release(self) -> None:
        """Release the lock, now or once it is acquired; does not wait, and may be called again."""
        self._over.set()

    def _take(self, connection: Connection) -> float:
        """Acquire the lock; return the seconds after which the connection has to send a query."""
        ((timeout_ms, *_),) = fetch(connection, _PREPARE, (str(LOCK_TIMEOUT_MS),))
        key = lock_key(self._settings.slot)
        try:
            fetch(connection, "SELECT pg_advisory_lock(%s)", (key,))
        except CdcdError as error:
            if error.context.get("sqlstate") != _LOCK_NOT_AVAILABLE:
                raise
            raise SlotActive(
                "another cdcd is starting on the slot, or copies the tables",
                hint="no action is needed: cdcd waits until the other process streams or ends; a frozen or "
                "disconnected process loses the lock after wal_sender_timeout",
                slot=self._settings.slot,
                pid=owner_of(connection, self._settings.slot),
            ) from None
        return min(LONGEST_SILENCE_S, timeout_ms / 3000 or LONGEST_SILENCE_S)

    def _keep(self, connection: Connection, silence_s: float) -> None:
        try:
            while not self._over.wait(silence_s):
                fetch(connection, "SELECT 1")
        except CdcdError as error:
            if not self._over.is_set():
                self._on_lost(
                    SourceUnavailable(f"the connection that holds the start lock was lost: {error.message}")
                )
        finally:
            connection.close()


def owner_of(connection: Connection, slot: str) -> int | None:
    """Return the pid of the connection that holds the lock of this slot, None for none. Raises Source errors."""
    rows = fetch(connection, _OWNER, (lock_key(slot),))
    return rows[0][0] if rows else None


def lock_key(slot: str) -> int:
    """Return the lock's key, a bigint, from the slot's name alone: advisory locks are local to a database."""
    return int.from_bytes(hashlib.sha256(f"cdcd start {slot}".encode()).digest()[:8], "big", signed=True)
