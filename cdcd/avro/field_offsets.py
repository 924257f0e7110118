"""The offsets of a record's fields in its Avro bytes.

In: a record's schema as cdcd makes it, and the bytes written with it.  Out: the start and end of each field.
Invariant: only lengths, counts and branches are decoded, never values (Avro specification, "Binary Encoding"). Bytes
that do not match the schema are an error.
Must not: be called for each row.
"""

from __future__ import annotations

from typing import Any

from cdcd.errors import SchemaError
from cdcd.schema.codec import AvroSchema
from cdcd.schema.varint import decode_long

Span = tuple[int, int]
"""Offsets of a field's first byte and of the byte after its last."""

_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = ("int", "long", "enum")
_SIZED = ("bytes", "string")


def field_offsets(schema: AvroSchema, data: bytes, at: int, named: dict[str, Any]) -> dict[str, Span]:
    """Return the span of each field of a record that begins at `at`. `named` is the result of `named_types`.

    Raises SchemaError where the bytes do not match the schema.
    """
    offsets = {}
    try:
        for field in schema["fields"]:
            end = _skip(field["type"], data, at, named)
            offsets[field["name"]] = (at, end)
            at = end
    except (IndexError, KeyError) as error:
        raise SchemaError("a record's bytes do not match its schema", name=schema.get("name")) from error
    if at > len(data):
        raise SchemaError("a record ends before its last field", name=schema.get("name"))
    return offsets


def named_types(avro: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema's records by name: later in the schema, a name refers to a record defined before."""
    found = {} if found is None else found
    if isinstance(avro, list):
        for branch in avro:
            named_types(branch, found)
    elif isinstance(avro, dict):
        if avro["type"] == "record":
            found[avro["name"]] = avro
            for field in avro["fields"]:
                named_types(field["type"], found)
        else:
            named_types(avro.get("items", avro.get("values")), found)
    return found


def _skip(avro: Any, data: bytes, at: int, named: dict[str, Any]) -> int:
    """Return the end of the value that begins at `at`."""
    if isinstance(avro, list):
        branch, at = decode_long(data, at)
        return _skip(avro[branch], data, at, named)
    if isinstance(avro, str):
        kind, avro = avro, named.get(avro, {})
        kind = avro.get("type", kind)
    else:
        kind = avro["type"]
    if not isinstance(kind, str):
        return _skip(kind, data, at, named)
    if kind == "record":
        for field in avro["fields"]:
            at = _skip(field["type"], data, at, named)
        return at
    if kind in _FIXED_BYTES:
        return at + _FIXED_BYTES[kind]
    if kind in _VARINTS:
        return decode_long(data, at)[1]
    if kind in _SIZED:
        size, at = decode_long(data, at)
        return at + size
    return _skip_blocks(avro, data, at, named)


def _skip_blocks(avro: Any, data: bytes, at: int, named: dict[str, Any]) -> int:
    """Return the end of an array or a map. A negative block count is followed by the block's size in bytes."""
    is_map = avro["type"] == "map"
    of = avro["values" if is_map else "items"]
    while True:
        count, at = decode_long(data, at)
        if count == 0:
            return at
        if count < 0:
            size, at = decode_long(data, at)
            at += size
            continue
        for _ in range(count):
            if is_map:
                at = _skip("string", data, at, named)
            at = _skip(of, data, at, named)
