"""Which topics the option `table` names, and what is wrong with the options beside it."""

from __future__ import annotations

import pytest

from cdcd.errors import SparkReadError
from cdcd.spark.table_options import table_options, topics_of, wrong_values

TOPICS = ["shop.public.orders", "shop.public.order_lines", "shop.audit.log"]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (["public.orders"], ["shop.public.orders"]),
        (["public.order*"], ["shop.public.order_lines", "shop.public.orders"]),
        (["audit.log", "public.*"], ["shop.audit.log", "shop.public.order_lines", "shop.public.orders"]),
        (["public.orders", "*.orders"], ["shop.public.orders"]),
    ],
)
def test_the_topics_of_names_and_patterns(tables: list[str], expected: list[str]) -> None:
    assert list(topics_of(tables, "shop", TOPICS)) == expected


@pytest.mark.parametrize(
    ("table", "what", "advice"),
    [
        ("public.ordrs", "the table has no topic", "did you mean public.orders"),
        ("Public.Orders", "the table has no topic", "with its first row"),
        ("sales.*", "no topic matches the pattern", "correct the table or the prefix"),
    ],
)
def test_a_table_without_a_topic_is_an_error_also_beside_others(table: str, what: str, advice: str) -> None:
    with pytest.raises(SparkReadError) as caught:
        topics_of(["audit.log", table], "shop", TOPICS)
    assert caught.value.message == what
    assert advice in caught.value.advice
    assert caught.value.context["table"] == table


def test_options_without_a_table_are_for_raw_records() -> None:
    assert table_options({"topics": "shop.public.orders"}) is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"before": "true"}, "option before needs the option table"),
        (
            {"table": " , "},
            "option table is empty: name a table, or omit the option for the raw records of all topics",
        ),
        (
            {"table": "public.orders", "special": "text"},
            "option special has to be map or string or null or error",
        ),
        (
            {"table": "public.orders", "topics": "shop.public.orders"},
            "options table and topics exclude each other",
        ),
        ({"table": "public.orders", "loading": "true"}, "options table and loading exclude each other"),
        ({"table": "public.orders", "ids": "true"}, "options table and ids exclude each other"),
        ({"table": "public.orders", "casesensitive": "yes"}, "option caseSensitive has to be true or false"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], problem: str) -> None:
    assert list(wrong_values(given)) == [problem]


def test_names_are_lists_with_commas() -> None:
    options = table_options({"table": "public.a, public.b", "columns": "id, total", "onerror": "quarantine"})
    assert options is not None
    assert options.tables == ("public.a", "public.b")
    parameters = dict(options.parameters)
    assert parameters["columns"] == ("id", "total")
    assert parameters["on_error"] == "quarantine"
    assert not parameters["before"]
