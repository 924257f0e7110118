"""Avro's primitive encodings: zig-zag variable-length integers and length-prefixed bytes.

In: Python ints and bytes.  Out: Avro bytes (Avro specification, "Binary Encoding"); `decode_long` the other way.
Invariant: `encode_long` takes exactly the 64-bit signed range; anything else is an OverflowError, never
wrapped.
Two tables of 14-bit chunks replace the loop over 7-bit groups: a long costs at most five look-ups.
"""

from __future__ import annotations

MIN_LONG = -(1 << 63)
MAX_LONG = (1 << 63) - 1

_CHUNK = 1 << 14
_MASK = _CHUNK - 1

_LAST = tuple(bytes((n,)) if n < 0x80 else bytes(((n & 0x7F) | 0x80, n >> 7)) for n in range(_CHUNK))
"""The final 14 bits of a varint, in as few bytes as they need."""

_MORE = tuple(bytes(((n & 0x7F) | 0x80, (n >> 7) | 0x80)) for n in range(_CHUNK))
"""14 bits of a varint that goes on."""


def encode_long(n: int) -> bytes:
    """Return the Avro encoding of a 64-bit signed integer. Raises OverflowError outside that range."""
    z = n << 1 if n >= 0 else (~n << 1) | 1
    if z < 0x4000:
        return _LAST[z]
    if z < 0x10000000:
        return _MORE[z & _MASK] + _LAST[z >> 14]
    if z < 0x40000000000:
        return _MORE[z & _MASK] + _MORE[(z >> 14) & _MASK] + _LAST[z >> 28]
    if z < 0x100000000000000:
        return _MORE[z & _MASK] + _MORE[(z >> 14) & _MASK] + _MORE[(z >> 28) & _MASK] + _LAST[z >> 42]
    if z >> 64:
        raise OverflowError("not a 64-bit integer")
    high = _MORE[(z >> 28) & _MASK] + _MORE[(z >> 42) & _MASK] + _LAST[z >> 56]
    return _MORE[z & _MASK] + _MORE[(z >> 14) & _MASK] + high


def encode_bytes(raw: bytes) -> bytes:
    """Return Avro `bytes`: the length as a long, then the bytes."""
    size = len(raw)
    return (_LAST[size << 1] if size < 0x2000 else encode_long(size)) + raw


def encode_string(raw: bytes) -> bytes:
    """Return an Avro `string` of UTF-8 bytes. Raises UnicodeDecodeError on anything that is not UTF-8."""
    if not raw.isascii():
        raw.decode()
    size = len(raw)
    return (_LAST[size << 1] if size < 0x2000 else encode_long(size)) + raw


def decode_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the long that begins at `at`, and where it ends. Raises IndexError where the bytes end before it."""
    z = shift = 0
    while True:
        byte = data[at]
        at += 1
        z |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (z >> 1) ^ -(z & 1), at
        shift += 7
