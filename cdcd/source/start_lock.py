"""One at a time from a session's start until it streams: an advisory lock, because nobody holds the slot yet (F69).

In: where the source is, a slot's name.  Out: the lock, or SlotActive with the pid of who has it.
Invariant: the lock belongs to a connection of its own, and the server ends that one when nothing has come over it for
`wal_sender_timeout`: a frozen or cut-off owner loses it as it would lose the slot. A working owner says something
three times as often. Who loses it is told, and is no owner any more.
Must not: be relied on for exactly once: that nobody else writes is Kafka's to see to (the producer's epoch, F64).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SlotActive, SourceUnavailable
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.settings import SourceSettings

PATIENCE_MS = 2000
"""How long to wait for the lock: longer than one takes that only looks whether the slot is held."""
LONGEST_SILENCE_S = 10.0
_LOCK_NOT_AVAILABLE = "55P03"

# A wal_sender_timeout of 0 is an idle_session_timeout of 0: then neither the slot nor the lock is ever taken away.
# By its name, because PostgreSQL 12 and 13 do not have it: there a frozen owner keeps the lock with its connection.
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
    """The lock of one session. `on_lost` is called, in another thread, when the server has taken it away."""

    def __init__(self, settings: SourceSettings, on_lost: Callable[[CdcdError], None]) -> None:
        self._settings = settings
        self._on_lost = on_lost
        self._over = threading.Event()

    def acquire(self) -> int:
        """Take it, and keep it until `release`; returns the pid it is held under. Blocks.

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
        """Let it go, now or as soon as it is had; does not wait, and may be called again."""
        self._over.set()

    def _take(self, connection: Connection) -> float:
        """Return after how many seconds something has to be said."""
        ((timeout_ms, *_),) = fetch(connection, _PREPARE, (str(PATIENCE_MS),))
        key = lock_key(self._settings.slot)
        try:
            fetch(connection, "SELECT pg_advisory_lock(%s)", (key,))
        except CdcdError as error:
            if error.context.get("sqlstate") != _LOCK_NOT_AVAILABLE:
                raise
            raise SlotActive(
                "another cdcd is starting on the slot, or copies the tables",
                hint="waits until it streams or ends; a frozen or cut-off one loses its place after "
                "wal_sender_timeout",
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
                    SourceUnavailable(
                        f"the connection that holds the lock of the start is gone: {error.message}"
                    )
                )
        finally:
            connection.close()


def owner_of(connection: Connection, slot: str) -> int | None:
    """Return the pid under which somebody has the lock of this slot, None when nobody has. Raises Source errors."""
    rows = fetch(connection, _OWNER, (lock_key(slot),))
    return rows[0][0] if rows else None


def lock_key(slot: str) -> int:
    """Return the key, a bigint: of the slot's name alone, because the locks of each database are its own."""
    return int.from_bytes(hashlib.sha256(f"cdcd start {slot}".encode()).digest()[:8], "big", signed=True)
