"""Arrays of any supported element -> Avro array of ["null", T].

In: array_out's text (`{1,NULL,"a \\"b\\""}`).
Out: one Avro block and its end.
Invariant: only an array of one dimension with lower bound 1 (or an empty array) is an Avro array; any other array,
and an array with a special element, is `Special` as a whole. A binary array is first converted to this text
(`cdcd.schema.binary_format`), so both formats give the same bytes.
"""

from __future__ import annotations

import re

from cdcd.schema.codec import CALL, Codec, Encoder, Op, Operation, Special
from cdcd.schema.types.quoted import BACKSLASHED, of_backslashed
from cdcd.schema.varint import encode_long

_NULL = b"\x00"
_SOME = b"\x02"
_END = b"\x00"
_SPECIAL = "more than one dimension, a lower bound other than 1, a special element"


def array_codec(element: Codec, delimiter: str) -> Codec:
    """Return the codec of an array of `element`; `delimiter` is the element type's typdelim."""
    avro = {"type": "array", "items": ["null", element.avro]}
    operation = CALL
    if element.text_op.op is not Op.CALL and len(delimiter.encode()) == 1:
        operation = Operation(Op.ARRAY_TEXT, ord(delimiter), element=element.text_op)
    return Codec(avro, _text(element.text, delimiter.encode()), special=_SPECIAL, text_op=operation)


def _text(encode: Encoder, delimiter: bytes) -> Encoder:
    separator = re.escape(delimiter)
    token = re.compile(
        rb'(?:"(' + BACKSLASHED + rb')"|([^"\\{}' + separator + rb"]+))(" + separator + rb"|\Z)"
    )

    def encode_array(raw: bytes) -> bytes:
        if raw == b"{}":
            return _END
        body = raw[1:-1]
        if raw[:1] == b"[" or body[:1] == b"{":
            raise Special(raw)
        if raw[:1] != b"{" or raw[-1:] != b"}" or len(raw) < 3:
            raise ValueError("not an array")
        if b'"' in body:
            items = _cut(body, token, delimiter)
        else:
            items = [None if item == b"NULL" else item for item in body.split(delimiter)]
            if b"" in items or b"{" in body or b"}" in body or b"\\" in body:
                raise ValueError("not an array")
        try:
            parts = [_NULL if item is None else _SOME + encode(item) for item in items]
        except Special:
            raise Special(raw) from None
        return encode_long(len(parts)) + b"".join(parts) + _END

    return encode_array


def _cut(body: bytes, token: re.Pattern[bytes], delimiter: bytes) -> list[bytes | None]:
    items: list[bytes | None] = []
    position = 0
    while True:
        match = token.match(body, position)
        if match is None:
            raise ValueError("not an array")
        quoted, bare, end = match.groups()
        if quoted is not None:
            items.append(of_backslashed(quoted))
        else:
            items.append(None if bare == b"NULL" else bare)
        position = match.end()
        if end != delimiter:
            return items
