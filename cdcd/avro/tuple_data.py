"""TupleData bytes -> one raw value per column, undecoded.

In: a position in a frame's payload (protocol: TupleData = int16 count, then per column `n`, `u`, or `t`/`b`
with int32 length and bytes).  Out: None for null, `UNCHANGED`, plain `bytes` for text, `BinaryValue` for binary;
the position after it.
Invariant: the column count equals the relation's; no byte beyond `end` is part of a value.
"""

from __future__ import annotations

import struct
from typing import Final

from cdcd.errors import MessageTruncated, MessageUnknown, ProtocolError


class BinaryValue(bytes):
    """A value in binary format (kind `b`)."""

    __slots__ = ()


class _Unchanged(bytes):
    __slots__ = ()


UNCHANGED: Final = _Unchanged()
"""A TOASTed value that the update did not change and the server did not send (kind `u`). Compared by identity."""

Raw = bytes | None
Row = list[Raw]

_size_at = struct.Struct(">I").unpack_from
_NULL, _TEXT, _BINARY, _TOAST = b"ntbu"


def cut_tuple(data: bytes, position: int, end: int, width: int) -> tuple[Row, int, bool]:
    """Return (values, position after the tuple, whether every value is null or text).

    Raises ProtocolError on another column count, MessageTruncated, MessageUnknown.
    """
    if position + 2 > end:
        raise MessageTruncated("a row message ends before a tuple's column count")
    count = int.from_bytes(data[position : position + 2], "big")
    if count != width:
        raise ProtocolError("a tuple and its relation differ in column count", tuple=count, relation=width)
    position += 2
    row: Row = []
    append = row.append
    is_plain = True
    try:
        for _ in range(width):
            kind = data[position]
            if kind == _TEXT:
                start = position + 5
                position = start + _size_at(data, position + 1)[0]
                append(data[start:position])
            elif kind == _NULL:
                append(None)
                position += 1
            elif kind == _TOAST:
                append(UNCHANGED)
                position += 1
                is_plain = False
            elif kind == _BINARY:
                start = position + 5
                position = start + _size_at(data, position + 1)[0]
                append(BinaryValue(data[start:position]))
                is_plain = False
            else:
                raise MessageUnknown("a tuple has an unknown column kind", kind=kind)
    except (IndexError, struct.error):
        position = end + 1
    if position > end:
        raise MessageTruncated("a row message ends inside a tuple")
    return row, position, is_plain
