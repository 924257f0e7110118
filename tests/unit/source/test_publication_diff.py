"""What counts as a change of a publication: the table of all cases (F39, F42, F72)."""

from __future__ import annotations

from typing import get_args

import pytest

from cdcd.model import PublicationChangeKind
from cdcd.ops.metrics import Metrics
from cdcd.source.publication_diff import _SAID, Change, Publication, PublicationEntry, changes
from cdcd.source.unpublished_tables import UnpublishedTable, with_topic

ALL = "insert, update, delete, truncate"
T, U = PublicationEntry("public.t"), PublicationEntry("public.u")


def pub(oid: int = 1, operations: str = ALL, **tables: PublicationEntry) -> Publication:
    return Publication(oid, operations, tables={int(key[1:]): table for key, table in tables.items()})


BEFORE = {"pub": pub(_10=T, _11=U)}


@pytest.mark.parametrize(
    ("now", "not_published", "expected"),
    [
        ({"pub": pub(_10=T, _11=U)}, (), []),
        ({"pub": pub(_10=PublicationEntry("public.t_old"), _11=U)}, (), [("table_renamed", "public.t_old")]),
        ({"pub": pub(_10=PublicationEntry("archive.t"), _11=U)}, (), [("table_renamed", "archive.t")]),
        # An online schema change: the published table is renamed, and another table takes its name.
        (
            {"pub": pub(_10=PublicationEntry("public.t_old"), _11=U)},
            (UnpublishedTable(20, "public", "t"),),
            [("table_renamed", "public.t_old"), ("table_replaced", "public.t")],
        ),
        # FOR ALL TABLES publishes the other table too.
        (
            {"pub": pub(_10=PublicationEntry("public.t_old"), _11=U, _20=T)},
            (),
            [("table_renamed", "public.t_old"), ("table_added", "public.t")],
        ),
        # A table moved out of the published schema.
        ({"pub": pub(_10=T)}, (UnpublishedTable(11, "archive", "u"),), [("table_removed", "public.u")]),
        ({}, (), [("dropped", "")]),
        ({"pub": pub(2, _10=T, _11=U)}, (), [("recreated", "")]),
        (
            {"pub": pub(2, _10=T)},
            (UnpublishedTable(11, "public", "u"),),
            [("recreated", ""), ("table_removed", "public.u")],
        ),
        ({"pub": pub(_10=T)}, (UnpublishedTable(11, "public", "u"),), [("table_removed", "public.u")]),
        ({"pub": pub(_10=T)}, (UnpublishedTable(12, "public", "v"),), [("table_gone", "public.u")]),
        ({"pub": pub(_10=T)}, (), [("table_gone", "public.u")]),
        # Dropped and recreated under its name: published again by FOR ALL TABLES, or not at all.
        ({"pub": pub(_10=T, _12=U)}, (), [("table_recreated", "public.u")]),
        ({"pub": pub(_10=T)}, (UnpublishedTable(12, "public", "u"),), [("table_replaced", "public.u")]),
        ({"pub": pub(_10=T, _11=U, _12=PublicationEntry("public.v"))}, (), [("table_added", "public.v")]),
        ({"pub": pub(_10=PublicationEntry("public.t", "1 2"), _11=U)}, (), [("columns", "public.t")]),
        ({"pub": pub(_10=PublicationEntry("public.t", "", "(a > 1)"), _11=U)}, (), [("rows", "public.t")]),
        # An older record has no entries of schemas.
        ({"pub": pub(_10=PublicationEntry("public.t", entry=7), _11=U)}, (), []),
        ({"pub": pub(_10=PublicationEntry("public.t", "1", entry=7), _11=U)}, (), [("columns", "public.t")]),
        ({"pub": pub(1, "insert", _10=T, _11=U)}, (), [("options", "")]),
        ({"pub": pub(_10=T, _11=U), "other": pub(3, _10=T)}, (), []),
    ],
)
def test_a_change_is(
    now: dict[str, Publication], not_published: tuple[UnpublishedTable, ...], expected: list[tuple[str, str]]
) -> None:
    assert [(change.kind, change.table) for change in changes(BEFORE, now, not_published)] == expected


@pytest.mark.parametrize(
    ("now", "not_published", "sql"),
    [
        (
            pub(_10=PublicationEntry("public.t_old"), _11=U),
            UnpublishedTable(20, "public", "t"),
            (
                'ALTER PUBLICATION "pub" DROP TABLE "public"."t_old"',
                'ALTER PUBLICATION "pub" ADD TABLE "public"."t"',
            ),
        ),
        (
            pub(_10=T),
            UnpublishedTable(11, "my archive", 'u"u'),
            ('ALTER PUBLICATION "pub" ADD TABLE "my archive"."u""u"',),
        ),
        (
            pub(_10=T),
            UnpublishedTable(12, "public", "u", is_logged=False),
            ('ALTER TABLE "public"."u" SET LOGGED; ALTER PUBLICATION "pub" ADD TABLE "public"."u"',),
        ),
    ],
)
def test_what_is_not_published_comes_with_the_sql_that_publishes_it(
    now: Publication, not_published: UnpublishedTable, sql: tuple[str, ...]
) -> None:
    assert tuple(one.sql for one in changes(BEFORE, {"pub": now}, (not_published,)) if one.sql) == sql


def test_a_second_table_under_the_name_is_another_change() -> None:
    """A resume after the first change does not accept the second."""
    now = {"pub": pub(_10=PublicationEntry("public.t_old"), _11=U)}
    first, second = (
        changes(BEFORE, now, (UnpublishedTable(relid, "public", "t"),))[-1].step for relid in (20, 21)
    )
    assert first is not None
    assert first != second
    assert first.stands(now)
    assert not first.stands({"pub": pub(_10=PublicationEntry("public.t_old"), _11=U, _20=T)})


def test_a_table_with_the_name_of_a_topic_that_holds_records_is_found() -> None:
    tables = [
        UnpublishedTable(1, "public", "t"),
        UnpublishedTable(2, "public", "new"),
        UnpublishedTable(3, "archive", "t"),
    ]
    topic_of = lambda schema, table: f"shop.{schema}.{table}"  # noqa: E731
    assert with_topic(tables, topic_of, ["shop.public.t", "shop.public.gone"]) == tables[:1]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (PublicationEntry("public.t", entry=6), []),
        (PublicationEntry("public.t", entry=7), ["table_readded"]),
        (PublicationEntry("public.t", entry=0), ["table_readded"]),
        (PublicationEntry("public.t", "1 2", entry=7), ["columns", "table_readded"]),
        (PublicationEntry("public.t", "", "(a > 1)", entry=7), ["rows", "table_readded"]),
    ],
)
def test_another_entry_is_another_membership(now: PublicationEntry, expected: list[str]) -> None:
    """Rows written between the two memberships are in no stream (F42), whatever else differs."""
    was = {"pub": pub(_10=PublicationEntry("public.t", entry=6))}
    found = changes(was, {"pub": pub(_10=now)})
    assert [change.kind for change in found] == expected
    made_again = changes(was, {"pub": pub(2, _10=now)})
    assert [change.kind for change in made_again] == ["recreated", *expected[:-1]]
    is_unknown = [("SET TABLE" in change.description) for change in found if change.kind == "table_readded"]
    assert is_unknown == [len(expected) > 1] * len(is_unknown), "SET TABLE has lost nothing"


def test_the_options_are_reported_before_and_after() -> None:
    (change,) = changes(BEFORE, {"pub": pub(1, "insert", _10=T, _11=U)})
    assert change.description == f"the options of publication pub were changed: publish was {ALL}, is insert"


def test_an_alter_that_was_reverted_is_reported() -> None:
    was, now = Publication(1, ALL, version="700"), Publication(1, ALL, version="702")
    (change,) = changes({"pub": was}, {"pub": now})
    assert change.kind == "options"
    assert "altered" in change.description


def test_every_kind_has_words_and_is_counted() -> None:
    metrics = Metrics("1", with_process=False).snapshot()
    kinds = set(get_args(PublicationChangeKind))
    assert set(_SAID) == kinds
    name = "cdcd_publication_changes_total"
    assert {one for one in metrics if one.startswith(name)} == {
        f'{name}{{change="{kind}"}}' for kind in kinds
    }
    assert "public.t" in Change("table_removed", "pub", "public.t").description
