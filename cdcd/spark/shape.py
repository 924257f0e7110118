"""What a table of the target looks like: its columns, and rows of older files brought under the columns of now.

In: Avro types, the columns of a file and of now.  Out: Arrow schemas and tables with `__special` and `__key`.
Invariant: a column is known by its number, so one that was dropped and added again, or renamed, begins empty, and
nothing of the old one is left under its name.  Must not: do I/O, log values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from cdcd.spark.columns import AvroType, arrow_type, plain_type
from cdcd.spark.events import BEGINNING, Sequence

KEY = "__key"
SPECIAL = "__special"
SPECIAL_TYPE = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the target. `number` stays with the column, so a dropped and re-added name is another one.

    `is_later`: rows were there before it, and PostgreSQL does not send what it gave them (a default).
    """

    number: int
    name: str
    avro_name: str
    avro: AvroType
    is_later: bool = False


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a fold has to know about its table. `watermark`: applied before; `emptied_at`: last TRUNCATE."""

    topic: str
    keyed: bool
    fields: tuple[Field, ...]
    watermark: Sequence = BEGINNING
    emptied_at: Sequence = BEGINNING
    began_after: Mapping[str, Sequence] = field(default_factory=dict)
    """By Avro name: values of changes up to here are another column's, though it had the same name."""


def arrow_schema(fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of the target's files."""
    columns = [pa.field(one.name, arrow_type(one.avro)) for one in fields]
    return pa.schema([*columns, pa.field(SPECIAL, SPECIAL_TYPE), pa.field(KEY, pa.binary())])


def with_digests(rows: pa.Table, shape: TableShape) -> pa.Table:
    """Return the rows with `__key` = digest of all values that are not null, so equal rows have equal keys."""
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


def aligned(rows: pa.Table, numbers: Iterable[int], shape: TableShape) -> pa.Table:
    """Return rows of an older file under the columns of now; columns it lacks are null.

    `numbers` are those of the file's columns, in its order. A bag's digests are made again when a column went.
    """
    numbers = tuple(numbers)
    held = dict(zip(numbers, rows.columns[:-2], strict=True))
    columns = [
        held[one.number].cast(arrow_type(one.avro))
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
    grown_only = all(number in now and now[number] == column.type for number, column in held.items())
    return table if shape.keyed or grown_only else with_digests(table, shape)


def _renamed_specials(specials: pa.ChunkedArray, names: Mapping[str, str | None]) -> pa.ChunkedArray:
    """Return the special texts under the columns' names of now, without those of columns that went."""
    if all(name == new for name, new in names.items()):
        return specials
    return pa.array(
        [
            [(names[name], text) for name, text in entries or () if names[name]] or None
            for entries in specials.to_pylist()
        ],
        SPECIAL_TYPE,
    )
