"""Which topics the option `table` names, and what is wrong with the options beside it."""

from __future__ import annotations

import pytest

from cdcd.errors import SparkReadError
from cdcd.spark.source.table_options import named_topic, table_options, topics_of, wrong_values

TOPICS = ["shop.public.orders", "shop.public.order_lines", "shop.audit.log", "shop.crm.my_u0020table"]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (["public.orders"], ["shop.public.orders"]),
        (["public.order*"], ["shop.public.order_lines", "shop.public.orders"]),
        (["audit.log", "public.*"], ["shop.audit.log", "shop.public.order_lines", "shop.public.orders"]),
        (["public.orders", "*.orders"], ["shop.public.orders"]),
        (["crm.my table"], ["shop.crm.my_u0020table"]),
        (["crm.my_u0020table"], ["shop.crm.my_u0020table"]),
        (["crm.my t*"], ["shop.crm.my_u0020table"]),
    ],
)
def test_the_topics_of_names_and_patterns(tables: list[str], expected: list[str]) -> None:
    assert list(topics_of(tables, "shop", TOPICS)) == expected


@pytest.mark.parametrize(
    ("table", "what", "advice"),
    [
        ("public.ordrs", "the table has no topic", "did you mean public.orders"),
        ("Public.Orders", "the table has no topic", "did you mean public.orders"),
        ("crm.my tables", "the table has no topic", "did you mean crm.my table"),
        ("public.Nothing", "the table has no topic", "with its first row"),
        ("sales.*", "no topic matches the pattern", "correct the table or the prefix"),
    ],
)
def test_a_table_without_a_topic_is_an_error_also_among_others(table: str, what: str, advice: str) -> None:
    with pytest.raises(SparkReadError) as caught:
        topics_of(["audit.log", table], "shop", TOPICS)
    assert caught.value.message == what
    assert advice in caught.value.advice
    assert caught.value.context["table"] == table


def test_the_name_of_a_topic_comes_before_a_name_of_postgresql() -> None:
    """A table may be called like the topic of another one."""
    names = {"my table": "shop.crm.my_u0020table", "my_u0020table": "shop.crm.my_u005Fu0020table"}
    for topic in names.values():
        (found,) = topics_of([topic.removeprefix("shop.")], "shop", names.values())
        assert found == topic
        assert named_topic(topic.removeprefix("shop."), "shop", names.values()) == topic
    assert topics_of(["crm.my table"], "shop", names.values()) == (names["my table"],)


def test_the_name_of_a_table_is_no_pattern() -> None:
    topics = ["shop.crm.a_u005B1_u005D", "shop.crm.a1"]
    assert topics_of(["crm.a[1]"], "shop", topics) == (topics[0],)
    assert named_topic("crm.a*", "shop", topics) is None


def test_switches_have_any_case() -> None:
    options = table_options({"table": "public.a", "before": "True", "casesensitive": "TRUE"})
    assert options is not None
    assert dict(options.parameters)["before"]
    assert options.is_case_sensitive
    assert not list(wrong_values({"table": "public.a", "before": "True", "casesensitive": "TRUE"}))


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
