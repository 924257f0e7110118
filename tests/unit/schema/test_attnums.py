"""A column's attnum is in its schema exactly if the catalog still has the described columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest

from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.attnums import NumberedColumn, known_attnums, numbered_as, row_record
from cdcd.schema.compatibility import level_differences
from cdcd.schema.policy import Policies, Policy
from cdcd.schema.relation_schema import relation_schemas

COLUMNS = (Column("id", 23, -1, True), Column("a", 25, -1, False), Column("b", 1043, 14, False))
FITTING = (
    NumberedColumn("id", 23, -1, 1, False),
    NumberedColumn("a", 25, -1, 3, False),
    NumberedColumn("b", 1043, 14, 7, False),
)


def relation(columns: tuple[Column, ...] = COLUMNS, relid: int = 16_400) -> Relation:
    return Relation(relid, "public", "t", ReplicaIdentity.DEFAULT, columns)


def optional(columns: tuple[NumberedColumn, ...]) -> list[NumberedColumn]:
    return [one._replace(is_optional=True) for one in columns]


def attnums_of(described: Relation, present: Sequence[NumberedColumn]) -> tuple[int, ...] | None:
    return known_attnums(described, present, 9).described


def test_the_attnums_are_those_of_the_same_columns() -> None:
    assert attnums_of(relation(), FITTING) == (1, 3, 7)


@pytest.mark.parametrize(
    "present",
    [
        FITTING[:2],
        (*FITTING, NumberedColumn("c", 25, -1, 8, False)),
        (FITTING[0], FITTING[2], FITTING[1]._replace(attnum=8)),
        (FITTING[0], FITTING[1]._replace(name="other"), FITTING[2]),
        (FITTING[0], FITTING[1]._replace(type_oid=23), FITTING[2]),
        (*FITTING[:2], FITTING[2]._replace(typmod=24)),
        (),
    ],
    ids=["dropped", "added", "dropped and added", "renamed", "type", "typmod", "table dropped"],
)
def test_they_are_unknown_where_the_table_has_other_columns_now(present: tuple[NumberedColumn, ...]) -> None:
    assert attnums_of(relation(), present) is None


def test_a_generated_column_or_one_outside_the_column_list_may_be_missing() -> None:
    listed = [*optional(FITTING), NumberedColumn("secret", 25, -1, 9, True)]
    assert attnums_of(relation(), listed) == (1, 3, 7)
    assert attnums_of(relation(), listed[1:]) is None
    swapped = [listed[1]._replace(attnum=1), listed[0]._replace(attnum=3), *listed[2:]]
    assert attnums_of(relation(), swapped) is None


def test_as_many_columns_as_the_highest_attnum_prove_nothing() -> None:
    """F36: the column may have been added by a commit that the catalog's query does not see yet."""
    for present in (FITTING[:1], (FITTING[0], FITTING[1]._replace(name="other"), FITTING[2])):
        assert known_attnums(relation(), present, 3).described is None


@pytest.mark.parametrize(
    ("present", "highest", "allowed"),
    [
        ((1, 3, 7), 7, True),
        ((1, 3, 7, 8), 8, True),  # ADD COLUMN
        ((1, 7), 7, True),  # DROP COLUMN
        ((1, 7, 8), 8, False),  # DROP COLUMN, and another column, which may have had its name
        ((1, 7), 8, False),  # ... also if that one was dropped, too
        ((), 0, True),  # DROP TABLE
    ],
)
def test_former_attnums_are_used_only_if_no_column_may_have_replaced_a_dropped_one(
    present: tuple[int, ...], highest: int, allowed: bool
) -> None:
    columns = [NumberedColumn("x", 25, -1, number, False) for number in present]
    assert known_attnums(relation(), columns, highest).allow((1, 3, 7)) is allowed


def value(attnums: tuple[int, ...] | None, *, form: str = "debezium", **changed: Any) -> Any:
    policies = Policies(default=Policy(value="flat" if form == "flat" else "envelope"))
    return relation_schemas(relation(**changed), {}, ("id",), "shop", policies, attnums=attnums).value


@pytest.mark.parametrize("form", ["envelope", "flat"])
def test_the_value_has_the_oid_and_the_attnums_and_readers_are_not_affected(form: str) -> None:
    schema, without = value((1, 3, 7), form=form), value(None, form=form)
    record = row_record(schema)
    assert record is not None
    assert record["pg.relid"] == 16_400
    columns = [one for one in record["fields"] if "pg.name" in one]
    assert [one["pg.attnum"] for one in columns] == [1, 3, 7]
    assert "pg.attnum" not in json.dumps(without)
    fastavro.parse_schema(schema)
    for one, other in ((schema, without), (without, schema)):
        assert level_differences("FULL_TRANSITIVE", one, [other]) == []


def test_the_key_has_neither() -> None:
    """The id of the key's schema is part of the key's bytes."""
    first, second = (
        relation_schemas(relation(relid=relid), {}, ("id",), "shop", attnums=attnums).key
        for relid, attnums in ((1, (1, 2, 3)), (2, None))
    )
    assert first == second


@pytest.mark.parametrize("form", ["envelope", "flat"])
def test_a_schema_without_attnums_gets_those_under_which_it_was_registered(form: str) -> None:
    """The text is that of the registered schema, however the registry orders a schema's parts."""
    registered = value((1, 3, 7), form=form)
    returned = json.loads(json.dumps(registered, sort_keys=True))
    assert json.dumps(numbered_as(value(None, form=form), returned)) == json.dumps(registered)


def test_another_table_or_other_columns_have_other_attnums() -> None:
    registered, mine = value((1, 3, 7)), value(None)
    assert numbered_as(mine, registered) == registered
    assert numbered_as(value(None, relid=16_401), registered) is None
    assert numbered_as(value(None, columns=COLUMNS[:2]), registered) is None
    assert numbered_as(value((1, 3, 8)), registered, is_lenient=True) is None
    assert numbered_as(mine, mine) is None
    assert numbered_as(mine, {"type": "string"}) is None


def test_a_reader_of_the_registry_only_may_find_the_schema_of_an_older_cdcd() -> None:
    old = value(None)
    record = row_record(old)
    assert record is not None
    del record["pg.relid"]
    assert numbered_as(value((1, 3, 7)), old) is None
    assert numbered_as(value((1, 3, 7)), old, is_lenient=True) == old
