"""The columns of a table, and the fields of a topic's schemas that have their values.

In: the columns as the catalog has them at the snapshot, the schema of a record.
Out: for each column the field and the function of its text, None if the record has no comparable value.
Invariant: a column is the same by its attnum, as for the readers of the topics; without attnums by its name. A value
of another type or modifier is not compared, because PostgreSQL does not send the rows that ALTER TABLE rewrites.
Must not: compare where the same value may have two texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdcd.model import PgType
from cdcd.schema.attnums import ATTNUM
from cdcd.schema.resolve import resolve
from cdcd.verify.texts import TextOf, named_records, text_of

_SAME_TEXTS = (frozenset({"int2", "int4", "int8"}), frozenset({"text", "varchar"}))
"""Types among which a conversion changes no text."""


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A published column of the table. `type_name` and `typmod` are as in the schema's properties."""

    name: str
    attnum: int
    type_oid: int
    typmod: int
    type_name: str


class Source(NamedTuple):
    """Where a record has the value of a column: the field's name, and the function of its text."""

    field: str
    text: TextOf


def compared_column(
    name: str, attnum: int, type_oid: int, typmod: int, types: Mapping[int, PgType]
) -> ComparedColumn:
    """Return a column with the name of its type."""
    return ComparedColumn(name, attnum, type_oid, typmod, resolve(type_oid, typmod, types).type_name)


def sources_of(
    record: Mapping[str, Any],
    schema: Any,
    columns: Sequence[ComparedColumn],
    types: Mapping[int, PgType],
    encode: Callable[[TextOf], TextOf],
) -> list[Source | None]:
    """Return the sources of the columns in a row's record. `schema`: the whole schema, whose records may be named.

    `encode`: adds the conversion to the database's encoding.
    """
    fields, is_numbered = _fields(record), has_attnums(record)
    by_name = {field["pg.name"]: field for field in fields}
    by_number = {field[ATTNUM]: field for field in fields} if is_numbered else {}
    named = named_records(schema)
    found: list[Source | None] = []
    for column in columns:
        field = by_number.get(column.attnum) if is_numbered else by_name.get(column.name)
        text = None
        if field is not None and _is_same_type(field, column):
            text = text_of(_value_type(field["type"]), column.type_oid, types, named)
        found.append(None if field is None or text is None else Source(field["name"], encode(text)))
    return found


def has_attnums(record: Mapping[str, Any]) -> bool:
    """Return whether the fields of a row's record have the numbers of their columns."""
    return all(ATTNUM in field for field in _fields(record))


def _fields(record: Mapping[str, Any]) -> list[Any]:
    return [field for field in record["fields"] if "pg.name" in field]


def key_sources(
    schema: Any,
    columns: Sequence[ComparedColumn],
    types: Mapping[int, PgType],
    encode: Callable[[TextOf], TextOf],
) -> list[Source] | None:
    """Return the sources of the key's columns in a key's schema, None if it has other columns.

    Its fields have no types of PostgreSQL: those of the value's schema show whether the texts are the same.
    """
    named = named_records(schema)
    fields = {field.get("pg.name", field["name"]): field for field in schema.get("fields", ())}
    if set(fields) != {column.name for column in columns}:
        return None
    found = []
    for column in columns:
        field = fields[column.name]
        text = text_of(_value_type(field["type"]), column.type_oid, types, named)
        if text is None:
            return None
        found.append(Source(field["name"], encode(text)))
    return found


def _value_type(avro: Any) -> Any:
    return next(branch for branch in avro if branch != "null") if isinstance(avro, list) else avro


def _is_same_type(field: Mapping[str, Any], column: ComparedColumn) -> bool:
    written, now = field.get("pg.type"), column.type_name
    if any(written in same and now in same for same in _SAME_TEXTS):
        return True
    return written == now and field.get("pg.typmod", -1) == column.typmod
