"""real -> Avro float, double precision -> Avro double, including NaN and the infinities.

In: the shortest text that reads back exactly (extra_float_digits 3), or IEEE 754 big-endian.
Out: IEEE 754 little-endian.  Invariant: every NaN becomes the same quiet NaN, so text and binary give equal bytes; a
real's text is rounded once, to 24 bits, and not first to a double (see `_nearest_real`).
"""

from __future__ import annotations

import struct
from fractions import Fraction

from cdcd.schema.codec import Builder, Codec, Op, Operation

FLOAT4, FLOAT8 = 700, 701

_pack_real = struct.Struct("<f").pack
_pack_double = struct.Struct("<d").pack
_bits_of_double = struct.Struct("<q").unpack
_unpack_real = struct.Struct(">f").unpack
_unpack_double = struct.Struct(">d").unpack
_from_bits = struct.Struct("<I").pack

_NOT_FINITE = {b"NaN": float("nan"), b"Infinity": float("inf"), b"-Infinity": float("-inf")}
_REAL_NAN = _pack_real(float("nan"))
_DOUBLE_NAN = _pack_double(float("nan"))
_SMALLEST_NORMAL_REAL = 2.0**-126
_DROPPED_BITS = (1 << 29) - 1  # a double's mantissa has 29 more bits than a real's
_HALFWAY = 1 << 28


def _parse(raw: bytes) -> float:
    if raw.translate(None, b"0123456789+-.e"):
        return _NOT_FINITE[raw]
    return float(raw)


def encode_double(raw: bytes) -> bytes:
    """Encode float8out's text."""
    return _pack_double(_parse(raw))


def encode_real(raw: bytes) -> bytes:
    """Encode float4out's text. Raises OverflowError beyond the range of a real."""
    double = _parse(raw)
    packed = _pack_real(double)
    (bits,) = _bits_of_double(_pack_double(double))
    if bits & _DROPPED_BITS == _HALFWAY or 0.0 < abs(double) < _SMALLEST_NORMAL_REAL:
        return _nearest_real(raw, packed)
    return packed


def _nearest_real(raw: bytes, packed: bytes) -> bytes:
    # text -> double -> real rounds twice; where the double is midway between two reals, the text decides.
    exact = abs(Fraction(raw.decode()))
    bits = int.from_bytes(packed, "little")
    sign, magnitude = bits & 0x80000000, bits & 0x7FFFFFFF

    def distance(candidate: int) -> tuple[Fraction, int]:
        value = Fraction(struct.unpack("<f", _from_bits(candidate))[0])
        return abs(value - exact), candidate & 1

    near = [m for m in (magnitude - 1, magnitude, magnitude + 1) if 0 <= m < 0x7F800000]
    return _from_bits(sign | min(near, key=distance))


def encode_binary_double(raw: bytes) -> bytes:
    """Encode float8send's eight bytes."""
    (value,) = _unpack_double(raw)
    return raw[::-1] if value == value else _DOUBLE_NAN


def encode_binary_real(raw: bytes) -> bytes:
    """Encode float4send's four bytes."""
    (value,) = _unpack_real(raw)
    return raw[::-1] if value == value else _REAL_NAN


_CONTENT = "NaN and the infinities included"
_REAL = Codec(
    "float",
    encode_real,
    encode_binary_real,
    text_op=Operation(Op.REAL_TEXT),
    binary_op=Operation(Op.REAL_BINARY),
    content=_CONTENT,
)
_DOUBLE = Codec(
    "double",
    encode_double,
    encode_binary_double,
    text_op=Operation(Op.DOUBLE_TEXT),
    binary_op=Operation(Op.DOUBLE_BINARY),
    content=_CONTENT,
)

BUILDERS: dict[int, Builder] = {
    FLOAT4: lambda typmod, policy: _REAL,
    FLOAT8: lambda typmod, policy: _DOUBLE,
}
