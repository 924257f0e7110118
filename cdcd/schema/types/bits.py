"""bit(1) -> Avro boolean, bit(n) and varbit -> string of 0 and 1.

In: a string of 0 and 1, or the send format (int32 number of bits, then the bits from the left).
Out: one byte, or an Avro string.  Invariant: any other byte is unreadable.
"""

from __future__ import annotations

from cdcd.schema.codec import Builder, Codec
from cdcd.schema.policy import Policy
from cdcd.schema.varint import encode_string

BIT, VARBIT = 1560, 1562

_TEXT_BIT = {b"1": b"\x01", b"0": b"\x00"}


def encode_bits(raw: bytes) -> bytes:
    """Encode a text bit string. Raises ValueError on anything but 0 and 1."""
    if raw.strip(b"01"):
        raise ValueError("not a bit string")
    return encode_string(raw)


def bits_of_binary(raw: bytes) -> bytes:
    """Return the text of a binary bit string (varbit_send)."""
    count = int.from_bytes(raw[:4], "big", signed=True)
    body = raw[4:]
    if len(raw) < 4 or count < 0 or len(body) != (count + 7) // 8:
        raise ValueError("not a binary bit string")
    if not count:
        return b""
    return format(int.from_bytes(body, "big"), f"0{len(body) * 8}b").encode()[:count]


_ONE = Codec("boolean", _TEXT_BIT.__getitem__, lambda raw: _TEXT_BIT[bits_of_binary(raw)])
_MANY = Codec("string", encode_bits, lambda raw: encode_string(bits_of_binary(raw)), content="0 and 1")


def _build_bit(typmod: int, policy: Policy) -> Codec:
    return _ONE if typmod == 1 else _MANY


BUILDERS: dict[int, Builder] = {BIT: _build_bit, VARBIT: lambda typmod, policy: _MANY}

MODIFIERS = {BIT: {"of length 1": (1,), "otherwise": (-1, 2)}}
"""Examples of the modifiers on which the Avro type depends, for docs/types.md."""
