"""The messages of one drain, read from libpq and cut into items. The Python fallback of
`cdcd.source.reading`.

In: libpq's functions and a PGconn in CopyBoth, or payloads by `feed`.  Out: items, why reading stopped.
Invariant: what libpq gave is freed, also when there is no memory to keep it; no message is left out of the items
but a keepalive that needs no answer and is made needless by what follows (`cdcd.txn.transaction_batch`).
Must not: wait, or judge what a connection's end means.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p, string_at
from typing import Any, NamedTuple

from cdcd.model import Item
from cdcd.source.copyboth import cut_items
from cdcd.txn.transaction_batch import gathered

LATER, COPY_ENDED, COPY_FAILED, BROKEN = 0, -1, -2, 1
"""Why reading stopped: nothing more for now, or the limit; what PQgetCopyData returns at the end of the copy, and for
a message that it cannot give (the copy may go on); PQconsumeInput failed."""


class Libpq(NamedTuple):
    """The functions of libpq that a drain calls, as ctypes has them."""

    get_copy_data: Callable[..., int]
    free: Callable[..., Any]
    consume_input: Callable[..., int]


class Batch:
    """What one drain reads. `in_stream`: the first message is inside a stream segment. `gathers`: whole transactions
    are one item."""

    def __init__(self, in_stream: bool, gathers: bool) -> None:
        self._in_stream = in_stream
        self._gathers = gathers
        self._taken: list[bytes] = []
        self.messages = 0
        self.size_bytes = 0

    def feed(self, message: bytes) -> None:
        """Take one CopyData payload."""
        self._taken.append(message)
        self.messages += 1
        self.size_bytes += len(message)

    def read(self, libpq: Libpq, pgconn: int, max_bytes: int) -> int:
        """Take messages until two looks at the socket in a row bring nothing, or `max_bytes`; return why it ended."""
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
        """Take what a broken connection has left, whatever its size; return why it ended."""
        while (got := self._take(libpq, pgconn)) > 0:
            pass
        return got

    def _take(self, libpq: Libpq, pgconn: int) -> int:
        """Take one message; return its size, or what PQgetCopyData said instead."""
        buffer = c_void_p()
        size = libpq.get_copy_data(pgconn, byref(buffer), 1)
        if size > 0:
            try:
                self.feed(string_at(buffer.value or 0, size))
            finally:
                libpq.free(buffer)
        return size

    def finish(self) -> tuple[list[Item], bool]:
        """Return the items, and whether the last message was inside a stream segment; once.

        Raises a ProtocolError for framing that the protocol does not allow.
        """
        items, in_stream = cut_items(self._taken, self._in_stream)
        return (gathered(items) if self._gathers else items), in_stream
