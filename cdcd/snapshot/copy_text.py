"""Convert rows in COPY's text format to Insert messages, the frames that the row codec reads.

In: lines as `COPY ... TO STDOUT` sends them (PostgreSQL's documentation of COPY, text format), by libpq or by `feed`.
Out: a `RowBatch` of Insert frames (message formats: Insert, TupleData), each value in text form.
Invariant: a frame contains the same bytes that pgoutput would send for the row in text mode. `CopyRows` is the C
extension or `CopyRowsInPython`, its fallback and specification.
Must not: know what a value means.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from ctypes import byref, c_void_p, string_at
from typing import Any

from cdcd.errors import ProtocolError
from cdcd.extensions import extension
from cdcd.frame_layout import HEADER as FRAME_HEADER
from cdcd.model import RowBatch

_ESCAPE = re.compile(rb"\\(.?)", re.DOTALL)  # a trailing backslash escapes nothing: an error, not a value
_CONTROL = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\"}
_NULL = b"\\N"
_BLOCKING = 0


def _unescaped(match: re.Match[bytes]) -> bytes:
    letter = match.group(1)
    try:
        return _CONTROL[letter]
    except KeyError:
        raise ProtocolError("a COPY row contains an unknown escape sequence") from None


def line_values(relid: int, line: bytes, columns: int) -> list[bytes | None]:
    """Return the values of one line (without its newline), None for NULL. Raises ProtocolError."""
    fields = _fields(relid, line, columns)
    return [None if value == _NULL else _ESCAPE.sub(_unescaped, value) for value in fields]


def _fields(relid: int, line: bytes, columns: int) -> list[bytes]:
    fields = line.split(b"\t") if columns or line else []
    if len(fields) != columns:
        raise ProtocolError("a COPY row does not have the number of columns that was requested", relid=relid)
    return fields


def insert_payload(relid: int, line: bytes, columns: int) -> bytes:
    """Return the Insert message of one line, which ends with its newline. Raises ProtocolError for malformed rows."""
    if not line.endswith(b"\n"):
        raise ProtocolError("a COPY row does not end with a newline", relid=relid)
    fields = _fields(relid, line[:-1], columns)
    parts = [struct.pack(">cIcH", b"I", relid, b"N", columns)]
    for value in fields:
        if value == _NULL:
            parts.append(b"n")
            continue
        if b"\\" in value:
            value = _ESCAPE.sub(_unescaped, value)
        parts.append(b"t" + len(value).to_bytes(4, "big"))
        parts.append(value)
    return b"".join(parts)


class CopyRowsInPython:
    """The rows of one COPY, as Insert frames of one relation at one LSN."""

    def __init__(self, relid: int, columns: int, lsn: int) -> None:
        self._relid, self._columns, self._lsn = relid, columns, lsn
        self._lines: list[bytes] = []
        self.size_bytes = 0
        """The size of the lines since the last `take`."""

    def feed(self, line: bytes) -> None:
        """Add one line, which ends with its newline."""
        self._lines.append(line)
        self.size_bytes += len(line)

    def read(
        self, get_copy_data: Callable[..., int], free_memory: Callable[..., Any], pgconn: int, max_bytes: int
    ) -> int:
        """Read lines, waiting for the server, until the batch has `max_bytes`; return 0, or PQgetCopyData's end.

        The end is -1 (the copy ended) or -2 (it failed).
        """
        while self.size_bytes < max_bytes:
            line = c_void_p()
            size = get_copy_data(pgconn, byref(line), _BLOCKING)
            if size <= 0:
                return size
            try:
                self.feed(string_at(line.value or 0, size))
            finally:
                free_memory(line)
        return 0

    def take(self) -> tuple[RowBatch, int] | None:
        """Return the rows since the last call as a `RowBatch`, and the offset of its last frame; None without rows.

        Raises ProtocolError for a malformed line.
        """
        lines, self._lines, self.size_bytes = self._lines, [], 0
        frames: list[bytes] = []
        for line in lines:
            payload = insert_payload(self._relid, line, self._columns)
            frames.append(FRAME_HEADER.pack(len(payload), self._lsn) + payload)
        if not frames:
            return None
        last = frames[-1]
        joined = b"".join(frames)
        return RowBatch(joined, len(frames)), len(joined) - len(last)


_EXTENSION = extension("cdcd.snapshot._copy_text")
CopyRows = CopyRowsInPython if _EXTENSION is None else _EXTENSION.CopyRows
