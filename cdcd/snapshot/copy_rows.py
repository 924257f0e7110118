"""Convert rows in COPY's text or binary format to Insert messages, the frames that the row codec reads.

In: CopyData messages of `COPY ... TO STDOUT` (PostgreSQL's documentation of COPY, text format and binary format), by
libpq or by `feed`.
Out: a `RowBatch` of Insert frames (message formats: Insert, TupleData), each value in the format of the copy.
Invariant: a frame contains the same bytes that pgoutput would send for the row in this format, but for columns that
the copy omits. `CopyRows` is the C
extension or `CopyRowsInPython`, its fallback and specification.
Must not: know what a value means.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection
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
_OMITTED = b"u"  # TupleData: an unchanged TOASTed value, which is not sent
SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEADER = struct.Struct(">11sII")  # signature, flags, size of the extension
_TRAILER = b"\xff\xff"


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


def insert_payload(relid: int, line: bytes, columns: int, omitted: Collection[int] = ()) -> bytes:
    """Return the Insert message of one line, which ends with its newline. Raises ProtocolError for malformed rows."""
    if not line.endswith(b"\n"):
        raise ProtocolError("a COPY row does not end with a newline", relid=relid)
    fields = iter(_fields(relid, line[:-1], columns - len(omitted)))
    parts = [struct.pack(">cIcH", b"I", relid, b"N", columns)]
    for column in range(columns):
        if column in omitted:
            parts.append(_OMITTED)
            continue
        value = next(fields)
        if value == _NULL:
            parts.append(b"n")
            continue
        if b"\\" in value:
            value = _ESCAPE.sub(_unescaped, value)
        parts.append(b"t" + len(value).to_bytes(4, "big"))
        parts.append(value)
    return b"".join(parts)


def binary_payload(
    relid: int, data: bytes, columns: int, is_first: bool, omitted: Collection[int] = ()
) -> bytes | None:
    """Return the Insert message of one CopyData message in binary format, None for the trailer.

    The first message has the header, and a row or the trailer. Raises ProtocolError for malformed rows.
    """
    at = _size_of_header(relid, data) if is_first else 0
    if data[at:] == _TRAILER:
        return None
    if len(data) < at + 2 or int.from_bytes(data[at : at + 2], "big") != columns - len(omitted):
        raise ProtocolError("a COPY row does not have the number of columns that was requested", relid=relid)
    at += 2
    parts = [struct.pack(">cIcH", b"I", relid, b"N", columns)]
    for column in range(columns):
        if column in omitted:
            parts.append(_OMITTED)
            continue
        value_at = at + 4
        size = int.from_bytes(data[at:value_at], "big", signed=True)
        at = value_at + max(size, 0)
        if size < -1 or at > len(data):
            raise ProtocolError("a value of a COPY row has no valid length", relid=relid)
        parts.append(b"n" if size < 0 else b"b" + data[value_at - 4 : at])
    if at != len(data):
        raise ProtocolError("a COPY row is longer than its columns", relid=relid)
    return b"".join(parts)


def _size_of_header(relid: int, data: bytes) -> int:
    """Return the size of the header of the binary format. No flag is known; the extension area is not used."""
    if data[: _HEADER.size] != _HEADER.pack(SIGNATURE, 0, 0):
        raise ProtocolError("a binary COPY does not begin with the expected header", relid=relid)
    return _HEADER.size


class CopyRowsInPython:
    """The rows of one COPY, as Insert frames of one relation at one LSN.

    `omitted`: the positions of columns that the copy does not have; the frames have them as unchanged values.
    """

    def __init__(
        self, relid: int, columns: int, lsn: int, is_binary: bool = False, omitted: Collection[int] = ()
    ) -> None:
        self._relid, self._columns, self._lsn, self._is_binary = relid, columns, lsn, is_binary
        self._omitted = frozenset(omitted)
        self._is_first = True
        self._lines: list[bytes] = []
        self.size_bytes = 0
        """The size of the messages since the last `take`."""

    def feed(self, line: bytes) -> None:
        """Add one CopyData message: a line with its newline, or a row in binary format."""
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

        Raises ProtocolError for a malformed message.
        """
        lines, self._lines, self.size_bytes = self._lines, [], 0
        frames: list[bytes] = []
        for line in lines:
            payload = self._payload(line)
            if payload is not None:
                frames.append(FRAME_HEADER.pack(len(payload), self._lsn) + payload)
        if not frames:
            return None
        last = frames[-1]
        joined = b"".join(frames)
        return RowBatch(joined, len(frames)), len(joined) - len(last)

    def _payload(self, line: bytes) -> bytes | None:
        if not self._is_binary:
            return insert_payload(self._relid, line, self._columns, self._omitted)
        is_first, self._is_first = self._is_first, False
        return binary_payload(self._relid, line, self._columns, is_first, self._omitted)


_EXTENSION = extension("cdcd.snapshot._copy_rows")
CopyRows = CopyRowsInPython if _EXTENSION is None else _EXTENSION.CopyRows
