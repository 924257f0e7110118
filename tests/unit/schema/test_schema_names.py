"""Identifiers become Avro names reversibly."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import SchemaError
from cdcd.schema.names import column_names, escape, full_name, unescape


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        ("orders", "orders"),
        ("_x1", "_x1"),
        ("order id", "order_u0020id"),
        ("1st", "_u0031st"),
        ("größe", "gr_u00f6_u00dfe"),
        ("a.b", "a_u002eb"),
        ("x😀", "x_ud83d_ude00"),
        ("_u0041", "_u005fu0041"),
        ("_u004", "_u004"),
    ],
)
def test_escaped_names(identifier: str, name: str) -> None:
    assert escape(identifier) == name
    assert unescape(name) == identifier


@given(st.text(min_size=1) | st.from_regex(r"[_u0-9a-f]{1,12}", fullmatch=True))
def test_escaping_is_reversible_and_legal(identifier: str) -> None:
    try:
        identifier.encode()
    except UnicodeEncodeError:
        return
    name = escape(identifier)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    assert unescape(name) == identifier


def test_parts_are_escaped_one_by_one() -> None:
    assert full_name("shop.eu", "public", "t") == "shop_u002eeu.public.t"


def test_a_name_given_twice_is_a_schema_error() -> None:
    with pytest.raises(SchemaError):
        column_names(["a", "b", "a"], "public.t")
    with pytest.raises(SchemaError):
        escape("")
