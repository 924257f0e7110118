"""boolean -> Avro boolean, bit(1) -> Avro boolean, bit(n) and varbit -> string of 0 and 1.

In: `t`/`f`, a string of 0 and 1, or the send format (one byte; int32 number of bits and the bits).
Out: one byte, or an Avro string.  Invariant: any other byte is unreadable.
"""

from __future__ import annotations

from cdcd.schema.codec import Builder, Codec
from cdcd.schema.policy import Policy
from cdcd.schema.varint import encode_string

BOOL, BIT, VARBIT = 16, 1560, 1562

_TEXT_BOOL = {b"t": b"\x01", b"f": b"\x00"}
_BINARY_BOOL = {b"\x01": b"\x01", b"\x00": b"\x00"}
_TEXT_BIT = {b"1": b"\x01", b"0": b"\x00"}


def encode_bits(raw: bytes) -> bytes:
    """Encode a text bit string. Raises ValueError on anything but 0 and 1."""
    if raw.strip(b"01"):
        raise ValueError("not a bit string")
    return encode_string(raw)


def bits_of_binary(raw: bytes) -> bytes:
    """Return the text of a sent bit string (varbit_send: int32 bits, then the bits from the left)."""
    count = int.from_bytes(raw[:4], "big", signed=True)
    body = raw[4:]
    if len(raw) < 4 or count < 0 or len(body) != (count + 7) // 8:
        raise ValueError("not a sent bit string")
    if not count:
        return b""
    return format(int.from_bytes(body, "big"), f"0{len(body) * 8}b").encode()[:count]


def _build_bool(typmod: int, policy: Policy) -> Codec:
    return Codec("boolean", _TEXT_BOOL.__getitem__, _BINARY_BOOL.__getitem__)


def _build_bit(typmod: int, policy: Policy) -> Codec:
    if typmod == 1:
        return Codec("boolean", _TEXT_BIT.__getitem__, lambda raw: _TEXT_BIT[bits_of_binary(raw)])
    return _build_varbit(typmod, policy)


def _build_varbit(typmod: int, policy: Policy) -> Codec:
    return Codec("string", encode_bits, lambda raw: encode_string(bits_of_binary(raw)))


BUILDERS: dict[int, Builder] = {BOOL: _build_bool, BIT: _build_bit, VARBIT: _build_varbit}
