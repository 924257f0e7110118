"""smallint, integer -> Avro int; bigint, oid, xid, cid, xid8 -> Avro long.

In: decimal digits with an optional minus, or the big-endian send format of the type's width.
Out: a zig-zag varint.  Invariant: a number outside the type's range is unreadable; an xid8 beyond int64 is special.
"""

from __future__ import annotations

import struct

from cdcd.schema.codec import Builder, Codec, Encoder, Op, Operation, Special
from cdcd.schema.varint import MAX_LONG, MIN_LONG, encode_long

INT8, INT2, INT4, OID, XID, CID, XID8 = 20, 21, 23, 26, 28, 29, 5069


def parse_integer(raw: bytes) -> int:
    """Return the number of the server's decimal text; stricter than int(), which accepts `1_0`."""
    if raw.isdigit() or (raw[:1] == b"-" and raw[1:].isdigit()):
        return int(raw)
    raise ValueError("not an integer")


def _text(low: int, high: int) -> Encoder:
    def encode(raw: bytes) -> bytes:
        if not raw.isdigit() and not (raw[:1] == b"-" and raw[1:].isdigit()):
            raise ValueError("not an integer")
        n = int(raw)
        if low <= n <= high:
            return encode_long(n)
        raise ValueError("out of the type's range")

    return encode


def _binary(layout: str) -> Encoder:
    unpack = struct.Struct(layout).unpack

    def encode(raw: bytes) -> bytes:
        return encode_long(unpack(raw)[0])

    return encode


def _builder(avro: str, low: int, high: int, layout: str) -> Builder:
    binary = Op.UNSIGNED_BINARY if layout == ">I" else Op.INTEGER_BINARY
    codec = Codec(
        avro,
        _text(low, high),
        _binary(layout),
        text_op=Operation(Op.INTEGER_TEXT, low, high),
        binary_op=Operation(binary, struct.calcsize(layout)),
    )
    return lambda typmod, policy: codec


def encode_xid8(raw: bytes) -> bytes:
    """Encode an unsigned 64-bit transaction id's text; beyond int64 it is `Special`."""
    n = parse_integer(raw)
    if n > MAX_LONG:
        raise Special(raw)
    return encode_long(n)


def encode_binary_xid8(raw: bytes) -> bytes:
    """Encode xid8send's eight bytes."""
    (n,) = struct.unpack(">Q", raw)
    return encode_xid8(b"%d" % n)


_XID8 = Codec(
    "long",
    encode_xid8,
    encode_binary_xid8,
    special="above 2^63 - 1",
    text_op=Operation(Op.INTEGER_TEXT, MIN_LONG, MAX_LONG),
    binary_op=Operation(Op.UNSIGNED_BINARY, 8),
)

BUILDERS: dict[int, Builder] = {
    INT2: _builder("int", -(1 << 15), (1 << 15) - 1, ">h"),
    INT4: _builder("int", -(1 << 31), (1 << 31) - 1, ">i"),
    INT8: _builder("long", -(1 << 63), (1 << 63) - 1, ">q"),
    OID: _builder("long", 0, (1 << 32) - 1, ">I"),
    XID: _builder("long", 0, (1 << 32) - 1, ">I"),
    CID: _builder("long", 0, (1 << 32) - 1, ">I"),
    XID8: lambda typmod, policy: _XID8,
}
