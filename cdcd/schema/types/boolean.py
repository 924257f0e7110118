"""boolean -> Avro boolean.

In: `t` or `f`, or the one byte of boolsend.
Out: one byte.  Invariant: any other byte is unreadable.
"""

from __future__ import annotations

from cdcd.schema.codec import Builder, Codec, Op, Operation

BOOL = 16

_TEXT = {b"t": b"\x01", b"f": b"\x00"}
_BINARY = {b"\x01": b"\x01", b"\x00": b"\x00"}
_CODEC = Codec(
    "boolean",
    _TEXT.__getitem__,
    _BINARY.__getitem__,
    text_op=Operation(Op.BOOLEAN_TEXT),
    binary_op=Operation(Op.BOOLEAN_BINARY),
)

BUILDERS: dict[int, Builder] = {BOOL: lambda typmod, policy: _CODEC}
