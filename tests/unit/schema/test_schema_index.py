"""The content of a schema topic's log, and the ids of new schemas, also when two collide."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import SchemasUnreadable
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex, dump, id_of, key_of, load


def put(schema_index: SchemaIndex, one: RegisteredVersion) -> None:
    schema_index.take(key_of(one), dump(one))


def claim(
    schema_index: SchemaIndex, subject: str, text: str, *unwritten: RegisteredVersion
) -> RegisteredVersion:
    return schema_index.claim(subject, text, "BACKWARD", "slot", unwritten)


def test_a_schema_has_one_id_from_whoever_writes_it() -> None:
    one, two = SchemaIndex(), SchemaIndex()
    put(two, claim(two, "other", '"int"'))
    first, second = claim(one, "s-value", '"long"'), claim(two, "t-value", '"long"')
    assert first.schema_id == second.schema_id == id_of('"long"')
    assert (first.version, second.version) == (1, 1)


@given(st.text(), st.integers(0, 5))
def test_an_id_is_what_clients_take(text: str, attempt: int) -> None:
    assert 0 < id_of(text, attempt) < 1 << 31


def test_versions_count_by_subject_and_claims_that_are_not_written_count() -> None:
    schema_index = SchemaIndex()
    first = claim(schema_index, "s", '"int"')
    put(schema_index, first)
    second = claim(schema_index, "s", '"long"')
    third = claim(schema_index, "s", '"float"', second)
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert claim(schema_index, "s", '"int"') == first
    assert [one.text for one in schema_index.versions("s")] == ['"int"']


def test_an_id_that_is_taken_by_another_schema_is_not_given_out() -> None:
    """Three candidate ids for every text: the index resolves collisions of 31-bit ids."""
    schema_index = SchemaIndex(id_of=lambda text, attempt: 1 + attempt)
    first = claim(schema_index, "s", '"int"')
    second = claim(schema_index, "s", '"long"', first)
    assert (first.schema_id, second.schema_id) == (1, 2)
    put(schema_index, first)
    put(schema_index, second)
    assert claim(schema_index, "t", '"long"').schema_id == 2
    assert claim(schema_index, "t", '"float"').schema_id == 3


def test_of_two_writers_at_once_the_first_in_the_log_has_it() -> None:
    """Each writer claims from its own index; after it has read the log up to its own record it knows the winner."""
    same = lambda text, attempt: 1 + attempt  # noqa: E731
    one, two = SchemaIndex(id_of=same), SchemaIndex(id_of=same)
    first, second = claim(one, "s", '"int"'), claim(two, "t", '"long"')
    assert first.schema_id == second.schema_id
    for schema_index in (one, two):
        put(schema_index, first)
        put(schema_index, second)
        assert schema_index.holds(first)
        assert not schema_index.holds(second)
        assert schema_index.text(1) == '"int"'
    again = claim(two, "t", '"long"')
    assert again.schema_id == 2
    for schema_index in (one, two):
        put(schema_index, again)
        assert schema_index.holds(again)
        assert schema_index.text(2) == '"long"'


def test_a_version_that_is_taken_is_lost_as_an_id_is() -> None:
    one, two = SchemaIndex(), SchemaIndex()
    first, second = claim(one, "s", '"int"'), claim(two, "s", '"long"')
    put(two, first)
    put(two, second)
    assert two.holds(first)
    assert not two.holds(second)
    assert claim(two, "s", '"long"').version == 2


def test_the_same_claim_twice_is_one_version() -> None:
    schema_index = SchemaIndex()
    put(schema_index, claim(schema_index, "s", '"int"'))
    put(schema_index, claim(SchemaIndex(), "s", '"int"'))
    assert [one.version for one in schema_index.versions("s")] == [1]


def test_a_deleted_version_is_gone_and_its_id_is_still_read() -> None:
    schema_index = SchemaIndex()
    one = claim(schema_index, "s", '"int"')
    put(schema_index, one)
    assert [place.subject for place in schema_index.places(one.schema_id)] == ["s"]
    schema_index.take(key_of(one), None)
    assert (schema_index.subjects(), schema_index.versions("s"), schema_index.places(one.schema_id)) == (
        [],
        [],
        [],
    )
    assert schema_index.text(one.schema_id) == '"int"'
    schema_index.take(b"never there", None)


def test_a_schema_is_found_however_it_is_written() -> None:
    schema_index = SchemaIndex()
    put(schema_index, claim(schema_index, "s", '{"type":"fixed","name":"f","size":4}'))
    assert schema_index.find_equal("s", '{ "size": 4, "name": "f", "type": "fixed" }') is not None
    assert schema_index.find_equal("s", '{"type":"fixed","name":"f","size":5}') is None
    assert schema_index.find_equal("t", '"int"') is None


def test_a_record_is_read_as_it_was_written() -> None:
    one = RegisteredVersion("süß-value", 3, 7, '{"a":"ü"}', "FULL", "slot")
    assert load(dump(one)) == one


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"id": "7"}, {"version": None}, {"version": True}, {"more": 1}],
    ids=["format", "id", "missing", "boolean", "more"],
)
def test_a_record_of_another_form_is_never_guessed_at(change: dict[str, object]) -> None:
    document = {**json.loads(dump(RegisteredVersion("s", 1, 1, "1", "NONE", "slot"))), **change}
    with pytest.raises(SchemasUnreadable):
        load(json.dumps(document).encode())
    with pytest.raises(SchemasUnreadable):
        load(b"{")
