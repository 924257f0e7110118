"""A limit to how long a server may leave a statement unanswered, for links that swallow bytes (F16).

In: a psycopg2 connection, seconds.  Out: nothing; past the limit the connection's socket is shut down, so that
who waits on it in another thread gets libpq's "connection closed".
Invariant: the socket shut down is that connection's, never one that has got its number since.
Must not: be used for the stream, whose silence is watched by keepalives (F17), or for a COPY that may be silent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import SourceUnavailable

ANSWER_DEADLINE_S = 60.0
"""No statement of cdcd's takes near as long: TCP's own time-outs do not see a middleman that takes every byte."""


@contextlib.contextmanager
def within(connection: Connection, limit_s: float = ANSWER_DEADLINE_S) -> Iterator[None]:
    """Run a statement on this connection; raises SourceUnavailable when it has no answer in time."""
    watch = _Watch(connection)
    timer = threading.Timer(limit_s, watch.expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except psycopg2.Error:
        if watch.has_expired:
            raise SourceUnavailable(f"the server has not answered within {limit_s:g} s") from None
        raise
    finally:
        timer.cancel()
        watch.over()


class _Watch:
    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self._lock = threading.Lock()
        self.has_expired = False

    def expire(self) -> None:
        with self._lock:
            if self._connection is not None:
                self.has_expired = True
                hang_up(self._connection)

    def over(self) -> None:
        with self._lock:
            self._connection = None


def hang_up(connection: Connection) -> None:
    """Shut the connection's socket down: who waits on it goes on with an error. Does not raise."""
    with (
        contextlib.suppress(OSError, psycopg2.Error),
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as ours,
    ):
        ours.shutdown(socket.SHUT_RDWR)
