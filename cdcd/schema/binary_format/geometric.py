"""Geometric types, and the type of the extension cube.

In: float8s, with a count where the number of points varies.  Out: text with each number in float8out's format.
Invariant: the count matches the number of bytes.
"""

from __future__ import annotations

import struct

from cdcd.schema.binary_format.cut import all_of, int32_at, uint32_at
from cdcd.schema.binary_format.floating import text_of_double

_ONE_POINT = 0x8000_0000


def _numbers(raw: bytes, count: int, position: int = 0) -> list[bytes]:
    if count < 0 or 8 * count != len(raw) - position:
        raise ValueError("the number of coordinates does not match the bytes")
    return [text_of_double(number) for number in struct.unpack_from(f">{count}d", raw, position)]


def _points(numbers: list[bytes]) -> bytes:
    return b",".join(b"(%s,%s)" % pair for pair in zip(numbers[::2], numbers[1::2], strict=True))


def point(raw: bytes) -> bytes:
    """Convert point_send's two numbers."""
    return _points(_numbers(raw, 2))


def lseg(raw: bytes) -> bytes:
    """Convert lseg_send's two points."""
    return b"[%s]" % _points(_numbers(raw, 4))


def box(raw: bytes) -> bytes:
    """Convert box_send's upper right and lower left corner."""
    return _points(_numbers(raw, 4))


def line(raw: bytes) -> bytes:
    """Convert line_send's A, B and C."""
    return b"{%s}" % b",".join(_numbers(raw, 3))


def circle(raw: bytes) -> bytes:
    """Convert circle_send's centre and radius."""
    return b"<(%s,%s),%s>" % tuple(_numbers(raw, 3))


def path(raw: bytes) -> bytes:
    """Convert path_send's flag for a closed path, number of points, and points."""
    if raw[:1] not in (b"\0", b"\1"):
        raise ValueError("not a binary path")
    points = _points(_numbers(raw, 2 * int32_at(raw, 1), 5))
    return b"(%s)" % points if raw[0] else b"[%s]" % points


def polygon(raw: bytes) -> bytes:
    """Convert poly_send's number of points, and points."""
    return b"(%s)" % _points(_numbers(raw, 2 * int32_at(raw, 0), 4))


def cube(raw: bytes) -> bytes:
    """Convert cube_send's header (dimensions, and a bit for a point), and one corner or both."""
    header = uint32_at(raw, 0)
    dimensions = header & ~_ONE_POINT
    if header & _ONE_POINT:
        return b"(%s)" % b", ".join(_numbers(raw, dimensions, 4))
    if not dimensions:
        all_of(4, raw)
    numbers = _numbers(raw, 2 * dimensions, 4)
    lower, upper = (b", ".join(corner) for corner in (numbers[:dimensions], numbers[dimensions:]))
    return b"(%s),(%s)" % (lower, upper)
