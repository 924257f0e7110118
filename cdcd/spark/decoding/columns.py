"""Avro types as Arrow types, and decoded values as Arrow columns.

In: an expanded Avro type (logical types included) and values decoded under the schema without logical types:
numbers and bytes as on the wire.  Out: an Arrow type, or an Arrow array of it.
Invariant: no value is converted to a Python date or time, so the full range of the wire is preserved; decimals have
all their 38 digits.  Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.errors import SparkReadError

AvroType = Any
FieldOf = Callable[[AvroType, pa.DataType], pa.Field]

_PRIMITIVES: dict[str, Callable[[], pa.DataType]] = {
    "boolean": pa.bool_,
    "int": pa.int32,
    "long": pa.int64,
    "float": pa.float32,
    "double": pa.float64,
    "string": pa.string,
    "bytes": pa.binary,
    "fixed": pa.binary,
    "enum": pa.string,
}
_LOGICAL: dict[tuple[str, str], Callable[[], pa.DataType]] = {
    ("int", "date"): pa.date32,
    ("long", "time-micros"): lambda: pa.time64("us"),
    ("long", "timestamp-micros"): lambda: pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-micros"): lambda: pa.timestamp("us"),
}
_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
}


def without_null(avro: AvroType) -> AvroType:
    """Return T of ["null", T]. Raises SparkReadError for any other union."""
    if not isinstance(avro, list):
        return avro
    branches = [branch for branch in avro if branch != "null"]
    if len(branches) != 1:
        raise SparkReadError("a union of several types has no column type", branches=len(branches))
    return branches[0]


def _kind(avro: AvroType) -> str:
    kind = avro["type"] if isinstance(avro, dict) else avro
    return _kind(kind) if isinstance(kind, dict) else str(kind)


def _logical(avro: AvroType) -> str | None:
    return avro.get("logicalType") if isinstance(avro, dict) else None


def plain_field(one: AvroType, arrow: pa.DataType) -> pa.Field:
    """Return the field of a record under its Avro name."""
    return pa.field(one["name"], arrow)


def arrow_type(avro: AvroType, field_of: FieldOf = plain_field) -> pa.DataType:
    """Return the Arrow type of an expanded Avro type. An unknown logical type becomes its plain type.

    `field_of`: returns the Arrow field of an Avro field, at each level.
    """
    avro = without_null(avro)
    kind, logical = _kind(avro), _logical(avro)
    if kind in ("bytes", "fixed") and logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if kind == "array":
        return pa.list_(arrow_type(avro["items"], field_of))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(avro["values"], field_of))
    if kind == "record":
        return pa.struct([field_of(one, arrow_type(one["type"], field_of)) for one in avro["fields"]])
    special = _LOGICAL.get((kind, logical or ""))
    known = special or _PRIMITIVES.get(kind)
    if known is None:
        raise SparkReadError("an Avro type has no column type", type=kind)
    return known()


def arrow_array(values: Sequence[Any], avro: AvroType) -> pa.Array:
    """Return the values as a column; None is null."""
    avro = without_null(avro)
    kind, logical = _kind(avro), _logical(avro)
    target = arrow_type(avro)
    if kind == "array":
        return _lists(values, avro["items"], target)
    if kind == "map":
        return _maps(values, avro["values"], target)
    if kind == "record":
        return _records(values, avro["fields"], target)
    if pa.types.is_decimal(target):
        return _decimals(values, target)
    if (kind, logical or "") in _LOGICAL:
        return pa.array(values, pa.int32() if kind == "int" else pa.int64()).view(target)
    if pa.types.is_floating(target):
        return _floats(values, target)
    return pa.array(values, target)


def _floats(values: Sequence[float | None], target: pa.DataType) -> pa.Array:
    """Return floating-point numbers. An integer, under a former type, becomes the nearest one."""
    if not any(type(value) is int for value in values):
        return pa.array(values, target)
    integers = pa.array([value if type(value) is int else None for value in values], pa.int64())
    others = pa.array([None if type(value) is int else value for value in values], target)
    return pc.coalesce(integers.cast(target, safe=False), others)


def _decimals(values: Sequence[bytes | None], target: pa.DataType) -> pa.Array:
    """Return an Arrow array (16 bytes little-endian) of Avro decimals (big-endian two's complement, any length)."""
    zero = bytes(16)
    data = b"".join(
        zero
        if value is None
        else int.from_bytes(value, "big", signed=True).to_bytes(16, "little", signed=True)
        for value in values
    )
    return pa.Array.from_buffers(target, len(values), [_validity(values), pa.py_buffer(data)])


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if all(value is not None for value in values):
        return None
    return pa.array([value is not None for value in values], pa.bool_()).buffers()[1]


def _offsets(values: Sequence[Any]) -> pa.Buffer:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + (0 if value is None else len(value)))
    return pa.array(ends, pa.int32()).buffers()[1]


def _lists(values: Sequence[list[Any] | None], items: AvroType, target: pa.DataType) -> pa.Array:
    flat = [item for value in values if value is not None for item in value]
    return pa.Array.from_buffers(
        target, len(values), [_validity(values), _offsets(values)], children=[arrow_array(flat, items)]
    )


def _maps(values: Sequence[dict[str, Any] | None], item: AvroType, target: pa.DataType) -> pa.Array:
    keys = pa.array([key for value in values if value is not None for key in value], pa.string())
    items = arrow_array([one for value in values if value is not None for one in value.values()], item)
    entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    return pa.Array.from_buffers(
        target, len(values), [_validity(values), _offsets(values)], children=[entries]
    )


def _records(
    values: Sequence[dict[str, Any] | None], fields: list[dict[str, Any]], target: pa.DataType
) -> pa.Array:
    children = [
        arrow_array([None if value is None else value.get(one["name"]) for value in values], one["type"])
        for one in fields
    ]
    return pa.Array.from_buffers(target, len(values), [_validity(values)], children=children)


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type with integers in place of dates and times, so that its Python values are numbers."""
    if pa.types.is_timestamp(arrow) or pa.types.is_time64(arrow):
        return pa.int64()
    if pa.types.is_date32(arrow):
        return pa.int32()
    if pa.types.is_list(arrow):
        return pa.list_(plain_type(arrow.value_type))
    if pa.types.is_map(arrow):
        return pa.map_(pa.string(), plain_type(arrow.item_type))
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(one.name, plain_type(one.type)) for one in arrow])
    return arrow


def without_time(arrow: pa.DataType) -> pa.DataType:
    """Return the type with microseconds in place of times of day, which Spark's tasks and Delta do not have."""
    if pa.types.is_time64(arrow):
        return pa.int64()
    if pa.types.is_list(arrow):
        return pa.list_(without_time(arrow.value_type))
    if pa.types.is_map(arrow):
        return pa.map_(arrow.key_type, without_time(arrow.item_type))
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(one.name, without_time(one.type)) for one in arrow])
    return arrow


def names_within(one: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield the name of a field, and those of the fields inside it, with dots, as Iceberg names them."""
    name = f"{prefix}{one.name}"
    yield name
    for inside in _inside(one.type):
        yield from names_within(inside, f"{name}.")


def _inside(arrow: pa.DataType) -> list[pa.Field]:
    if pa.types.is_list(arrow):
        return [pa.field("element", arrow.value_type)]
    if pa.types.is_map(arrow):
        return [pa.field("key", arrow.key_type), pa.field("value", arrow.item_type)]
    return list(arrow) if pa.types.is_struct(arrow) else []


def continues(old: AvroType, new: AvroType) -> bool:
    """Return whether values of the old type are values of the new one, by Avro's promotions.

    Decimals of another scale are not, because their bytes mean another number.
    """
    old, new = without_null(old), without_null(new)
    old_kind, new_kind = _kind(old), _kind(new)
    if old_kind != new_kind:
        return (old_kind, new_kind) in _PROMOTIONS and not (_logical(old) or _logical(new))
    if old_kind == "array":
        return continues(old["items"], new["items"])
    if old_kind == "map":
        return continues(old["values"], new["values"])
    if old_kind == "record":
        olds = {one["name"]: one["type"] for one in old["fields"]}
        return all(
            one["name"] not in olds or continues(olds[one["name"]], one["type"]) for one in new["fields"]
        )
    old_type, new_type = arrow_type(old), arrow_type(new)
    if pa.types.is_decimal(old_type) and pa.types.is_decimal(new_type):
        return bool(old_type.scale == new_type.scale and old_type.precision <= new_type.precision)
    return bool(old_type == new_type)


def has_same_bytes(old: AvroType, new: AvroType) -> bool:
    """Return whether a value has the same bytes under both types, of which the new one `continues` the old one.

    Then the keys of rows remain equal.
    """
    if isinstance(old, list) != isinstance(new, list):
        return False
    old, new = without_null(old), without_null(new)
    old_kind, new_kind = _kind(old), _kind(new)
    if old_kind != new_kind:
        return {old_kind, new_kind} == {"int", "long"}
    if old_kind == "array":
        return has_same_bytes(old["items"], new["items"])
    if old_kind == "map":
        return has_same_bytes(old["values"], new["values"])
    if old_kind == "record":
        pairs = [*zip(old["fields"], new["fields"], strict=False)]
        return len(old["fields"]) == len(new["fields"]) and all(
            one["name"] == other["name"] and has_same_bytes(one["type"], other["type"])
            for one, other in pairs
        )
    if old_kind == "enum":
        return list(old["symbols"]) == list(new["symbols"])[: len(old["symbols"])]
    return bool(old_kind != "fixed" or old["size"] == new["size"])
