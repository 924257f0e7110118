"""The tables of a snapshot by the rules of the configuration, and their order."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cdcd.model import TableCopyState
from cdcd.snapshot.selection import CopyRule, Order, Selection
from cdcd.snapshot.units import CopiedTable


def table(name: str, relid: int = 1) -> CopiedTable:
    schema, _, relation = name.partition(".")
    columns = ("note", "id", "body", "at")
    return CopiedTable(relid, schema, relation, columns, None, is_partitioned=False, key=("id",))


TABLES = [table("audit.log", 1), table("shop.items", 2), table("shop.orders", 3)]


def rule(pattern: str, **more: object) -> CopyRule:
    return CopyRule(re.compile(pattern), **more)  # type: ignore[arg-type]


def test_without_rules_every_table_is_copied_completely() -> None:
    assert Selection().choose(TABLES) == TABLES


def test_a_later_rule_overrides_what_it_sets_and_nothing_else() -> None:
    selection = Selection(
        (
            rule(".*", include=False, priority=1),
            rule(r"shop\..*", include=True, where="id > 5"),
            rule(r"shop\.orders", where="id > 7"),
            rule("shop", include=False),  # a part of a name matches nothing
        )
    )
    assert [(one.title, one.where, one.priority) for one in selection.choose(TABLES)] == [
        ("shop.items", "id > 5", 1),
        ("shop.orders", "id > 7", 1),
    ]
    assert selection.unused_patterns(TABLES) == ["shop"]


@pytest.mark.parametrize(
    ("rule", "continued"),
    [
        ({}, []),
        ({"where": "id > 1"}, [17]),
        ({"where": "id > 2"}, []),
        ({"where": "id > 1", "priority": 4}, [17]),
        ({"where": "id > 1", "include": False}, []),
    ],
)
def test_a_copy_is_continued_only_under_the_same_condition(
    rule: dict[str, Any], continued: list[int]
) -> None:
    tables = [CopiedTable(relid, "s", f"t{relid}", ("id",), None, is_partitioned=False) for relid in (17, 18)]
    selection = Selection((CopyRule(re.compile(r"s\..*"), **rule),))
    states = {17: TableCopyState("topic", where="id > 1"), 19: TableCopyState("dropped", where="id > 1")}
    assert [table.relid for table in selection.continued(states, tables)] == continued


@pytest.mark.parametrize(
    ("was", "columns", "is_continued"),
    [
        (None, None, True),
        (None, ("id", "note"), False),  # also a record of a version that did not note the columns
        (("note",), None, False),
        (("note", "id"), ("id", "note"), True),
        ((), ("note",), False),
        ((), (), True),
    ],
)
def test_a_copy_is_continued_only_with_the_same_columns(
    was: tuple[str, ...] | None, columns: tuple[str, ...] | None, is_continued: bool
) -> None:
    table = CopiedTable(17, "s", "t", ("id", "note"), None, is_partitioned=False)
    selection = Selection((CopyRule(re.compile(r"s\..*"), columns=columns),))
    found = selection.continued({17: TableCopyState("topic", columns=was)}, [table])
    assert [one.relid for one in found] == [17] * is_continued


def test_the_columns_of_the_key_are_read_with_the_chosen_ones() -> None:
    selection = Selection(
        (rule(r"shop\..*", columns=("at", "note")), rule(r"shop\.orders", columns=("body",)))
    )
    assert [(one.title, one.selected, one.omitted) for one in selection.choose(TABLES)] == [
        ("audit.log", ("note", "id", "body", "at"), ()),
        ("shop.items", ("note", "id", "at"), (2,)),
        ("shop.orders", ("id", "body"), (0, 3)),
    ]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("name", ["shop.orders", "audit.log", "shop.items"]),
        ("smallest_first", ["shop.orders", "shop.items", "audit.log"]),
        ("largest_first", ["shop.orders", "audit.log", "shop.items"]),
    ],
)
def test_the_priority_comes_before_the_size(order: Order, expected: list[str]) -> None:
    selection = Selection((rule(r"shop\.orders", priority=1),), order)
    pages = {1: 50, 2: 5, 3: 20}
    chosen = selection.choose(TABLES)
    ranked = sorted(chosen, key=lambda one: selection.rank(one, pages[one.relid]))
    assert [one.title for one in ranked] == expected
