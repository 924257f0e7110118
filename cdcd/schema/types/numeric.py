"""numeric(p,s) -> Avro decimal, numeric without precision -> string; by policy string, double or Debezium's record.

In: the server's decimal text, or numeric_send's base-10000 digits (numeric.c: ndigits, weight, sign, dscale).
Out: two's complement of the unscaled value, big-endian, in as few bytes as possible; or the text as a string; or the
nearest double; or a scale and an unscaled value.
Invariant: a value is exact or `Special`. Special are NaN and infinities except in strings and doubles, a value with
more digits than its type, and a number that PostgreSQL's own cast to double precision refuses. Only `double` loses
digits. Readers accept no Avro decimal with a precision above 38, a negative scale or a scale above the precision.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import replace

from cdcd.schema.codec import AvroType, Builder, Codec, Encoder, Op, Operation, Special
from cdcd.schema.policy import Policy
from cdcd.schema.types.floating import encode_double as encode_float8
from cdcd.schema.varint import encode_bytes, encode_long, encode_string

NUMERIC = 1700
MAX_PRECISION = 38

_NOT_FINITE = {b"NaN", b"Infinity", b"-Infinity"}
_NUMERIC = re.compile(rb"(-?)(\d+)(?:\.(\d+))?")
_DIGITS_AT_ONCE = 4000
_SIGNS = {0x0000: b"", 0x4000: b"-"}
_BINARY_NOT_FINITE = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """Return (p, s) of a numeric's type modifier (numeric.c, make_numeric_typmod), None without one."""
    if typmod < 4:
        return None
    packed = typmod - 4
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def _modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def encode_unscaled(n: int) -> bytes:
    """Return Avro decimal bytes of an unscaled value, as short as Java's BigInteger.toByteArray."""
    size = (n if n >= 0 else ~n).bit_length() // 8 + 1
    return encode_bytes(n.to_bytes(size, "big", signed=True))


def encode_text_numeric(raw: bytes) -> bytes:
    """Encode a numeric without precision: the server's text, NaN and infinities included."""
    if raw not in _NOT_FINITE and not _NUMERIC.fullmatch(raw):
        raise ValueError("not a numeric")
    return encode_string(raw)


def text_of_binary(raw: bytes) -> bytes:
    """Return the text of numeric_send's bytes, in numeric_out's format."""
    count, weight, sign, dscale = struct.unpack_from(">HhHH", raw)
    if len(raw) != 8 + 2 * count:
        raise ValueError("not a binary numeric")
    if sign in _BINARY_NOT_FINITE:
        return _BINARY_NOT_FINITE[sign]
    digits = struct.unpack_from(f">{count}H", raw, 8)
    if any(digit > 9999 for digit in digits):
        raise ValueError("not a binary numeric")
    text = b"".join(b"%04d" % digit for digit in digits)
    point = 4 * (weight + 1)  # digits before the decimal point; may lie outside the binary value's digits
    if point < 0:
        text, point = b"0" * -point + text, 0
    text = text.ljust(max(point + dscale, len(text)), b"0")
    whole, fraction = text[:point].lstrip(b"0") or b"0", text[point : point + dscale]
    return _SIGNS[sign] + whole + (b"." + fraction if dscale else b"")


def _unscaled(raw: bytes) -> tuple[int, int]:
    """Return (unscaled value, scale) of numeric_out's text. Raises Special where it is not a finite number."""
    whole, _, fraction = raw.partition(b".")
    digits = whole + fraction
    if not digits.isdigit() and not (digits[:1] == b"-" and digits[1:].isdigit()):
        raise _not_finite(raw)
    return _integer(digits), len(fraction)


def _integer(digits: bytes) -> int:
    """Return the number of decimal digits, also of more than int() accepts: 4300 (sys.set_int_max_str_digits)."""
    if len(digits) <= _DIGITS_AT_ONCE:
        return int(digits)
    if digits[:1] == b"-":
        return -_integer(digits[1:])
    n = 0
    for position in range(0, len(digits), _DIGITS_AT_ONCE):
        piece = digits[position : position + _DIGITS_AT_ONCE]
        n = n * 10 ** len(piece) + int(piece)
    return n


def _not_finite(raw: bytes) -> Exception:
    return Special(raw) if raw in _NOT_FINITE else ValueError("not a numeric")


def _decimal(precision: int, scale: int) -> Codec:
    limit = 10**precision
    most = precision + 2  # a sign and a zero before the point

    def encode(raw: bytes) -> bytes:
        # `_unscaled`, inlined: most numbers take this path, and a call costs as much as the rest.
        whole, _, fraction = raw.partition(b".")
        digits = whole + fraction
        if not digits.isdigit() and not (digits[:1] == b"-" and digits[1:].isdigit()):
            raise _not_finite(raw)
        if len(digits) > most:
            raise Special(raw)
        n = int(digits)
        if len(fraction) != scale:
            if len(fraction) > scale:
                raise Special(raw)
            n *= 10 ** (scale - len(fraction))
        if not -limit < n < limit:
            raise Special(raw)
        return encode_unscaled(n)

    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return replace(
        _codec(avro, encode, special="NaN, infinities"),
        text_op=Operation(Op.DECIMAL_TEXT, precision, scale),
        binary_op=Operation(Op.DECIMAL_BINARY, precision, scale),
    )


def encode_variable_scale(raw: bytes) -> bytes:
    """Encode numeric_out's text as `VARIABLE_SCALE`."""
    n, scale = _unscaled(raw)
    return encode_long(scale) + encode_unscaled(n)


def encode_double(raw: bytes) -> bytes:
    """Encode the nearest double. `Special` where numeric_float8 reports out of range: overflow or underflow."""
    if raw in _NOT_FINITE:
        return encode_float8(raw)
    if not _NUMERIC.fullmatch(raw):
        raise ValueError("not a numeric")
    value = float(raw)
    if value in (math.inf, -math.inf) or (value == 0 and raw.strip(b"-0.")):
        raise Special(raw)
    return encode_float8(raw)


def _codec(avro: AvroType, encode: Encoder, *, special: str) -> Codec:
    return Codec(avro, encode, lambda raw: encode(text_of_binary(raw)), special)


VARIABLE_SCALE: AvroType = {
    "type": "record",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
"""Debezium's type for a numeric without precision."""

_STRING = replace(
    _codec("string", encode_text_numeric, special=""),
    text_op=Operation(Op.NUMERIC_TEXT),
    binary_op=Operation(Op.NUMERIC_BINARY),
    content="the server's text",
)
_DOUBLE = _codec("double", encode_double, special="values that PostgreSQL's cast refuses as out of range")
_VARIABLE = _codec(VARIABLE_SCALE, encode_variable_scale, special="NaN, infinities")


def _build_numeric(typmod: int, policy: Policy) -> Codec:
    if policy.numeric_as == "string":
        return _STRING
    if policy.numeric_as == "double":
        return _DOUBLE
    declared = precision_and_scale(typmod)
    if declared is not None:
        precision, scale = declared
        if 1 <= precision <= MAX_PRECISION and 0 <= scale <= precision:
            return _decimal(precision, scale)
    return _VARIABLE if policy.numeric_as == "variable_scale" else _STRING


BUILDERS: dict[int, Builder] = {NUMERIC: _build_numeric}

MODIFIERS = {
    NUMERIC: {
        f"with precision <= {MAX_PRECISION} and 0 <= scale <= precision": (
            _modifier(4, 4),
            _modifier(MAX_PRECISION, 0),
        ),
        "otherwise": (-1, _modifier(MAX_PRECISION + 1, 0), _modifier(2, 3), _modifier(2, -1)),
    }
}
"""Examples of the modifiers on which the Avro type depends, for docs/types.md."""
