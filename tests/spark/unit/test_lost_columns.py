"""A query stops at a record without one of its columns, whatever the order of the schema ids."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import SparkReadError
from cdcd.schema.schema_index import id_of, text_of
from cdcd.spark.clients.connection import RegistryAccess
from cdcd.spark.decoding import decode
from cdcd.spark.decoding.decode import decoding_of
from cdcd.spark.decoding.schema_source import GivenSchemas
from tests.spark.events import column
from tests.support.decoded import TOPIC, batch_of, given, record, rows, schema

NEXT = (
    f"{TOPIC}.v2"  # the topic of the same table after an incompatible change: its envelope has the same name
)
CITY, TOWN = column("city", "string"), column("town", "string")
LOST = "columns of the query were dropped or renamed while it ran"


def hashed(*schemas: Any) -> tuple[int, ...]:
    """Return the ids that a daemon without a registry gives to the schemas."""
    return tuple(id_of(text_of(one)) for one in schemas)


@pytest.mark.parametrize("number", range(8))
def test_a_renamed_column_is_an_error_whatever_the_ids_without_a_registry(number: int) -> None:
    """They are hashes of the schemas; an eighth column's name makes both orders occur."""
    more = column(f"more{number}", "string")
    old, new = schema(CITY, more), schema(TOWN, more)
    first, second = hashed(old, new)
    with pytest.raises(SparkReadError, match=rf"{LOST} \(columns city, schema_id {second}\)"):
        rows([record(TOPIC, second, new, town="Berlin")], {first: old, second: new}, {TOPIC: (first,)})


def test_a_version_of_the_start_has_fewer_columns_without_an_error() -> None:
    old, new = schema(), schema(CITY)
    records = [record(TOPIC, 9, old), record(TOPIC, 2, new, city="Berlin")]
    found = rows(records, {9: old, 2: new}, {TOPIC: (9, 2)})
    assert [one["after"]["city"] for one in found] == [None, "Berlin"]


def test_a_column_that_is_added_back_is_not_lost_at_the_last_version() -> None:
    """The columns of a query are those of the last version, whichever id is the greatest."""
    wide, narrow, other = schema(CITY), schema(), schema(TOWN)
    found = rows([record(TOPIC, 5, other)], {9: wide, 2: narrow, 5: other}, {TOPIC: (9, 2)})
    assert found[0]["after"] == {"id": 1}


@pytest.mark.parametrize("ids", [(1, 2), (2000, 7)])
@pytest.mark.parametrize("order", [(TOPIC, NEXT), (NEXT, TOPIC)])
def test_two_topics_of_one_table_have_their_own_columns(ids: tuple[int, int], order: tuple[str, str]) -> None:
    """After an incompatible change of a column another one was dropped, and one was added."""
    old = schema(column("v", "int"), column("old", "string"))
    new = schema(column("v", "string"), column("new", "string"))
    known = {TOPIC: (ids[0],), NEXT: (ids[1],)}
    records = [record(TOPIC, ids[0], old, v=1, old="x"), record(NEXT, ids[1], new, v="2", new="y")]
    found = rows(records, dict(zip(ids, (old, new), strict=True)), {one: known[one] for one in order},
                 columns=["id", "old", "new"])  # fmt: skip
    assert [(one["after"]["old"], one["after"]["new"]) for one in found] == [("x", None), (None, "y")]


def test_a_schema_that_one_topic_had_is_a_loss_in_another_one() -> None:
    """A schema has one id in both topics of a table."""
    short, text = schema(), schema(column("v", "string"))
    known = {TOPIC: (1,), NEXT: (2,)}
    with pytest.raises(SparkReadError, match=LOST):
        rows([record(TOPIC, 1, short), record(NEXT, 1, short)], {1: short, 2: text}, known)
    assert rows([record(TOPIC, 1, short)], {1: short, 2: text}, known)[0]["after"]["v"] is None


def address(*attributes: str) -> dict[str, Any]:
    fields = [column(one, "string") for one in attributes]
    return {"type": "record", "name": "address", "namespace": TOPIC, "fields": fields}


@pytest.mark.parametrize(
    "within",
    [
        lambda one: one,
        lambda one: {"type": "array", "items": ["null", one]},
        lambda one: {"type": "map", "values": one},
    ],
    ids=["column", "array", "map"],
)
def test_a_renamed_attribute_of_a_composite_is_an_error(within: Any) -> None:
    old, new = (
        schema(column("home", within(address("street")))),
        schema(column("home", within(address("road")))),
    )
    both, known = {1: old, 2: new}, {TOPIC: (1,)}
    changed = record(TOPIC, 2, new, home=None)
    with pytest.raises(SparkReadError, match=rf"{LOST} \(columns home.street, schema_id 2\)"):
        rows([changed], both, known)
    assert rows([changed], both, known, columns=["id"])[0]["after"] == {"id": 1}


def test_an_added_attribute_is_no_loss() -> None:
    old, new = schema(column("home", address("street"))), schema(column("home", address("street", "zip")))
    changed = record(TOPIC, 2, new, home={"street": "Main", "zip": "1"})
    found = rows([changed], {1: old, 2: new}, {TOPIC: (1,)})
    assert found[0]["after"]["home"] == {"street": "Main"}


def test_a_row_without_a_column_goes_to_quarantine_alone() -> None:
    old, new = schema(CITY), schema(TOWN)
    records = [record(TOPIC, 1, old, city="Berlin"), record(TOPIC, 2, new, town="Bonn")]
    found = rows(records, {1: old, 2: new}, {TOPIC: (1,)}, on_error="quarantine")
    assert (found[0]["after"]["city"], found[0]["error"]) == ("Berlin", None)
    assert found[1]["after"] is None
    assert LOST in found[1]["error"]
    assert (found[1]["raw_value"], found[1]["schema_id"]) == (records[1]["value"], 2)


@pytest.mark.parametrize(
    ("listed", "is_lost"), [((5,), False), ((5, 0), True)], ids=["deleted", "registered since the start"]
)
@pytest.mark.parametrize("other", [3, 7])  # the table may have gone back to a version with a smaller id
def test_a_deleted_version_of_a_registry_is_an_older_one(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[int, ...], is_lost: bool, other: int
) -> None:
    """The admin port of a daemon without a registry answers as one: a new schema may have a smaller id."""
    schemas = {other: schema(), 5: schema(CITY)}
    access = given(schemas, {TOPIC: (5,)})
    at_start = decoding_of(access, [TOPIC])
    now = GivenSchemas(given(schemas, {TOPIC: tuple(number or other for number in listed)}))
    monkeypatch.setattr(decode, "source_of", lambda _: now)
    known = decode.SchemaSet(RegistryAccess("http://registry"), dict(access.texts))
    decoding = decode.Decoding(at_start.choices, known, at_start.versions)
    batches = decoding.decode(iter([batch_of(record(TOPIC, other, schemas[other]))]))
    if is_lost:
        with pytest.raises(SparkReadError, match=LOST):
            next(batches)
    else:
        assert next(batches)["after"].to_pylist() == [{"id": 1, "city": None}]
