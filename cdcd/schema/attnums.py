"""The attribute numbers of a relation's columns: which of the catalog's a description has, and which a schema has.

In: a relation as described, the catalog's columns; two schemas.  Out: attnums; the schema with those of another one.
Invariant: the Relation message has no attnum, and the catalog has the present ones. They are those of the description
only if the present columns are the described ones; otherwise they are unknown, and a schema that was registered while
they were known has them. So a description that is read again, after a later ALTER TABLE, gets no second schema,
unless another column may have replaced a dropped one.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdcd.model import Relation
from cdcd.schema.codec import AvroSchema
from cdcd.schema.flat import FLAT_PROPERTY
from cdcd.schema.named_types import with_full_names

ATTNUM = "pg.attnum"
RELID = "pg.relid"


class NumberedColumn(NamedTuple):
    """A column as the catalog has it. `is_optional`: the publication may leave it out."""

    name: str
    type_oid: int
    typmod: int
    attnum: int
    is_optional: bool


@dataclass(frozen=True, slots=True)
class KnownAttnums:
    """The attnums of a description, None if they are unknown; and those of the table.

    `present`: without those of dropped columns; `highest`: of all columns that it has had, 0 for a dropped table.
    """

    described: tuple[int, ...] | None
    present: frozenset[int] = frozenset()
    highest: int = 0

    def allow(self, attnums: Sequence[int]) -> bool:
        """Whether the description may have these attnums, which an equal description had before.

        If one of the columns was dropped, a column that was added later may be the described one.
        """
        return self.present.issuperset(attnums) or self.highest <= max(attnums)


def known_attnums(relation: Relation, present: Iterable[NumberedColumn], highest: int) -> KnownAttnums:
    """Return what the catalog's columns show about a description."""
    columns = list(present)
    # As many columns as the highest attnum prove nothing: a commit may be sent before it is visible (F36).
    return KnownAttnums(_attnums_of(relation, columns), frozenset(one.attnum for one in columns), highest)


def _attnums_of(relation: Relation, present: Iterable[NumberedColumn]) -> tuple[int, ...] | None:
    """Return the attnums of the relation's columns, None unless the present columns are exactly these, in order."""
    described = {column.name for column in relation.columns}
    fitting = [one for one in present if one.name in described or not one.is_optional]
    columns = [(one.name, one.type_oid, one.typmod) for one in relation.columns]
    if [one[:3] for one in fitting] != columns:
        return None
    return tuple(one.attnum for one in fitting)


def attnums_in(schema: Any) -> tuple[int, ...] | None:
    """Return the attnums of the columns in a value's schema, None unless all of them have one."""
    columns = _columns((row_record(schema) or {}).get("fields", ()))
    if not columns or not all(ATTNUM in one for one in columns):
        return None
    return tuple(one[ATTNUM] for one in columns)


def row_record(schema: Any) -> dict[str, Any] | None:
    """Return the record of a row in a value's schema, None if it has none."""
    if not isinstance(schema, dict):
        return None
    if FLAT_PROPERTY in schema:
        return schema
    for field in schema.get("fields", ()):
        if field.get("name") == "before" and isinstance(field.get("type"), list):
            records = [branch for branch in field["type"] if isinstance(branch, dict) and "fields" in branch]
            return records[0] if records else None
    return None


def numbered_as(schema: AvroSchema, registered: Any, *, is_lenient: bool = False) -> AvroSchema | None:
    """Return the schema with the attnums of a registered one of the same columns, None if that does not have them.

    `is_lenient`: also without an attnum or the relation's oid where the registered schema lacks them.
    """
    ours, theirs = row_record(schema), row_record(registered)
    if ours is None or theirs is None:
        return None
    columns, known = _columns(theirs["fields"]), _columns(ours["fields"])
    if [one["pg.name"] for one in known] != [one["pg.name"] for one in columns]:
        return None
    numbers = {one["pg.name"]: one[ATTNUM] for one in columns if ATTNUM in one}
    ours_too = {one["pg.name"]: one[ATTNUM] for one in known if ATTNUM in one}
    if any(numbers.get(name, number) != number for name, number in ours_too.items()):
        return None
    is_same = theirs.get(RELID) == ours.get(RELID) and len(numbers) == len(columns)
    if not is_same and not (is_lenient and theirs.get(RELID) in (None, ours.get(RELID))):
        return None
    changed = {name: part for name, part in ours.items() if name != RELID or RELID in theirs}
    changed["fields"] = [_numbered(one, numbers) for one in ours["fields"]]
    return _with_row(schema, ours, changed)


def is_equal_but_for_numbers(schema: Any, other: Any) -> bool:
    """Whether two schemas differ by attnums and the relation's oid at most, which no reader's compatibility needs.

    A full name equals a name with a namespace: registries return either.
    """
    return bool(_without_numbers(with_full_names(schema)) == _without_numbers(with_full_names(other)))


def _without_numbers(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_numbers(part) for name, part in schema.items() if name not in (ATTNUM, RELID)}
    return [_without_numbers(part) for part in schema] if isinstance(schema, list) else schema


def _columns(fields: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in fields if "pg.name" in one]


def _numbered(field: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Return the field with its attnum, which is the last of a column's own properties, or without one."""
    if "pg.name" not in field:
        return field
    number = numbers.get(field["pg.name"])
    return with_attnum({name: part for name, part in field.items() if name != ATTNUM}, number)


def with_attnum(properties: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return the properties of a column with its attnum at its place, so that equal schemas have equal texts."""
    if number is None:
        return properties
    changed: dict[str, Any] = {}
    for name, part in properties.items():
        changed[name] = part
        if name == "pg.typmod":
            changed[ATTNUM] = number
    return changed


def _with_row(schema: AvroSchema, row: dict[str, Any], changed: dict[str, Any]) -> AvroSchema:
    if schema is row:
        return changed
    assert isinstance(schema, dict)
    fields = [
        {**field, "type": [changed if branch is row else branch for branch in field["type"]]}
        if field["name"] == "before"
        else field
        for field in schema["fields"]
    ]
    return {**schema, "fields": fields}
