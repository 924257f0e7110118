"""Read the messages of one drain from libpq and cut them into items. The Python fallback of `cdcd.source.reading`.

In: libpq's functions and a PGconn in CopyBoth, or payloads by `feed`.  Out: items, and why reading stopped.
Invariant: every buffer of libpq is freed, even if no memory is left to copy it. Every message is in the items, except
keepalives that request no reply and that the next item makes redundant (`cdcd.txn.transaction_batch`).
Must not: wait, or decide what the end of a connection means.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p, string_at
from typing import Any, NamedTuple

from cdcd.model import Item
from cdcd.source.copyboth import cut_items
from cdcd.txn.transaction_batch import gather

LATER, COPY_ENDED, COPY_FAILED, BROKEN = 0, -1, -2, 1
"""The reasons why reading stopped: no more data now, or the limit; PQgetCopyData's result at the end of the copy; its
result for a message that it cannot return (the copy may continue); PQconsumeInput failed."""


class Libpq(NamedTuple):
    """The functions of libpq that a drain calls, as ctypes functions."""

    get_copy_data: Callable[..., int]
    free: Callable[..., Any]
    consume_input: Callable[..., int]


class Batch:
    """The messages of one drain.

    `in_stream`: the first message is inside a stream segment. `gathers`: complete transactions are combined into one
    item.
    """

    def __init__(self, in_stream: bool, gathers: bool) -> None:
        self._in_stream = in_stream
        self._gathers = gathers
        self._taken: list[bytes] = []
        self.messages = 0
        self.size_bytes = 0

    def feed(self, message: bytes) -> None:
        """Add one CopyData payload."""
        self._taken.append(message)
        self.messages += 1
        self.size_bytes += len(message)

    def read(self, libpq: Libpq, pgconn: int, max_bytes: int) -> int:
        """Read messages until `max_bytes`, or until the socket has no more data; return the reason for the end."""
        has_looked = False
        while self.size_bytes < max_bytes:
            got = self._take(libpq, pgconn)
            if got < 0:
                return got
            if got > 0:
                has_looked = False
            elif has_looked:
                return LATER
            else:
                has_looked = True
                if not libpq.consume_input(pgconn):
                    return BROKEN
        return LATER

    def read_rest(self, libpq: Libpq, pgconn: int) -> int:
        """Read the remaining messages of a broken connection, without a limit; return the reason for the end."""
        while (got := self._take(libpq, pgconn)) > 0:
            pass
        return got

    def _take(self, libpq: Libpq, pgconn: int) -> int:
        """Read one message; return its size, or PQgetCopyData's result without one."""
        buffer = c_void_p()
        size = libpq.get_copy_data(pgconn, byref(buffer), 1)
        if size > 0:
            try:
                self.feed(string_at(buffer.value or 0, size))
            finally:
                libpq.free(buffer)
        return size

    def finish(self) -> tuple[list[Item], bool]:
        """Return the items, and whether the last message was inside a stream segment. To be called once.

        Raises a ProtocolError for illegal framing.
        """
        items, in_stream = cut_items(self._taken, self._in_stream)
        return (gather(items) if self._gathers else items), in_stream
