"""Convert rows in COPY's text format to Insert messages, the frames that the row codec reads.

In: lines as `COPY ... TO STDOUT` sends them (PostgreSQL's documentation of COPY, text format).
Out: a `RowBatch` of Insert frames (message formats: Insert, TupleData), each value in text form.
Invariant: a frame contains the same bytes that pgoutput would send for the row in text mode.
Must not: know what a value means.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from cdcd.errors import ProtocolError
from cdcd.frame_layout import HEADER as FRAME_HEADER
from cdcd.model import RowBatch

_ESCAPE = re.compile(rb"\\(.?)", re.DOTALL)  # a trailing backslash escapes nothing: an error, not a value
_CONTROL = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\"}
_NULL = b"\\N"


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
    fields = line.split(b"\t") if columns else []
    if len(fields) != columns:
        raise ProtocolError("a COPY row does not have the number of columns that was requested", relid=relid)
    return fields


def insert_payload(relid: int, line: bytes, columns: int) -> bytes:
    """Return the Insert message of one line (without its newline). Raises ProtocolError for malformed rows."""
    fields = _fields(relid, line, columns)
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


def row_batch_of(relid: int, lines: Iterable[bytes], columns: int, lsn: int) -> RowBatch:
    """Return one RowBatch of the given lines, every frame at `lsn`."""
    frames = []
    for line in lines:
        payload = insert_payload(relid, line, columns)
        frames.append(FRAME_HEADER.pack(len(payload), lsn))
        frames.append(payload)
    return RowBatch(b"".join(frames), len(frames) // 2)
