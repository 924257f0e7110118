"""bytea -> Avro bytes.

In: bytea's hex text (bytea_output hex), or the bytes themselves.
Out: Avro bytes.  Invariant: text that is not hex is unreadable; the session's settings exclude the escape format.
"""

from __future__ import annotations

from binascii import unhexlify

from cdcd.schema.codec import Builder, Codec, Op, Operation
from cdcd.schema.varint import encode_bytes

BYTEA = 17


def encode_bytea(raw: bytes) -> bytes:
    """Encode byteaout's hex format. Raises ValueError on the escape format."""
    if raw[:2] != b"\\x":
        raise ValueError("not hex bytea")
    return encode_bytes(unhexlify(raw[2:]))


_CODEC = Codec(
    "bytes",
    encode_bytea,
    encode_bytes,
    text_op=Operation(Op.BYTEA_TEXT),
    binary_op=Operation(Op.BYTES),
)

BUILDERS: dict[int, Builder] = {BYTEA: lambda typmod, policy: _CODEC}
