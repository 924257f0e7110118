"""The columns of a table as the open formats have them, Delta and Iceberg. Pure.

In: the columns of a table.  Out: the Arrow schema of its files, for Iceberg with the ids of all fields.
Invariant: a field has the same id in all files and schemas in which its column has one type: the id follows from the
number of the column, which no later column of the table gets.
Must not: import the library of a format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.columns import names_within, without_time
from cdcd.spark.target.shape import KEY, SPECIAL, Field, arrow_schema
from cdcd.spark.target.versions import TableFormat

__all__ = [
    "check_names",
    "delta_schema",
    "has_same_types",
    "iceberg_schema",
    "is_extended",
    "open_schema",
]

_OF_CDCD = {SPECIAL: 1, KEY: 4}
"""The ids of columns that no table of PostgreSQL has; those of a map's keys and values follow."""
_BEFORE_COLUMNS = 4
_FIRST_NESTED = 1 << 20
MOST_NESTED = 1 << 12
"""The most fields inside a column."""
_ID = b"PARQUET:field_id"


def open_schema(table_format: TableFormat, fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of the files of a table in an open format."""
    return iceberg_schema(fields) if table_format == "iceberg" else delta_schema(fields)


def delta_schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of a Delta table: a time of day, which it has not, is a number of microseconds."""
    return pa.schema([pa.field(one.name, without_time(one.type)) for one in arrow_schema(fields)])


def iceberg_schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of an Iceberg table, with the ids of their fields.

    A time of day is a number of microseconds, too: Spark reads no Iceberg table that has a column of that type.
    """
    fields = tuple(fields)
    columns = []
    for place, one in enumerate(delta_schema(fields)):
        if place < len(fields):
            number = fields[place].number
            nested = count(_FIRST_NESTED + number * MOST_NESTED)
            columns.append(_with_id(one, _BEFORE_COLUMNS + number, nested))
        else:
            columns.append(_with_id(one, _OF_CDCD[one.name], count(_OF_CDCD[one.name] + 1)))
    return pa.schema(columns)


def _with_id(one: pa.Field, number: int, nested: Iterator[int]) -> pa.Field:
    return pa.field(one.name, _with_ids(one.type, nested), one.nullable, {_ID: str(number).encode()})


def _with_ids(arrow: pa.DataType, nested: Iterator[int]) -> pa.DataType:
    """Return a type whose fields have ids, at each level."""
    if pa.types.is_list(arrow):
        return pa.list_(_with_id(arrow.value_field, next(nested), nested))
    if pa.types.is_map(arrow):
        return pa.map_(
            _with_id(arrow.key_field, next(nested), nested), _with_id(arrow.item_field, next(nested), nested)
        )
    if pa.types.is_struct(arrow):
        return pa.struct([_with_id(one, next(nested), nested) for one in arrow])
    return arrow


def check_names(table_format: TableFormat, topic: str, fields: Iterable[Field]) -> None:
    """Raise MirrorInconsistent for columns that a table of the format cannot have, or its readers cannot tell apart.

    Names differ not only in case. Iceberg also names a field inside a column with a dot, as a column may be named.
    """
    schema = open_schema(table_format, fields)
    nested = {one.name: [*names_within(one)] for one in schema}
    names = [*nested] if table_format == "delta" else [name for inside in nested.values() for name in inside]
    lowered = [name.lower() for name in names]
    if len(set(lowered)) < len(lowered):
        raise MirrorInconsistent(
            f"two columns differ only in the case of their names, which a table of the format {table_format} cannot "
            "have, or one has the name of a field inside another",
            topic=topic,
        )
    if table_format == "iceberg" and any(len(inside) > MOST_NESTED for inside in nested.values()):
        raise MirrorInconsistent(f"a column has more than {MOST_NESTED} fields inside", topic=topic)


def is_extended(table_format: TableFormat, old: Sequence[Field], new: Sequence[Field]) -> bool:
    """Return whether columns are those of a table, unchanged, and perhaps further ones."""
    if not old:
        return True
    held = {one.name: (one.number, one.type) for one in _columns(table_format, new)}
    return all(held.get(one.name) == (one.number, one.type) for one in _columns(table_format, old))


def has_same_types(old: Sequence[Field], new: Sequence[Field]) -> bool:
    """Return whether the columns that are in both have the same types, whatever their names are."""
    held = {one.number: one.type for one in _columns("iceberg", old)}
    return all(held.get(one.number, one.type) == one.type for one in _columns("iceberg", new))


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    number: int
    type: pa.DataType


def _columns(table_format: TableFormat, fields: Sequence[Field]) -> list[_Column]:
    schema = open_schema(table_format, fields)
    return [_Column(one.name, one.number, schema.field(one.name).type) for one in fields]
