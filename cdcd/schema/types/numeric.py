"""numeric(p,s) -> Avro decimal, numeric without precision -> string, money -> decimal(19,2).

In: the server's decimal text, or numeric_send's base-10000 digits (numeric.c: ndigits, weight, sign, dscale).
Out: two's complement of the unscaled value, big-endian, in as few bytes as it needs; or the text as a string.
Invariant: a value is exact or `Special` (NaN, infinities, a value with more digits than the type says).
Precision above 38, a negative scale and a scale above the precision have no Avro decimal that readers take:
string.
Money is read where its text ends in a separator and two digits (any lc_monetary with two fraction digits).
"""

from __future__ import annotations

import re
import struct

from cdcd.schema.codec import Builder, Codec, Encoder, Special
from cdcd.schema.policy import Policy
from cdcd.schema.varint import encode_bytes, encode_string

MONEY, NUMERIC = 790, 1700
MAX_PRECISION = 38

_NOT_FINITE = {b"NaN", b"Infinity", b"-Infinity"}
_NUMERIC = re.compile(rb"(-?)(\d+)(?:\.(\d+))?")
_MONEY = re.compile(rb"[^\d(-]*(\(|-)?[^\d()-]*(\d[\d., '\xa0\xc2\xe2\x80\xaf]*)[.,](\d\d)[^\d]*")
_SIGNS = {0x0000: b"", 0x4000: b"-"}
_SENT_NOT_FINITE = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """Return (p, s) of a numeric's type modifier (numeric.c, make_numeric_typmod), None without one."""
    if typmod < 4:
        return None
    packed = typmod - 4
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def encode_unscaled(n: int) -> bytes:
    """Return Avro decimal bytes of an unscaled value, as short as Java's BigInteger.toByteArray."""
    size = (n if n >= 0 else ~n).bit_length() // 8 + 1
    return encode_bytes(n.to_bytes(size, "big", signed=True))


def encode_text_numeric(raw: bytes) -> bytes:
    """Encode a numeric without precision: the server's text, NaN and infinities included."""
    if raw not in _NOT_FINITE and not _NUMERIC.fullmatch(raw):
        raise ValueError("not a numeric")
    return encode_string(raw)


def text_of_sent(raw: bytes) -> bytes:
    """Return the text of numeric_send's bytes, as numeric_out writes it."""
    count, weight, sign, dscale = struct.unpack_from(">HhHH", raw)
    if len(raw) != 8 + 2 * count:
        raise ValueError("not a sent numeric")
    if sign in _SENT_NOT_FINITE:
        return _SENT_NOT_FINITE[sign]
    digits = struct.unpack_from(f">{count}H", raw, 8)
    if any(digit > 9999 for digit in digits):
        raise ValueError("not a sent numeric")
    text = b"".join(b"%04d" % digit for digit in digits)
    point = 4 * (weight + 1)  # digits before the decimal point; may lie outside the digits sent
    if point < 0:
        text, point = b"0" * -point + text, 0
    text = text.ljust(max(point + dscale, len(text)), b"0")
    whole, fraction = text[:point].lstrip(b"0") or b"0", text[point : point + dscale]
    return _SIGNS[sign] + whole + (b"." + fraction if dscale else b"")


def _decimal(precision: int, scale: int) -> Codec:
    limit = 10**precision

    def encode(raw: bytes) -> bytes:
        whole, _, fraction = raw.partition(b".")
        digits = whole + fraction
        if not digits.isdigit() and not (digits[:1] == b"-" and digits[1:].isdigit()):
            if raw in _NOT_FINITE:
                raise Special(raw)
            raise ValueError("not a numeric")
        n = int(digits)
        if len(fraction) != scale:
            if len(fraction) > scale:
                raise Special(raw)
            n *= 10 ** (scale - len(fraction))
        if not -limit < n < limit:
            raise Special(raw)
        return encode_unscaled(n)

    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return Codec(avro, encode, _after(text_of_sent, encode))


def _after(text_of: Encoder, encode: Encoder) -> Encoder:
    return lambda raw: encode(text_of(raw))


def _build_numeric(typmod: int, policy: Policy) -> Codec:
    declared = precision_and_scale(typmod)
    if declared is not None:
        precision, scale = declared
        if 1 <= precision <= MAX_PRECISION and 0 <= scale <= precision:
            return _decimal(precision, scale)
    return Codec("string", encode_text_numeric, _after(text_of_sent, encode_text_numeric))


def encode_money(raw: bytes) -> bytes:
    """Encode cash_out's text. Raises ValueError where it does not end in two fraction digits."""
    match = _MONEY.fullmatch(raw)
    if match is None:
        raise ValueError("not a money amount with two fraction digits")
    sign, whole, fraction = match.groups()
    n = int(bytes(c for c in whole if 48 <= c <= 57) + fraction)
    return encode_unscaled(-n if sign else n)


def _build_money(typmod: int, policy: Policy) -> Codec:
    # cash_send is an integer whose scale only the server's locale knows, so there is no exact binary form.
    avro = {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2}
    return Codec(avro, encode_money)


BUILDERS: dict[int, Builder] = {NUMERIC: _build_numeric, MONEY: _build_money}
