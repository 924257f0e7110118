"""Which columns of a topic's schemas are the same column of PostgreSQL, and which schemas are of another table.

In: the schemas of a batch in the order of their last changes, the table's entry.
Out: the current columns, the schemas with the current names of their columns, the names that differ.
Invariant: of two schemas of one relation that both have attnums, columns are the same exactly if their attnums are
equal, whatever their names are. Where one of them has none, the names decide. Attnums of two relations say nothing
of each other. A retained column is the same again only by its attnum.
Must not: do I/O; change the Avro form of a record: a field's name is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from cdcd.errors import SparkReadError
from cdcd.schema.attnums import ATTNUM, RELID
from cdcd.spark.decoding import events as ev
from cdcd.spark.decoding.columns import continues
from cdcd.spark.decoding.frame import column_name
from cdcd.spark.decoding.schemas import Schema, expand, value_record
from cdcd.spark.tables.retained_columns import (
    DEFAULT_POLICIES,
    ColumnPolicies,
    Continued,
    continued_of,
    with_free_names,
)
from cdcd.spark.target.shape import Field
from cdcd.spark.target.versions import TableEntry

_NO_COLUMN = "__no_column_"


def fields_of(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return the fields of a row by their Avro names."""
    return {one["name"]: one for one in value_record(expand(schema))["fields"]}


def relid_of(schema: Schema) -> int:
    """Return the oid of the relation, 0 if the schema does not have it."""
    return int(value_record(expand(schema)).get(RELID, 0))


# --- the table -----------------------------------------------------------------------------------------------


def of_newest_table(
    entry: TableEntry, order: Sequence[int], schemas: Mapping[int, Schema], last: Mapping[int, ev.Sequence]
) -> tuple[TableEntry, list[int], ev.Sequence]:
    """Return the entry, the schemas of the newest table, and the last change of a former table of the same name.

    Without its rows if the table was dropped and created again. A table that comes back is none: then the rows of
    several tables are in the topic.
    """
    relids = {number: relid_of(schemas[number]) for number in order}
    known = [one for one in (entry.relid, *relids.values()) if one]
    if not known or known[-1] in (*entry.former, entry.relid):
        others = [one for one in known if one not in (*entry.former, entry.relid)]
        former = (*entry.former, *dict.fromkeys(others))  # so that they never empty the table
        return replace(entry, former=former) if others else entry, list(order), ev.BEGINNING
    newest = known[-1]
    former = tuple(dict.fromkeys(one for one in known if one != newest))
    if not former:
        return replace(entry, relid=newest), list(order), ev.BEGINNING
    ends = [last[number] for number in order if relids[number] in former]
    left = TableEntry(
        entry.topic,
        next_number=entry.next_number,
        applied=entry.applied,
        relid=newest,
        former=(*entry.former, *former),
    )
    rest = [number for number in order if relids[number] not in former]
    return left, rest, max(ends, default=ev.BEGINNING)


# --- its columns ---------------------------------------------------------------------------------------------


def continued_columns(
    entry: TableEntry,
    order: Iterable[int],
    schemas: Mapping[int, Schema],
    policies: ColumnPolicies = DEFAULT_POLICIES,
    *,
    is_keyed: bool = True,
) -> list[Continued]:
    """Return the columns of the last of these schemas, followed from the entry's through all of them.

    Then the retained ones. `is_keyed`: rows may have a key.
    The result for two batches is that for one batch with the schemas of both, unless one schema comes back in it.
    """
    held = [continued_of(one) for one in entry.fields]
    for place, number in enumerate(order):
        fields, of_schema = fields_of(schemas[number]), relid_of(schemas[number])
        is_same = not (entry.relid and of_schema and entry.relid != of_schema)
        matched = _matched(held, {name: _attnum(one) if is_same else 0 for name, one in fields.items()})
        matched |= _back(held, fields, matched, is_same=is_same)
        others = set()
        if policies.changed_types == "new_column":
            others = _other_types(matched, fields, is_keyed=is_keyed)
        same = {name: one for name, one in matched.items() if name not in others}
        found = [
            _followed(same.get(name) or Continued(name, "", one["type"], since=place), number, one)
            for name, one in fields.items()
        ]
        of_types = {id(matched[name]) for name in others}
        left = _retained(held, {id(one) for one in same.values()}, of_types, policies)
        held = [*found, *with_free_names(found, left)]
    return held


def _attnum(one: Mapping[str, Any]) -> int:
    return int(one.get(ATTNUM, 0))


def _followed(was: Continued, number: int, one: Mapping[str, Any]) -> Continued:
    """Return a column in the schema of this id, where it is this field."""
    name, attnum = one["name"], _attnum(one)
    return replace(
        was,
        avro_name=name,
        name=column_name(one),
        avro=one["type"],
        attnum=attnum or was.attnum,
        is_carried=not attnum,
        names={**was.names, number: name},
        retained="",
    )


def _retained(
    held: Iterable[Continued], same: Set[int], of_types: Set[int], policies: ColumnPolicies
) -> Iterator[Continued]:
    """Yield the columns that remain although a schema lacks them, those that it is not the first one to lack first.

    `same`: the identities of the columns that the schema has; `of_types`: of those that have another type there.
    """
    left = [one for one in held if id(one) not in same]
    for one in sorted(left, key=lambda one: not one.retained):
        if one.retained:
            yield one
        elif id(one) in of_types:
            yield replace(one, retained="type")
        elif policies.dropped == "keep":
            yield replace(one, retained="dropped")


def _other_types(
    matched: Mapping[str, Continued], fields: Mapping[str, dict[str, Any]], *, is_keyed: bool
) -> set[str]:
    """Return the columns that have an incompatible type in a schema, and that are certainly not in the key.

    A value's schema shows which columns are in the key, because only these cannot be null; if it has none of these,
    each one may be in the key.
    """
    required = {name for name, one in fields.items() if not isinstance(one["type"], list)}
    in_key = (required or fields.keys()) if is_keyed else set()
    return {
        name
        for name, was in matched.items()
        if name not in in_key and isinstance(was.avro, list) and not continues(was.avro, fields[name]["type"])
    }


def _back(
    held: Iterable[Continued],
    fields: Mapping[str, dict[str, Any]],
    matched: Mapping[str, Continued],
    *,
    is_same: bool,
) -> dict[str, Continued]:
    """Return the columns of a schema that others did not have, as when a publication left them out: by their attnums.

    `is_same`: the schema is of the table. In a topic with the rows of several tables the names decide.
    """
    dropped = [one for one in held if one.retained == "dropped"]
    by_attnum = {one.attnum: one for one in dropped if one.attnum and not one.is_carried}
    by_name = {one.avro_name: one for one in dropped}
    found = {
        name: by_attnum.get(_attnum(one)) if is_same else by_name.get(name)
        for name, one in fields.items()
        if name not in matched
    }
    return {
        name: was
        for name, was in found.items()
        if was is not None and continues(was.avro, fields[name]["type"])
    }


def fields_in_former(former: TableEntry, entry: TableEntry) -> tuple[Field, ...]:
    """Return the columns of a table, under the numbers that they have in the files of a former entry.

    All numbers differ after a table was parked or dropped from the mirror and copied again, or created again: then
    the columns are found as those of another schema are. Raises SparkReadError if one has another type.
    """
    numbers = {one.number for one in former.fields}
    if not numbers or any(one.number in numbers for one in entry.fields):
        return entry.fields
    held = [continued_of(one) for one in former.fields]
    is_same = not (former.relid and entry.relid and former.relid != entry.relid)
    attnums = {
        one.avro_name: one.attnum if is_same and not one.is_carried else 0
        for one in entry.fields
        if one.retained != "type"  # the other column with its attnum has followed it
    }
    matched = {name: one.old for name, one in _matched(held, attnums).items()}
    return tuple(_in_former(matched.get(one.avro_name), one, entry.topic) for one in entry.fields)


def _in_former(old: Field | None, field: Field, topic: str) -> Field:
    if old is None:
        return field
    if not continues(old.avro, field.avro):
        raise SparkReadError(
            "the table was copied again with another type of a column, so its former rows have no such values",
            hint="begin anew: read all rows of the table, and continue from that position",
            topic=topic,
            column=field.name,
        )
    return replace(field, number=old.number)


def _matched(held: Iterable[Continued], attnums: Mapping[str, int]) -> dict[str, Continued]:
    """Return for the columns of a schema which they are, by the attnums first, and then by the names."""
    held = [one for one in held if not one.retained]
    by_attnum = {one.attnum: one for one in held if one.attnum}
    found = {name: by_attnum[attnum] for name, attnum in attnums.items() if attnum in by_attnum}
    taken = {one.attnum for one in found.values()}
    for one in held:
        attnum = attnums.get(one.avro_name)
        if attnum is None or one.avro_name in found or one.attnum in taken:
            continue
        if not attnum or not one.attnum or one.is_carried:
            found[one.avro_name] = one
    return found


# --- their names ---------------------------------------------------------------------------------------------


def as_current(
    schemas: Mapping[int, Schema], columns: Sequence[Continued]
) -> tuple[dict[int, Schema], dict[int, dict[str, str]]]:
    """Return the schemas with the current names of the columns; by schema id the former names that differ.

    Names of a column that is gone, or is another one now, differ from all current ones.
    """
    found, renames = dict(schemas), {}
    current = {one.avro_name for one in columns}
    for number in {number for one in columns for number in one.names}:
        fields = fields_of(schemas[number])
        moved = _moved(
            fields, {one.names[number]: one.avro_name for one in columns if number in one.names}, current
        )
        if moved:
            found[number] = _with_names(schemas[number], moved)
            shown = {column_name(fields[name]): new for name, new in moved.items()}
            renames[number] = {name: new for name, new in shown.items() if name not in fields} | moved
    return found, renames


def _moved(names: Iterable[str], followed: Mapping[str, str], current: Set[str]) -> dict[str, str]:
    moved: dict[str, str] = {}
    for name in names:
        new = followed.get(name)
        if new is None and name in current:
            new = f"{_NO_COLUMN}{len(moved)}"
        if new not in (None, name):
            moved[name] = str(new)
    return moved


def _with_names(schema: Schema, moved: Mapping[str, str]) -> Schema:
    """Return the envelope with other names of the row's fields, wherever the row's record is defined."""

    def renamed(branch: Any) -> Any:
        if not isinstance(branch, dict) or "fields" not in branch:
            return branch
        fields = [{**one, "name": moved.get(one["name"], one["name"])} for one in branch["fields"]]
        return {**branch, "fields": fields}

    fields = [
        {**one, "type": [renamed(branch) for branch in one["type"]]}
        if one["name"] in ("before", "after")
        else one
        for one in schema["fields"]
    ]
    return {**schema, "fields": fields}
