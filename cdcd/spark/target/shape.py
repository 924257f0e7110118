"""The columns of a target's table, and the conversion of older files' rows to the current columns.

In: Avro types, the columns of a file, the current ones.  Out: Arrow schemas, and tables with `__special` and `__key`.
Incomplete rows, those with columns whose value the reader does not have, also have `__missing`.
Invariant: a column is identified by its number, whatever its name is; a column that was dropped and added again has
another number, and starts empty, without values of the old column.  Must not: do I/O, log values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding.columns import AvroType, arrow_type, plain_type
from cdcd.spark.decoding.events import BEGINNING, Sequence

KEY = "__key"
SPECIAL = "__special"
SPECIAL_TYPE = pa.map_(pa.string(), pa.string())
MISSING = "__missing"
MISSING_TYPE = pa.map_(pa.int32(), pa.int64())
"""Of an incomplete row: the numbers of its columns without a value, with the commit LSN of the first change that did
not send the value. Null for a complete row."""


AT_TYPE = pa.struct([(name, pa.int64()) for name in Sequence._fields])
CHANGE = "__change_that_made_this_line_in_the_history_of_the_rows_of_a_table"
"""The last column of a file of the history. No column of PostgreSQL has a name of more than 63 bytes."""
CHANGE_TYPE = pa.struct(
    [("op", pa.string()), ("at", AT_TYPE), ("commit_us", pa.int64()), ("unsent", pa.list_(pa.int32()))]
)
"""The change's operation, its position, the time of its commit (Unix epoch, microseconds; null if unknown), and the
numbers of the columns of which the line has no value: the value is that of the key's line before."""


Retained = Literal["", "dropped", "type"]
"""Why the table has a column that PostgreSQL's does not have: it was dropped, or got an incompatible type."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the target. `number` identifies the column, so a dropped and re-added name has another number.

    `is_later`: rows existed before the column, and PostgreSQL does not send the default value that they got.
    `attnum`: its number in PostgreSQL's table, 0 if no schema has it. `is_carried`: the newest schema lacks it,
    so it is the number of a column that had this name before. `retained`: the column has no later values, "" if it is
    in the newest schema.
    """

    number: int
    name: str
    avro_name: str
    avro: AvroType
    is_later: bool = False
    attnum: int = 0
    is_carried: bool = False
    retained: Retained = ""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The table of a fold. `watermark`: the last applied change; `emptied_at`: the last TRUNCATE."""

    topic: str
    keyed: bool
    fields: tuple[Field, ...]
    watermark: Sequence = BEGINNING
    emptied_at: Sequence = BEGINNING
    began_after: Mapping[str, Sequence] = field(default_factory=dict)
    """By Avro name: values of changes up to this position belong to another column of the same name."""
    renames: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By schema id: the names of columns in its records that are not their current Avro names, with these."""
    lacks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By schema id: the Avro names of columns that its records do not have, and that rows before them may have."""


def arrow_schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of the target's files."""
    columns = [pa.field(one.name, arrow_type(one.avro)) for one in fields]
    return pa.schema([*columns, pa.field(SPECIAL, SPECIAL_TYPE), pa.field(KEY, pa.binary())])


def history_schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of a file of the history: those of the target's files, and the change."""
    return pa.schema([*arrow_schema(fields), pa.field(CHANGE, CHANGE_TYPE)])


def as_complete(rows: pa.Table) -> pa.Table:
    """Return complete rows with the column `__missing`."""
    return rows.append_column(MISSING, pa.nulls(rows.num_rows, MISSING_TYPE))


def divide(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the complete rows, without `__missing`, and the incomplete ones."""
    missing = rows.column(MISSING)
    incomplete = rows.filter(pc.is_valid(missing))
    complete = rows if not incomplete.num_rows else rows.filter(pc.is_null(missing))
    return complete.drop_columns([MISSING]), incomplete


def with_digests(rows: pa.Table, shape: TableShape) -> pa.Table:
    """Return the rows with `__key`, the digest of all non-null values, so that equal rows have equal keys."""
    named = sorted(one.name for one in shape.fields)
    plain = [rows.column(name).cast(plain_type(rows.schema.field(name).type)).to_pylist() for name in named]
    specials = rows.column(SPECIAL).to_pylist()
    digests = []
    for number in range(rows.num_rows):
        values = [
            (name, column[number])
            for name, column in zip(named, plain, strict=True)
            if column[number] is not None
        ]
        text = repr((values, sorted(specials[number] or ())))
        digests.append(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    place = rows.schema.get_field_index(KEY)
    return rows.set_column(place, pa.field(KEY, pa.binary()), pa.array(digests, pa.binary()))


def align(rows: pa.Table, numbers: Iterable[int], shape: TableShape) -> pa.Table:
    """Return rows of an older file with the current columns; missing columns are null.

    `numbers` are those of the file's columns, in order. A bag's digests are recomputed if a column was dropped or
    renamed.
    """
    numbers = tuple(numbers)
    held = dict(zip(numbers, rows.columns[:-2], strict=True))
    columns = [
        _widened(held[one.number], arrow_type(one.avro))
        if one.number in held
        else pa.nulls(rows.num_rows, arrow_type(one.avro))
        for one in shape.fields
    ]
    shown = {one.number: one.name for one in shape.fields}
    names = {name: shown.get(number) for name, number in zip(rows.column_names[:-2], numbers, strict=True)}
    table = pa.Table.from_arrays(
        [*columns, _renamed_specials(rows.column(SPECIAL), names), rows.column(KEY)],
        schema=arrow_schema(shape.fields),
    )
    now = {one.number: arrow_type(one.avro) for one in shape.fields}
    is_named = all(name == names[name] for name in rows.column_names[:-2])
    grown_only = is_named and all(
        number in now and now[number] == column.type for number, column in held.items()
    )
    return table if shape.keyed or grown_only else with_digests(table, shape)


def _widened(column: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """Return a column of an older file with the current type. An integer becomes the nearest floating-point one."""
    return column.cast(to, safe=not _is_rounded(column.type, to))


def _is_rounded(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a value, or one inside it, goes from an integer to a floating-point number."""
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _is_rounded(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _is_rounded(old.item_type, new.item_type)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        olds = {one.name: one.type for one in old}
        return any(_is_rounded(olds[one.name], one.type) for one in new if one.name in olds)
    return bool(pa.types.is_integer(old) and pa.types.is_floating(new))


def _renamed_specials(specials: pa.ChunkedArray, names: Mapping[str, str | None]) -> pa.ChunkedArray:
    """Return the special texts under the columns' current names, without those of dropped columns."""
    if all(name == new for name, new in names.items()):
        return specials
    return pa.array(
        [
            [(names[name], text) for name, text in entries or () if names[name]] or None
            for entries in specials.to_pylist()
        ],
        SPECIAL_TYPE,
    )
