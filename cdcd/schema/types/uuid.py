"""uuid -> Avro string with logicalType uuid.

In: uuid_out's 36 characters, or the 16 bytes of uuid_send.
Out: an Avro string of 36 characters.  Invariant: text in any other format is unreadable.
"""

from __future__ import annotations

import re

from cdcd.schema.codec import Builder, Codec, Op, Operation
from cdcd.schema.varint import encode_string

UUID = 2950

_is_uuid = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def encode_uuid(raw: bytes) -> bytes:
    """Encode uuid_out's lower-case text."""
    if not _is_uuid(raw):
        raise ValueError("not a uuid")
    return b"\x48" + raw  # 36 characters


def encode_binary_uuid(raw: bytes) -> bytes:
    """Encode uuid_send's 16 bytes."""
    if len(raw) != 16:
        raise ValueError("not a binary uuid")
    h = raw.hex()
    return encode_string(f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}".encode())


_CODEC = Codec(
    {"type": "string", "logicalType": "uuid"},
    encode_uuid,
    encode_binary_uuid,
    text_op=Operation(Op.UUID_TEXT),
    binary_op=Operation(Op.UUID_BINARY),
)

BUILDERS: dict[int, Builder] = {UUID: lambda typmod, policy: _CODEC}
