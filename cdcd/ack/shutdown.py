"""Distinguish a server that shuts down from one that checks whether its client is alive. Pure.

In: the primary keepalives that request a reply, each with its WAL end and the time.  Out: whether it is a shutdown.
During a fast shutdown PostgreSQL waits until the walsenders' clients have confirmed all WAL (F13). The walsender
requests another reply after each reply that confirms less: thousands of times a second, without a time-out. WAL after
an undecided PREPARE (F33) cannot be confirmed, so the client has to disconnect. A server that is not shutting down
requests a reply once per half of wal_sender_timeout, and its WAL end advances when there is data to send.
Must not: decide which LSN is confirmed.
"""

from __future__ import annotations

from cdcd.lsn import INVALID_LSN, Lsn

REPLY_REQUESTS = 20
PAUSE_US = 500_000


class ShutdownWatch:
    """Counts the reply requests that follow each other closely at one WAL end."""

    def __init__(self) -> None:
        self._wal_end_lsn: Lsn = INVALID_LSN
        self._asked_us = 0
        self._requests = 0

    def reply_requested(self, wal_end_lsn: Lsn, now_us: int) -> bool:
        """Note a reply request; return whether their number shows that the server is shutting down."""
        is_again = wal_end_lsn == self._wal_end_lsn and now_us - self._asked_us <= PAUSE_US
        self._requests = self._requests + 1 if is_again else 1
        self._wal_end_lsn, self._asked_us = wal_end_lsn, now_us
        return self._requests >= REPLY_REQUESTS
