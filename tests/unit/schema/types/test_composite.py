"""Composite types: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from cdcd.errors import SchemaError
from cdcd.model import Attribute, PgType
from cdcd.schema.codec import UNREADABLE, Special
from cdcd.schema.resolve import resolve
from tests.support.avro_types import (
    ADDRESS,
    ADDRESS_ARRAY,
    INT4,
    NOTHING,
    PERSON,
    SINGLE,
    TEXT,
    codec,
    read,
    value_of,
)

HOME = {"street": "Main", "house_u0020no": 1}


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (ADDRESS, "(Main,1)", HOME),
        (ADDRESS, '("Main ""St""",)', {"street": 'Main "St"', "house_u0020no": None}),
        (ADDRESS, '("",-1)', {"street": "", "house_u0020no": -1}),
        (ADDRESS, "(,)", {"street": None, "house_u0020no": None}),
        (ADDRESS, '("a,(b)\\\\c""\n",7)', {"street": 'a,(b)\\c"\n', "house_u0020no": 7}),
        (ADDRESS, "({},1)", {"street": "{}", "house_u0020no": 1}),
        (SINGLE, "()", {"a": None}),
        (SINGLE, '("")', {"a": ""}),
        (NOTHING, "()", {}),
        (
            PERSON,
            '("(Main,1)","{""(\\\\""a b\\\\"",2)"",NULL}",2000-01-01,1.50,"""k""=>""v w"", ""n""=>NULL")',
            {
                "home": HOME,
                "others": [{"street": "a b", "house_u0020no": 2}, None],
                "born": datetime.date(2000, 1, 1),
                "paid": Decimal("1.50"),
                "labels": {"k": "v w", "n": None},
            },
        ),
        (PERSON, "(,,,,)", dict.fromkeys(("home", "others", "born", "paid", "labels"))),
    ],
)
def test_text(oid: int, text: str, expected: Any) -> None:
    assert value_of(oid, text) == expected


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (PERSON, "(,,infinity,,)"),
        (PERSON, "(,,,NaN,)"),
        (PERSON, '(,"{{""(a,1)""}}",,,)'),
        (PERSON, '("(a,1,2)",,,,)'),
        (ADDRESS, "(Main,1,2)"),
        (ADDRESS, "(Main)"),
        (NOTHING, "(,)"),
        (ADDRESS, "(1,Main)"),
        (ADDRESS, "(Main,{1})"),
        (PERSON, '("(Main)",,,,)'),
        (PERSON, "(,{1},,,)"),
        (PERSON, "(,,1.50,2000-01-01,)"),
        (PERSON, "(,,,,text)"),
    ],
)
def test_a_value_that_the_record_cannot_hold_is_special_as_a_whole(oid: int, text: str) -> None:
    """Also with other attributes, or another number of them, than in the current catalog (F44)."""
    with pytest.raises(Special) as caught:
        codec(oid).text(text.encode())
    assert caught.value.text.decode() == text


@pytest.mark.parametrize(
    "text", ["", "(", "Main,1", "(Main,1", "Main,1)", '("a"b,1)', '("a,1)', "(a(b,1)", '(a"b,1)', "(a\\b,1)"]
)
def test_text_that_the_server_does_not_write_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(ADDRESS).text(text.encode())


def test_the_record_names_its_type_and_attributes() -> None:
    avro = codec(ADDRESS).avro
    assert isinstance(avro, dict)
    assert (avro["name"], avro["pg.type"]) == ("public.address", "public.address")
    assert avro["fields"][1] == {
        "name": "house_u0020no",
        "type": ["null", "int"],
        "default": None,
        "pg.name": "house no",
        "pg.type": "int4",
        "pg.typmod": -1,
    }


def test_a_policy_reaches_the_attributes() -> None:
    found = codec(PERSON, numeric_as="double")
    value = read(found.text(b"(,,,1.50,)"), found.avro)
    assert value["paid"] == 1.5


@pytest.mark.parametrize("oid", [PERSON, ADDRESS, NOTHING])
def test_with_special_string_every_composite_is_a_string(oid: int) -> None:
    """Any composite type may be altered so that its record cannot represent it."""
    assert codec(oid, special="string").avro == "string"


def test_an_array_of_altered_composites_is_special_as_a_whole() -> None:
    text = b'{"(a,1)","(1,a)"}'
    with pytest.raises(Special) as caught:
        codec(ADDRESS_ARRAY).text(text)
    assert caught.value.text == text


def test_two_attributes_of_one_name_are_a_schema_error_with_the_types_name() -> None:
    twice = PgType(1, "s", "t", "c", attributes=(Attribute("a", TEXT, -1), Attribute("a", INT4, -1)))
    with pytest.raises(SchemaError) as caught:
        resolve(1, -1, {1: twice})
    assert caught.value.context["type"] == "s.t"


def test_what_is_nested_deeper_than_readers_go_is_text_there() -> None:
    types = {
        n: PgType(n, "s", f"t{n}", "c", attributes=(Attribute("a", n - 1, -1),))
        for n in range(10_001, 10_040)
    }
    types[10_000] = PgType(10_000, "s", "t", "c", attributes=(Attribute("a", INT4, -1),))
    found = resolve(10_039, -1, types).codec
    avro, depth = found.avro, 0
    while isinstance(avro, dict):
        avro, depth = avro["fields"][0]["type"][1], depth + 1
    assert (avro, depth) == ("string", 33)
    assert found.text(b"()") == b"\0"
    assert (
        found.binary is None
    )  # the complete column is sent as text, so that both formats give the same value
