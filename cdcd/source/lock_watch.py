"""Watch a session whose statement may wait for other sessions without a limit: report its blockers, and that it runs.

In: settings, the session's connection, a `Report`.  Out: the session's wait, at intervals; None if it does not wait.
Invariant: such a statement has no time limit: an event on the server ends its wait. Instead of a limit (`deadline`),
the server is queried over another connection, which is opened only if the statement takes long. The session's
connection is shut down if the server does not show the session for `ANSWER_DEADLINE_S` (F16).
Must not: report a wait after the statement has ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SourceUnavailable
from cdcd.source.blockers import BackendGone, blockers_of
from cdcd.source.connection import connect_sql, translated
from cdcd.source.deadline import ANSWER_DEADLINE_S, hang_up
from cdcd.source.settings import SourceSettings
from cdcd.waits import WaitCause

FIRST_LOOK_S = 2.0
LOOK_INTERVAL_S = 2.0
Report = Callable[[WaitCause | None], None]


def unreported(_seen: WaitCause | None) -> None:
    """Do nothing: the `Report` of a caller that does not report waits."""


def fetch_watched(
    settings: SourceSettings, connection: Connection, sql: str, parameters: tuple[Any, ...], report: Report
) -> list[tuple[Any, ...]]:
    """Run one query that may wait for a lock, and return its rows. Raises Source errors."""
    with watched(settings, connection, report), translated(), connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall()


@contextlib.contextmanager
def watched(settings: SourceSettings, connection: Connection, report: Report) -> Iterator[None]:
    """Watch the statement in the block. Raises SourceUnavailable if the server no longer shows its session."""
    watch = _Watch(settings, connection, report)
    threading.Thread(target=watch.run, name="cdcd-watch", daemon=True).start()
    try:
        yield
    except (psycopg2.Error, CdcdError):
        if watch.has_expired:
            raise SourceUnavailable(
                f"the server has not shown the session of a statement for {ANSWER_DEADLINE_S:g} s"
            ) from None
        raise
    finally:
        watch.end()


class _Watch:
    def __init__(self, settings: SourceSettings, connection: Connection, report: Report) -> None:
        self._settings = settings
        self._connection: Connection | None = connection
        self._pid = connection.info.backend_pid
        self._report = report
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._query_connection: Connection | None = None
        self._seen_s = time.monotonic()
        self.has_expired = False

    def run(self) -> None:
        """Query the server until the statement has ended."""
        wait_s = FIRST_LOOK_S
        try:
            while not self._over.wait(wait_s):
                self._look()
                wait_s = LOOK_INTERVAL_S
        finally:
            self._release()

    def end(self) -> None:
        """Stop watching: the statement has ended."""
        self._over.set()
        with self._lock:
            self._connection = None
            self._report(None)

    def _look(self) -> None:
        seen: WaitCause | None = None
        try:
            if self._query_connection is None:
                self._query_connection = connect_sql(self._settings)
            seen = blockers_of(self._query_connection, self._pid)
            self._seen_s = time.monotonic()
        except BackendGone:
            pass
        except CdcdError:
            self._release()
        with self._lock:
            if self._connection is None:
                return
            self._report(seen)
            if time.monotonic() - self._seen_s > ANSWER_DEADLINE_S:
                self.has_expired = True
                hang_up(self._connection)

    def _release(self) -> None:
        connection, self._query_connection = self._query_connection, None
        if connection is not None:
            connection.close()
