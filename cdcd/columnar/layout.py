"""The output columns of a decoder as a flat list, which the C extension and its fallback share.

In: a nested Arrow schema.  Out: `Column`s in pre-order; column 0 is the struct of the whole record.
Invariant: a column's children have larger numbers than the column.
Must not: know Avro.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

from cdcd.errors import SparkReadError

TIMES = b"cdcd.times"
"""The metadata of an Arrow field whose int64 values, also in lists and maps, are times of day in microseconds."""
ONLY_TIMES = b"only"
ALSO_NUMBERS = b"also numbers"
"""The field has the values of two columns, and those of one of them are numbers."""


class ColumnKind(enum.IntEnum):
    """How a column is stored. The numbers are those of the C extension."""

    BIT = 0
    INT32 = 1
    INT64 = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    """16 bytes, little-endian."""
    BYTES = 6
    """Offsets of 32 bits and bytes."""
    LIST = 7
    MAP = 8
    STRUCT = 9


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `children`: the numbers of its items; of a map's keys and values; or of a struct's fields.

    `times`: the metadata `TIMES` of the field that the column is in, empty without it.
    """

    kind: ColumnKind
    type: pa.DataType
    children: tuple[int, ...] = ()
    times: bytes = b""

    @property
    def precision(self) -> int:
        """The number of decimal digits; 0 if the type has none."""
        return self.type.precision if self.kind is ColumnKind.DECIMAL else 0


_PLAIN = (
    (pa.types.is_boolean, ColumnKind.BIT),
    (pa.types.is_int32, ColumnKind.INT32),
    (pa.types.is_date32, ColumnKind.INT32),
    (pa.types.is_int64, ColumnKind.INT64),
    (pa.types.is_timestamp, ColumnKind.INT64),
    (pa.types.is_time64, ColumnKind.INT64),
    (pa.types.is_float32, ColumnKind.FLOAT),
    (pa.types.is_float64, ColumnKind.DOUBLE),
    (pa.types.is_decimal128, ColumnKind.DECIMAL),
    (pa.types.is_string, ColumnKind.BYTES),
    (pa.types.is_binary, ColumnKind.BYTES),
)


def kind_of(type_: pa.DataType) -> ColumnKind:
    """Return how a type is stored. Raises SparkReadError for a type that no Avro type becomes."""
    for is_one, kind in _PLAIN:
        if is_one(type_):
            return kind
    if pa.types.is_list(type_):
        return ColumnKind.LIST
    if pa.types.is_map(type_):
        return ColumnKind.MAP
    if pa.types.is_struct(type_):
        return ColumnKind.STRUCT
    raise SparkReadError("records cannot be decoded into a column of this type", type=str(type_))


def child_fields(type_: pa.DataType) -> list[pa.Field]:
    """Return the fields inside a type: of a struct its fields, of a map its key and value, of a list its items."""
    if pa.types.is_struct(type_):
        return [type_.field(number) for number in range(type_.num_fields)]
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.value_field] if pa.types.is_list(type_) else []


def columns_of(record: pa.StructType) -> tuple[Column, ...]:
    """Return the columns of a record with these fields. Raises SparkReadError for a type without a column."""
    columns: list[Column | None] = []

    def add(type_: pa.DataType, times: bytes) -> int:
        number = len(columns)
        columns.append(None)
        inherited = b"" if pa.types.is_struct(type_) else times
        children = tuple(
            add(field.type, (field.metadata or {}).get(TIMES, inherited)) for field in child_fields(type_)
        )
        columns[number] = Column(kind_of(type_), type_, children, times)
        return number

    add(record, b"")
    return tuple(one for one in columns if one is not None)
