"""Avro's primitive encodings: zig-zag variable-length integers and length-prefixed bytes.

In: Python ints and bytes.  Out: Avro bytes (Avro specification, "Binary Encoding"); `decode_long` is the inverse.
Invariant: `encode_long` accepts exactly the signed 64-bit range; any other number is an OverflowError, never wrapped.
A table has the encodings of small numbers, which include most lengths.
"""

from __future__ import annotations

MIN_LONG = -(1 << 63)
MAX_LONG = (1 << 63) - 1

_SHORT = tuple(bytes((z,)) if z < 0x80 else bytes(((z & 0x7F) | 0x80, z >> 7)) for z in range(1 << 11))
"""Encodings of one or two bytes. A larger table would cost memory, and the daemon encodes rows in its C extension."""
_SHORT_SIZES = len(_SHORT) // 2


def encode_long(n: int) -> bytes:
    """Return the Avro encoding of a 64-bit signed integer. Raises OverflowError outside that range."""
    z = n << 1 if n >= 0 else (~n << 1) | 1
    if z < len(_SHORT):
        return _SHORT[z]
    if z >> 64:
        raise OverflowError("not a 64-bit integer")
    groups = bytearray()
    while z >= 0x80:
        groups.append((z & 0x7F) | 0x80)
        z >>= 7
    groups.append(z)
    return bytes(groups)


def encode_bytes(raw: bytes) -> bytes:
    """Return Avro `bytes`: the length as a long, then the bytes."""
    size = len(raw)
    return (_SHORT[size << 1] if size < _SHORT_SIZES else encode_long(size)) + raw


def encode_string(raw: bytes) -> bytes:
    """Return an Avro `string` of UTF-8 bytes. Raises UnicodeDecodeError for bytes that are not UTF-8."""
    if not raw.isascii():
        raw.decode()
    size = len(raw)
    return (_SHORT[size << 1] if size < _SHORT_SIZES else encode_long(size)) + raw


def decode_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the long that begins at `at`, and the position after it. Raises IndexError where the bytes end early."""
    z = shift = 0
    while True:
        byte = data[at]
        at += 1
        z |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (z >> 1) ^ -(z & 1), at
        shift += 7
