"""Strings of the server's own text: the text family, xml, full text search, enums, and all types of no other family.

In: UTF-8 text, or the send format where it is the same text.
Out: an Avro string, byte for byte.  Invariant: the text is not trimmed, padded or reformatted.
"""

from __future__ import annotations

from dataclasses import replace

from cdcd.schema.codec import Builder, Codec, Op, Operation
from cdcd.schema.varint import encode_string

CHAR, NAME, TEXT, XML, UNKNOWN, BPCHAR, VARCHAR, REFCURSOR = 18, 19, 25, 142, 705, 1042, 1043, 1790
TSVECTOR, TSQUERY, JSONPATH = 3614, 3615, 4072

_STRING = Operation(Op.STRING)

PLAIN = Codec("string", encode_string, encode_string, text_op=_STRING, binary_op=_STRING)
"""A type whose send function sends its text: the text family, citext."""

ENUM = replace(PLAIN, content="the label")
"""Any enum."""

TEXT_ONLY = Codec("string", encode_string, text_op=_STRING, content="the server's text")
"""Any other type: the server's text output."""


def encode_binary_char(raw: bytes) -> bytes:
    """Encode the byte of "char": zero is empty text; above 127 the text depends on the server's version."""
    if len(raw) != 1 or raw[0] > 127:
        raise ValueError("not an ASCII character")
    return encode_string(raw.rstrip(b"\x00"))


_CHAR = Codec("string", encode_string, encode_binary_char, text_op=_STRING)

BUILDERS: dict[int, Builder] = {
    **dict.fromkeys((NAME, TEXT, XML, UNKNOWN, BPCHAR, VARCHAR, REFCURSOR), lambda typmod, policy: PLAIN),
    **dict.fromkeys((TSVECTOR, TSQUERY, JSONPATH), lambda typmod, policy: TEXT_ONLY),
    CHAR: lambda typmod, policy: _CHAR,
}
