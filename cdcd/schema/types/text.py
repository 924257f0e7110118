"""Strings of the server's own text: the text family, json, xml, enums, and any type unknown here.

In: UTF-8 text, or the send format where that is the same text (jsonb: after a version byte 1).
Out: an Avro string, byte for byte.  Invariant: nothing is trimmed, padded or re-formatted.
json and jsonb carry the Kafka Connect name that Debezium's readers know.
Hstore and composite types are text for now; their map and record forms come with the rest of the type matrix.
"""

from __future__ import annotations

from cdcd.schema.codec import AvroType, Builder, Codec
from cdcd.schema.varint import encode_string

CHAR, NAME, TEXT, JSON, XML, UNKNOWN, BPCHAR, VARCHAR, JSONB = 18, 19, 25, 114, 142, 705, 1042, 1043, 3802

JSON_TYPE: AvroType = {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Json"}

PLAIN = Codec("string", encode_string, encode_string)
"""A type whose send function sends its text: the text family, enums, citext."""

TEXT_ONLY = Codec("string", encode_string)
"""Any other type: the server's text output; its binary form is not known here."""


def encode_sent_jsonb(raw: bytes) -> bytes:
    """Encode jsonb_send's bytes: version 1, then the text. Raises ValueError on another version."""
    if raw[:1] != b"\x01":
        raise ValueError("not jsonb version 1")
    return encode_string(raw[1:])


def encode_sent_char(raw: bytes) -> bytes:
    """Encode "char"'s one byte: zero is empty text; above 127 the text depends on the server's version."""
    if len(raw) != 1 or raw[0] > 127:
        raise ValueError("not an ASCII character")
    return encode_string(raw.rstrip(b"\x00"))


BUILDERS: dict[int, Builder] = {
    **dict.fromkeys((NAME, TEXT, XML, UNKNOWN, BPCHAR, VARCHAR), lambda typmod, policy: PLAIN),
    CHAR: lambda typmod, policy: Codec("string", encode_string, encode_sent_char),
    JSON: lambda typmod, policy: Codec(JSON_TYPE, encode_string, encode_string),
    JSONB: lambda typmod, policy: Codec(JSON_TYPE, encode_string, encode_sent_jsonb),
}
