"""Read the parts of a binary value, with a check of every length.

In: a binary value and a position.  Out: the part and the position after it.
Invariant: no byte beyond the end is read, and no memory is allocated for a length that exceeds the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

TextOfBinary = Callable[[bytes], bytes]
"""A value in binary format -> the output function's text. Raises one of `codec.UNREADABLE`."""

_size_at = struct.Struct(">i").unpack_from
_word_at = struct.Struct(">I").unpack_from


def int32_at(raw: bytes, position: int) -> int:
    """Return the signed int32 at `position`. Raises struct.error beyond the end."""
    number: int = _size_at(raw, position)[0]
    return number


def uint32_at(raw: bytes, position: int) -> int:
    """Return the unsigned int32 at `position`. Raises struct.error beyond the end."""
    number: int = _word_at(raw, position)[0]
    return number


def value_at(raw: bytes, position: int) -> tuple[bytes | None, int]:
    """Return the value after an int32 length (-1: null, returned as None) and the position after the value."""
    (size,) = _size_at(raw, position)
    position += 4
    if size == -1:
        return None, position
    end: int = position + size
    if size < 0 or end > len(raw):
        raise ValueError("a length exceeds the value")
    return raw[position:end], end


def string_at(raw: bytes, position: int) -> tuple[bytes, int]:
    """Return the string up to a zero byte and the position after that."""
    end = raw.index(b"\0", position)
    return raw[position:end], end + 1


def all_of(position: int, raw: bytes) -> None:
    """Raise ValueError unless the position is the end."""
    if position != len(raw):
        raise ValueError("a value has bytes after its end")
