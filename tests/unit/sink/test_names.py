"""Topic names: legal, reversible, and never the same for two tables."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import ConfigError, SinkError
from cdcd.sink.names import check_template, escape, topic_name, unescape

TEMPLATE = "{name}.{schema}.{table}"
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("schema", "table", "topic"),
    [
        ("public", "orders", "shop.public.orders"),
        ("public", "Order Lines", "shop.public.Order_u0020Lines"),
        ("a.b", "c", "shop.a_u002Eb.c"),
        ("a", "b.c", "shop.a.b_u002Ec"),
        ("public", "größe", "shop.public.gr_u00F6_u00DFe"),
        ("public", "😀", "shop.public._uD83D_uDE00"),
        ("public", "x_u0041", "shop.public.x_u005Fu0041"),
        ("public", "x_u004", "shop.public.x_u004"),
    ],
)
def test_topic_of_a_relation(schema: str, table: str, topic: str) -> None:
    assert topic_name(TEMPLATE, name="shop", schema=schema, table=table) == topic


@given(NAMES)
def test_an_escaped_name_is_legal_and_comes_back(name: str) -> None:
    escaped = escape(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", escaped)
    assert unescape(escaped) == name


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_two_tables_never_share_a_topic(one: tuple[str, str], other: tuple[str, str]) -> None:
    def topic(table: tuple[str, str]) -> str:
        return f"{escape(table[0])}.{escape(table[1])}"

    assert (topic(one) == topic(other)) == (one == other)


def test_a_prefix_keeps_its_dots() -> None:
    assert topic_name(TEMPLATE, name="eu.shop", schema="s", table="t") == "eu.shop.s.t"


def test_a_name_too_long_for_kafka_is_refused() -> None:
    with pytest.raises(SinkError, match="Kafka allows 249"):
        topic_name(TEMPLATE, name="shop", schema="s", table="ä" * 50)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{name}", "{table} is missing"),
        ("{name}.{tabel}", "{tabel} is not one of"),
        ("{name}/{table}", "letters, digits"),
        ("{name}.{table", "expected '}'"),
        ("{table!r}", "is not one of"),
        ("{table:>9}", "is not one of"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(part)):
        check_template(template)


@pytest.mark.parametrize("name", ["_uD800", "x_uDC00_uD800", "_uD83Dx"])
def test_a_name_that_escaping_never_returns_remains(name: str) -> None:
    """Half a surrogate pair is no character; topics of other programs may have any name."""
    assert unescape(name) == name
