"""A time limit for a statement, for networks that drop packets without an error (F16).

In: a psycopg2 connection, seconds.  Out: nothing; after the limit the connection's socket is shut down, so that a
thread that waits on it gets libpq's "connection closed".
Invariant: only that connection's socket is shut down, never a later one with the same file descriptor.
Must not: be used for the stream, whose silence is detected by keepalives (F17), or for a COPY that may be silent.
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
"""Far longer than any statement of cdcd. TCP time-outs do not detect a proxy that accepts every byte."""


@contextlib.contextmanager
def within(connection: Connection, limit_s: float = ANSWER_DEADLINE_S) -> Iterator[None]:
    """Run the statement in the block with a time limit. Raises SourceUnavailable if it has no result in time."""
    watch = _Watch(connection)
    timer = threading.Timer(limit_s, watch.expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except psycopg2.Error:
        if watch.has_expired:
            raise SourceUnavailable(f"the server did not answer within {limit_s:g} s") from None
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
    """Shut down the connection's socket, so that a thread that waits on it gets an error. Does not raise."""
    with (
        contextlib.suppress(OSError, psycopg2.Error),
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as ours,
    ):
        ours.shutdown(socket.SHUT_RDWR)
