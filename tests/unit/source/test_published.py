"""What counts as a change of a publication: the whole table of cases (F39, F42, F72)."""

from __future__ import annotations

import pytest

from cdcd.ops.source_metrics import CHANGES
from cdcd.source.published import _SAID, Change, Publication, PublishedAs, changes

ALL = "insert, update, delete, truncate"
T, U = PublishedAs("public.t"), PublishedAs("public.u")


def pub(oid: int = 1, operations: str = ALL, **tables: PublishedAs) -> Publication:
    return Publication(oid, operations, tables={int(key[1:]): table for key, table in tables.items()})


BEFORE = {"pub": pub(_10=T, _11=U)}


@pytest.mark.parametrize(
    ("now", "existing", "expected"),
    [
        ({"pub": pub(_10=T, _11=U)}, (), []),
        ({"pub": pub(_10=PublishedAs("public.renamed"), _11=U)}, (), []),
        ({}, (), [("dropped", "")]),
        ({"pub": pub(2, _10=T, _11=U)}, (), [("recreated", "")]),
        ({"pub": pub(2, _10=T)}, ("public.u",), [("recreated", ""), ("table_removed", "public.u")]),
        ({"pub": pub(_10=T)}, ("public.u",), [("table_removed", "public.u")]),
        ({"pub": pub(_10=T)}, (), [("table_gone", "public.u")]),
        # Dropped and made again under its name: published again by FOR ALL TABLES, or not at all.
        (
            {"pub": pub(_10=T, _12=U)},
            ("public.u",),
            [("table_gone", "public.u"), ("table_added", "public.u")],
        ),
        ({"pub": pub(_10=T, _11=U, _12=PublishedAs("public.v"))}, (), [("table_added", "public.v")]),
        ({"pub": pub(_10=PublishedAs("public.t", "1 2"), _11=U)}, (), [("columns", "public.t")]),
        ({"pub": pub(_10=PublishedAs("public.t", "", "(a > 1)"), _11=U)}, (), [("rows", "public.t")]),
        # A record of before the entries of schemas were read has none.
        ({"pub": pub(_10=PublishedAs("public.t", entry=7), _11=U)}, (), []),
        ({"pub": pub(_10=PublishedAs("public.t", "1", entry=7), _11=U)}, (), [("columns", "public.t")]),
        ({"pub": pub(1, "insert", _10=T, _11=U)}, (), [("options", "")]),
        ({"pub": pub(_10=T, _11=U), "other": pub(3, _10=T)}, (), []),
    ],
)
def test_a_change_is(
    now: dict[str, Publication], existing: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    assert [(change.kind, change.table) for change in changes(BEFORE, now, existing)] == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (PublishedAs("public.t", entry=6), []),
        (PublishedAs("public.t", entry=7), ["table_readded"]),
        (PublishedAs("public.t", entry=0), ["table_readded"]),
        (PublishedAs("public.t", "1 2", entry=7), ["columns", "table_readded"]),
        (PublishedAs("public.t", "", "(a > 1)", entry=7), ["rows", "table_readded"]),
    ],
)
def test_another_entry_is_another_membership(now: PublishedAs, expected: list[str]) -> None:
    """Whatever else is otherwise: what was written between the two is in no stream (F42)."""
    was = {"pub": pub(_10=PublishedAs("public.t", entry=6))}
    found = changes(was, {"pub": pub(_10=now)})
    assert [change.kind for change in found] == expected
    made_again = changes(was, {"pub": pub(2, _10=now)})
    assert [change.kind for change in made_again] == ["recreated", *expected[:-1]]
    is_unsure = [("SET TABLE" in change.said) for change in found if change.kind == "table_readded"]
    assert is_unsure == [len(expected) > 1] * len(is_unsure), "SET TABLE has left nothing out"


def test_the_options_are_told_as_they_were_and_are() -> None:
    (change,) = changes(BEFORE, {"pub": pub(1, "insert", _10=T, _11=U)})
    assert change.said == f"publication pub publishes otherwise: publish was {ALL}, is insert"


def test_an_alter_that_was_taken_back_is_told() -> None:
    was, now = Publication(1, ALL, version="700"), Publication(1, ALL, version="702")
    (change,) = changes({"pub": was}, {"pub": now})
    assert change.kind == "options"
    assert "altered" in change.said


def test_every_kind_has_words_and_is_counted() -> None:
    assert set(_SAID) == set(CHANGES)
    assert "public.t" in Change("table_removed", "pub", "public.t").said
