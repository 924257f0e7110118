"""Arrow types whose columns hold more than 2 GiB of texts or bytes.

In: the types of Spark and of delta-rs, whose texts have offsets of 32 bits.  Out: the same with offsets of 64 bits.
Invariant: a cast between both copies no text; Delta and Parquet have one type for both.
Must not: change another type. A list of more than 2,147,483,647 elements in one batch is not meant.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["shown", "wide"]


def wide(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which `take` and `combine_chunks` of a column have no limit of 2 GiB."""
    return pa.schema([pa.field(one.name, _wide(one.type), one.nullable, one.metadata) for one in schema])


def _wide(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_):
        return pa.large_string()
    if pa.types.is_binary(type_):
        return pa.large_binary()
    if pa.types.is_struct(type_):
        return pa.struct([_inside(one) for one in type_])
    if pa.types.is_map(type_):
        return pa.map_(_inside(type_.key_field), _inside(type_.item_field))
    if pa.types.is_list(type_):
        return pa.list_(_inside(type_.value_field))
    return type_


def _inside(field: pa.Field) -> pa.Field:
    return field.with_type(_wide(field.type))


def shown(type_: pa.DataType) -> str:
    """Return the usual name of a type, for an error."""
    return str(type_).replace("large_", "")
