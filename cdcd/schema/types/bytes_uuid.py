"""bytea -> Avro bytes, uuid -> Avro string with logicalType uuid.

In: bytea's hex text (bytea_output hex) or the bytes; uuid's 36 characters or its 16 bytes.
Out: Avro bytes; Avro string.  Invariant: text that is not exactly of that form is unreadable.
"""

from __future__ import annotations

import re
from binascii import unhexlify

from cdcd.schema.codec import Builder, Codec
from cdcd.schema.varint import encode_bytes, encode_string

BYTEA, UUID = 17, 2950

_is_uuid = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def encode_bytea(raw: bytes) -> bytes:
    """Encode byteaout's hex form. Raises ValueError on the escape form, which this session never asks for."""
    if raw[:2] != b"\\x":
        raise ValueError("not hex bytea")
    return encode_bytes(unhexlify(raw[2:]))


def encode_uuid(raw: bytes) -> bytes:
    """Encode uuid_out's lower-case text."""
    if not _is_uuid(raw):
        raise ValueError("not a uuid")
    return b"\x48" + raw  # 36 characters


def encode_sent_uuid(raw: bytes) -> bytes:
    """Encode uuid_send's 16 bytes."""
    if len(raw) != 16:
        raise ValueError("not a sent uuid")
    h = raw.hex()
    return encode_string(f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}".encode())


BUILDERS: dict[int, Builder] = {
    BYTEA: lambda typmod, policy: Codec("bytes", encode_bytea, encode_bytes),
    UUID: lambda typmod, policy: Codec(
        {"type": "string", "logicalType": "uuid"}, encode_uuid, encode_sent_uuid
    ),
}
