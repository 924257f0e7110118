"""money -> Avro decimal(19, s), by policy string.

In: cash_out's text with lc_monetary C (`-$1,234.56`), which the session sets; or the int64 of cash_send.
Out: the stored int64 as an unscaled value; or a decimal number as a string.
Invariant: exact for every amount. The number of fraction digits depends on the database's lc_monetary, not on the
type, so it comes from the catalog (`PgType.fraction_digits`, passed as the type modifier). With lc_monetary C the
server always prints the stored number with two.
"""

from __future__ import annotations

import re
import struct

from cdcd.schema.codec import Builder, Codec
from cdcd.schema.policy import Policy
from cdcd.schema.types.numeric import encode_unscaled
from cdcd.schema.varint import encode_string

MONEY = 790

_PRECISION = 19  # of an int64
_DEFAULT_DIGITS = 2  # the default of cash.c for a locale without a number of digits

_is_money = re.compile(rb"(-?)\$(\d{1,3}(?:,\d{3})*)\.(\d\d)").fullmatch


def stored(raw: bytes) -> int:
    """Return the stored number of cash_out's text. Raises ValueError on the text of another lc_monetary."""
    match = _is_money(raw)
    if match is None:
        raise ValueError("not a money amount of lc_monetary C")
    n = int(match[2].replace(b",", b"") + match[3])
    return -n if match[1] else n


def encode_money(raw: bytes) -> bytes:
    """Encode cash_out's text as an unscaled value."""
    return encode_unscaled(stored(raw))


def encode_binary_money(raw: bytes) -> bytes:
    """Encode cash_send's eight bytes as an unscaled value."""
    (n,) = struct.unpack(">q", raw)
    return encode_unscaled(n)


def _number(n: int, digits: int) -> bytes:
    text = b"%0*d" % (digits + 1, abs(n))
    point = len(text) - digits
    sign = b"-" if n < 0 else b""
    return sign + text[:point] + (b"." + text[point:] if digits else b"")


def _as_string(digits: int) -> Codec:
    def encode(raw: bytes) -> bytes:
        return encode_string(_number(stored(raw), digits))

    def encode_binary(raw: bytes) -> bytes:
        (n,) = struct.unpack(">q", raw)
        return encode_string(_number(n, digits))

    return Codec("string", encode, encode_binary, content="a decimal number")


def _build_money(typmod: int, policy: Policy) -> Codec:
    digits = typmod if typmod >= 0 else _DEFAULT_DIGITS
    if policy.money_as == "string":
        return _as_string(digits)
    avro = {"type": "bytes", "logicalType": "decimal", "precision": _PRECISION, "scale": digits}
    return Codec(
        avro,
        encode_money,
        encode_binary_money,
        content="s is the number of fraction digits of the database's lc_monetary",
    )


BUILDERS: dict[int, Builder] = {MONEY: _build_money}

MODIFIERS = {MONEY: {"": (0, 2, 3)}}
"""Examples of the numbers of fraction digits, for docs/types.md."""
