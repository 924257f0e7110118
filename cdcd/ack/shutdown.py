"""Tell a server that shuts down from one that only asks whether its client is alive. Pure.

In: the primary keepalives that ask for an answer, each with its WAL end and the time.  Out: whether it is a shutdown.
A fast shutdown waits until its walsenders' clients have confirmed all of the WAL (F13), and asks again at each
answer that has not: thousands of times a second, without end, as no time-out is left to run out. What is held
below an undecided PREPARE (F33) cannot be confirmed, so the client has to leave. A server that is not shutting
down asks once in half of wal_sender_timeout, and its WAL end moves on when there is anything to send.
Must not: decide what is confirmed.
"""

from __future__ import annotations

from cdcd.lsn import INVALID_LSN, Lsn

REPLY_REQUESTS = 20
PAUSE_US = 500_000


class ShutdownWatch:
    """Counts the questions that follow each other closely at one WAL end."""

    def __init__(self) -> None:
        self._wal_end_lsn: Lsn = INVALID_LSN
        self._asked_us = 0
        self._requests = 0

    def reply_requested(self, wal_end_lsn: Lsn, now_us: int) -> bool:
        """Note a question; return whether there were so many that the server must be shutting down."""
        is_again = wal_end_lsn == self._wal_end_lsn and now_us - self._asked_us <= PAUSE_US
        self._requests = self._requests + 1 if is_again else 1
        self._wal_end_lsn, self._asked_us = wal_end_lsn, now_us
        return self._requests >= REPLY_REQUESTS
