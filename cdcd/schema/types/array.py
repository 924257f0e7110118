"""Arrays of any supported element -> Avro array of ["null", T].

In: array_out's text (`{1,NULL,"a \\"b\\""}`), or array_send (ndim, flags, element oid, bounds, elements).
Out: one Avro block and its end.  Invariant: only one dimension with lower bound 1 (or an empty array) is an
Avro array; in text anything else, and an array with an element that is special, is `Special` as a whole.
In binary such an array is unreadable: its text cannot be made without the element's output function.
"""

from __future__ import annotations

import re
import struct

from cdcd.schema.codec import Codec, Encoder, Special
from cdcd.schema.varint import encode_long

_BACKSLASHED = re.compile(rb"\\(.)", re.DOTALL)
_NULL = b"\x00"
_SOME = b"\x02"
_END = b"\x00"


def array_codec(element: Codec, element_oid: int, delimiter: str) -> Codec:
    """Return the codec of an array of `element`; `delimiter` is the element type's typdelim."""
    binary = None if element.binary is None else _binary(element.binary, element_oid)
    avro = {"type": "array", "items": ["null", element.avro]}
    return Codec(avro, _text(element.text, delimiter.encode()), binary, may_be_special=True)


def _text(encode: Encoder, delimiter: bytes) -> Encoder:
    separator = re.escape(delimiter)
    token = re.compile(
        rb'(?:"((?:[^"\\]|\\.)*)"|([^"\\{}' + separator + rb"]+))(" + separator + rb"|\Z)", re.DOTALL
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
            items.append(_BACKSLASHED.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
        else:
            items.append(None if bare == b"NULL" else bare)
        position = match.end()
        if end != delimiter:
            return items


def _binary(encode: Encoder, element_oid: int) -> Encoder:
    def encode_array(raw: bytes) -> bytes:
        dimensions, _, oid = struct.unpack_from(">iiI", raw)
        if oid != element_oid:
            raise ValueError("another element type")
        if dimensions == 0 and len(raw) == 12:
            return _END
        count, lower = struct.unpack_from(">ii", raw, 12)
        if dimensions != 1 or lower != 1:
            raise ValueError("an array of this shape has no binary encoder")
        if not 0 < count <= (len(raw) - 20) // 4:
            raise ValueError("not a sent array")
        try:
            return encode_long(count) + b"".join(_sent_items(raw, count, encode)) + _END
        except Special:
            raise ValueError("an array with this element has no binary encoder") from None

    return encode_array


def _sent_items(raw: bytes, count: int, encode: Encoder) -> list[bytes]:
    parts = []
    position = 20
    for _ in range(count):
        (size,) = struct.unpack_from(">i", raw, position)
        position += 4
        if size == -1:
            parts.append(_NULL)
            continue
        item = raw[position : position + size]
        if size < 0 or len(item) != size:
            raise ValueError("not a sent array")
        parts.append(_SOME + encode(item))
        position += size
    if position != len(raw):
        raise ValueError("bytes after the last element")
    return parts
