"""Arrays, composites, ranges and multiranges of types that have a text function.

In: the functions of the parts by oid, and the bytes of array_send, record_send, range_send.
Out: the text with the quotes of array_out, record_out and range_out.
Invariant: the value itself names the types of its parts, and only those are used: an attribute that was added or
dropped since (F44) does not move a value to another attribute.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from cdcd.schema.binary_format.cut import TextOfBinary, all_of, int32_at, uint32_at, value_at

_MAX_DIMENSIONS = 6
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16

_is_bare_attribute = re.compile(rb'[^"\\(),\s]+').fullmatch
_is_bare_bound = re.compile(rb'[^"\\()\[\],\s]+').fullmatch


def _doubled(text: bytes) -> bytes:
    return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'""')


def array(element: TextOfBinary, element_oid: int, delimiter: str) -> TextOfBinary:
    """Return the function of an array; `delimiter` is the element type's typdelim."""
    split = delimiter.encode()
    is_bare = re.compile(rb'[^"\\{}\s' + re.escape(split) + rb"]+").fullmatch

    def quoted(text: bytes) -> bytes:
        if is_bare(text) and text.upper() != b"NULL":
            return text
        return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')

    def text(raw: bytes) -> bytes:
        bounds, items = _array_items(raw, element_oid)
        if not bounds:
            return b"{}"
        if not items:
            raise ValueError("an array has dimensions without elements")
        texts = [b"NULL" if item is None else quoted(element(item)) for item in items]
        for size, _ in reversed(bounds):
            texts = [b"{%s}" % split.join(texts[i : i + size]) for i in range(0, len(texts), size)]
        if any(lower != 1 for _, lower in bounds):
            return (
                b"".join(b"[%d:%d]" % (lower, lower + size - 1) for size, lower in bounds) + b"=" + texts[0]
            )
        return texts[0]

    return text


def vector(element: TextOfBinary, element_oid: int) -> TextOfBinary:
    """Return the function of int2vector and oidvector: an array in binary format, only its elements as text."""

    def text(raw: bytes) -> bytes:
        bounds, items = _array_items(raw, element_oid)
        if len(bounds) > 1:
            raise ValueError("not a binary vector")
        return b" ".join(element(item) for item in items)  # type: ignore[arg-type]

    return text


def _array_items(raw: bytes, element_oid: int) -> tuple[list[tuple[int, int]], list[bytes | None]]:
    dimensions, flags, oid = struct.unpack_from(">iiI", raw)
    if not 0 <= dimensions <= _MAX_DIMENSIONS or flags not in (0, 1) or oid != element_oid:
        raise ValueError("not a binary array of this type")
    bounds = [struct.unpack_from(">ii", raw, 12 + 8 * number) for number in range(dimensions)]
    position = 12 + 8 * dimensions
    count = 1 if dimensions else 0
    for size, _ in bounds:
        count *= size
        if size < 0 or count > (len(raw) - position) // 4:
            raise ValueError("an array has more elements than bytes")
    items = []
    for _ in range(count):
        item, position = value_at(raw, position)
        items.append(item)
    all_of(position, raw)
    return [(size, lower) for size, lower in bounds], items


def composite(functions: Mapping[int, TextOfBinary]) -> TextOfBinary:
    """Return the function of a composite type whose attributes have these types."""

    def shown(text: bytes) -> bytes:
        return text if _is_bare_attribute(text) else _doubled(text)

    def text(raw: bytes) -> bytes:
        count, position = int32_at(raw, 0), 4
        if not 0 <= count <= (len(raw) - 4) // 8:
            raise ValueError("not a binary composite")
        texts = []
        for _ in range(count):
            oid = uint32_at(raw, position)
            value, position = value_at(raw, position + 4)
            texts.append(b"" if value is None else shown(functions[oid](value)))
        all_of(position, raw)
        return b"(%s)" % b",".join(texts)

    return text


def span(subtype: TextOfBinary) -> TextOfBinary:
    """Return the function of a range of `subtype`."""

    def bound(raw: bytes, position: int) -> tuple[bytes, int]:
        value, position = value_at(raw, position)
        if value is None:
            raise ValueError("a bound is null")
        text = subtype(value)
        return text if _is_bare_bound(text) else _doubled(text), position

    def text(raw: bytes) -> bytes:
        flags, position = raw[0], 1
        if flags & _EMPTY:
            all_of(position, raw)
            return b"empty"
        if flags >= 32:
            raise ValueError("not a binary range")
        lower = upper = b""
        if not flags & _NO_LOWER:
            lower, position = bound(raw, position)
        if not flags & _NO_UPPER:
            upper, position = bound(raw, position)
        all_of(position, raw)
        opening = b"[" if flags & _LOWER_INCLUSIVE else b"("
        return opening + lower + b"," + upper + (b"]" if flags & _UPPER_INCLUSIVE else b")")

    return text


def spans(of: TextOfBinary) -> TextOfBinary:
    """Return the function of a multirange of these ranges."""

    def text(raw: bytes) -> bytes:
        count, position = uint32_at(raw, 0), 4
        if count > (len(raw) - 4) // 5:
            raise ValueError("a multirange has more ranges than bytes")
        texts: list[bytes] = []
        for _ in range(count):
            value, position = value_at(raw, position)
            if value is None:
                raise ValueError("a range is null")
            texts.append(of(value))
        all_of(position, raw)
        return b"{%s}" % b",".join(texts)

    return text
