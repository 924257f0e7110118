"""What a schema topic's log says, and which ids new schemas get, also where two of them collide."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import SchemasUnreadable
from cdcd.schema.book import Book, Registered, dump, id_of, key_of, load


def put(book: Book, one: Registered) -> None:
    book.take(key_of(one), dump(one))


def claim(book: Book, subject: str, text: str, *unwritten: Registered) -> Registered:
    return book.claim(subject, text, "BACKWARD", "slot", unwritten)


def test_a_schema_has_one_id_from_whoever_writes_it() -> None:
    one, two = Book(), Book()
    put(two, claim(two, "other", '"int"'))
    first, second = claim(one, "s-value", '"long"'), claim(two, "t-value", '"long"')
    assert first.schema_id == second.schema_id == id_of('"long"')
    assert (first.version, second.version) == (1, 1)


@given(st.text(), st.integers(0, 5))
def test_an_id_is_what_clients_take(text: str, attempt: int) -> None:
    assert 0 < id_of(text, attempt) < 1 << 31


def test_versions_count_by_subject_and_claims_that_are_not_written_count() -> None:
    book = Book()
    first = claim(book, "s", '"int"')
    put(book, first)
    second = claim(book, "s", '"long"')
    third = claim(book, "s", '"float"', second)
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert claim(book, "s", '"int"') == first
    assert [one.text for one in book.versions("s")] == ['"int"']


def test_an_id_that_is_taken_by_another_schema_is_not_given_out() -> None:
    """Three ids for every text: what 31 bits cannot tell apart is told apart by what is known."""
    book = Book(id_of=lambda text, attempt: 1 + attempt)
    first = claim(book, "s", '"int"')
    second = claim(book, "s", '"long"', first)
    assert (first.schema_id, second.schema_id) == (1, 2)
    put(book, first)
    put(book, second)
    assert claim(book, "t", '"long"').schema_id == 2
    assert claim(book, "t", '"float"').schema_id == 3


def test_of_two_writers_at_once_the_first_in_the_log_has_it() -> None:
    """Each claims with what it knows; having read the log up to its own record each knows who has lost."""
    same = lambda text, attempt: 1 + attempt  # noqa: E731
    one, two = Book(id_of=same), Book(id_of=same)
    first, second = claim(one, "s", '"int"'), claim(two, "t", '"long"')
    assert first.schema_id == second.schema_id
    for book in (one, two):
        put(book, first)
        put(book, second)
        assert book.holds(first)
        assert not book.holds(second)
        assert book.text(1) == '"int"'
    again = claim(two, "t", '"long"')
    assert again.schema_id == 2
    for book in (one, two):
        put(book, again)
        assert book.holds(again)
        assert book.text(2) == '"long"'


def test_a_version_that_is_taken_is_lost_as_an_id_is() -> None:
    one, two = Book(), Book()
    first, second = claim(one, "s", '"int"'), claim(two, "s", '"long"')
    put(two, first)
    put(two, second)
    assert two.holds(first)
    assert not two.holds(second)
    assert claim(two, "s", '"long"').version == 2


def test_the_same_claim_twice_is_one_version() -> None:
    book = Book()
    put(book, claim(book, "s", '"int"'))
    put(book, claim(Book(), "s", '"int"'))
    assert [one.version for one in book.versions("s")] == [1]


def test_a_deleted_version_is_gone_and_its_id_is_still_read() -> None:
    book = Book()
    one = claim(book, "s", '"int"')
    put(book, one)
    assert [place.subject for place in book.places(one.schema_id)] == ["s"]
    book.take(key_of(one), None)
    assert (book.subjects(), book.versions("s"), book.places(one.schema_id)) == ([], [], [])
    assert book.text(one.schema_id) == '"int"'
    book.take(b"never there", None)


def test_a_schema_is_found_however_it_is_written() -> None:
    book = Book()
    put(book, claim(book, "s", '{"type":"fixed","name":"f","size":4}'))
    assert book.find_equal("s", '{ "size": 4, "name": "f", "type": "fixed" }') is not None
    assert book.find_equal("s", '{"type":"fixed","name":"f","size":5}') is None
    assert book.find_equal("t", '"int"') is None


def test_a_record_is_read_as_it_was_written() -> None:
    one = Registered("süß-value", 3, 7, '{"a":"ü"}', "FULL", "slot")
    assert load(dump(one)) == one


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"id": "7"}, {"version": None}, {"version": True}, {"more": 1}],
    ids=["format", "id", "missing", "boolean", "more"],
)
def test_a_record_of_another_form_is_never_guessed_at(change: dict[str, object]) -> None:
    document = {**json.loads(dump(Registered("s", 1, 1, "1", "NONE", "slot"))), **change}
    with pytest.raises(SchemasUnreadable):
        load(json.dumps(document).encode())
    with pytest.raises(SchemasUnreadable):
        load(b"{")
