"""Views of all tables as of one commit, the newest one and an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import SparkReadError, TablesParked
from cdcd.spark import consistent_view, read_mirror, testing
from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.reading.views import ConsistentView
from tests.faults.transfers import TABLES
from tests.spark import consistent_readers
from tests.spark.consistent_readers import by_spark
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, run_mirror
from tests.support.pages import python_blocks

ID, AMOUNT = column("id", "int", required=True), column("amount", "long")


def test_views_have_all_tables_as_of_one_commit(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """A transfer between two tables: their sum is the same in each view."""
    left, right = topics.table("left", [ID, AMOUNT]), topics.table("right", [ID, AMOUNT])
    others = topics.table("others", [ID])
    row = {"id": 1, "amount": 100}
    topics.commit(
        10, [*topics.change(left, "r", 10, 1, after=row), *topics.change(right, "r", 10, 2, after=row)]
    )
    for number in range(1, 6):
        lsn = 10 + 10 * number
        given, taken = {"id": 1, "amount": 100 - number}, {"id": 1, "amount": 100 + number}
        change = topics.change(left, "u", lsn, 1, after=given), topics.change(right, "u", lsn, 2, after=taken)
        topics.commit(lsn, [*change[0], *change[1]])
        run_mirror(spark, topics, target)
    both = ("public.left", "public.right")
    for at, amount in ((None, 95), (30, 98), ("0/28", 97)):
        view = consistent_view(spark, str(target), at=at, tables=both, prefix="v_")
        assert view.views == {name: f"v_{name.replace('.', '_')}" for name in both}
        found = spark.sql(
            "SELECT l.amount AS l, r.amount AS r FROM v_public_left l JOIN v_public_right r USING (id)"
        )
        assert [tuple(one) for one in found.collect()] == [(amount, 200 - amount)]
        assert view.table("public.left").select("amount").collect()[0][0] == amount

    special = {"gap.from_lsn": "0/42", "gap.to_lsn": "0/46", "gap.reason": "CDCD-SLOT-LOST"}
    gap = topics.change(others, "g", 70, 1, special=special)
    topics.commit(70, [*topics.change(others, "c", 65, 1, after={"id": 1}), *gap])
    with pytest.raises(TablesParked):
        run_mirror(spark, topics, target, on_error="park")
    topics.commit(80, topics.change(left, "u", 80, 1, after={"id": 1, "amount": 7}))
    with pytest.raises(TablesParked):
        run_mirror(spark, topics, target, on_error="park")
    with pytest.raises(TablesParked, match="earlier commit than the others"):
        consistent_view(spark, str(target))
    assert consistent_view(spark, str(target), parked=True).views.keys() > set(both)
    view = consistent_view(spark, str(target), tables=both)
    assert view.table("public.left").select("amount").collect()[0][0] == 7, "the others go on"


def test_the_blocks_of_the_page_run(
    spark: SparkSession, topics: TopicsWriter, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    customer_id = column("customer_id", "int", required=True)
    customers, orders = (
        topics.table("customers", [customer_id], key=("customer_id",)),
        topics.table("orders", [ID, customer_id]),
    )
    topics.commit(10, topics.change(customers, "c", 10, 1, after={"customer_id": 1}))
    topics.commit(20, topics.change(orders, "c", 20, 1, after={"id": 1, "customer_id": 1}))
    run_mirror(spark, topics, target)
    texts = python_blocks("docs/spark/read-mirror.md")
    page = [text.replace("/data/shop", str(target)) for text in texts if '"/data/shop"' in text]
    assert len(page) == 2
    for text in page:
        exec(text, {"spark": spark})
    shown = capsys.readouterr().out
    assert "|       1|" in shown
    assert "before|after" in shown


def test_a_table_that_is_copied_is_in_no_view_unless_it_is_asked_for(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items, others = topics.table("items", [ID]), topics.table("others", [ID])
    topics.commit(10, topics.change(others, "c", 10, 1, after={"id": 1}))
    topics.loading = (items.topic,)
    topics.commit(20, topics.change(items, "r", 20, 1, after={"id": 1}))
    run_mirror(spark, topics, target)
    assert read_mirror(str(target)).loading == [items.topic]
    assert consistent_view(spark, str(target)).views.keys() == {"public.others"}
    with pytest.raises(SparkReadError, match="still copies"):
        consistent_view(spark, str(target), tables=["public.items"])
    asked = consistent_view(spark, str(target), tables=["public.items"], loading=True)
    assert asked.table("public.items").count() == 1


def test_no_view_of_an_earlier_call_is_left_by_a_later_one(spark: SparkSession, tmp_path: Path) -> None:
    """A join would mix two versions. The views of another prefix, and of another mirror, stay."""
    items, others = (
        testing.Table(f"public.{name}", {"id": "int"}, ["id"]) for name in ("my items", "others")
    )
    shop = testing.Database(items, others)
    shop.commit(items.insert(id=1), others.insert(id=1))
    target, other = str(tmp_path / "mirror"), str(tmp_path / "other")
    shop.mirror(target)
    with_accounts(tmp_path / "other", 1)
    for prefix in ("e_", "f_"):
        consistent_view(spark, target, prefix=prefix)
    theirs = consistent_view(spark, other, prefix="e_").views.values()
    shop.commit(others.insert(id=2))
    shop.mirror(target, loading=[items])
    assert consistent_view(spark.newSession(), target, prefix="e_").views.keys() == {"public.others"}
    assert spark.catalog.tableExists("`e_public_my items`"), "another session has its own views"
    assert consistent_view(spark, target, prefix="e_").views.keys() == {"public.others"}
    assert not spark.catalog.tableExists("`e_public_my items`")
    assert spark.table("e_public_others").count() == 2
    assert all(spark.table(one).count() == 1 for one in ("`f_public_my items`", *theirs))
    with pytest.raises(SparkReadError, match="still copies"):
        consistent_view(spark, target, prefix="e_", tables=["public.my items"])
    assert spark.table("e_public_others").count() == 2, "a call that fails changes nothing"


def test_readers_of_two_mirrors_have_their_own_views(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one opens its mirror after the first one has made its views, and before that one's query."""
    opened = [with_accounts(tmp_path / f"{amount}", amount) for amount in (1, 2)]
    expected = [{(table, 1): amount for table in TABLES} for amount in (1, 2)]
    first, second = by_spark(spark), by_spark(spark)

    def interrupted(*arguments: Any, **options: Any) -> ConsistentView:
        monkeypatch.setattr(consistent_readers, "consistent_view", consistent_view)
        view = consistent_view(*arguments, **options)
        assert second(opened[1]) == expected[1]
        return view

    monkeypatch.setattr(consistent_readers, "consistent_view", interrupted)
    assert first(opened[0]) == expected[0]


def test_a_view_that_another_mirror_has_replaced_is_dropped_by_that_one_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without different prefixes: a view's name is one per session, whatever its case is."""
    first, second = (str(with_accounts(tmp_path / f"{amount}", amount).target.uri) for amount in (1, 2))
    left, right = (f"public.{name}" for name in TABLES)
    replaced = f"w_public_{TABLES[1]}"
    consistent_view(spark, first, prefix="w_")
    consistent_view(spark, second, prefix="W_")
    consistent_view(spark, first, prefix="w_", tables=[left])
    assert [one["amount"] for one in spark.table(replaced).collect()] == [2]
    consistent_view(spark, second, prefix="W_", tables=[right])
    assert spark.table(f"w_public_{TABLES[0]}").collect()[0]["amount"] == 1
    consistent_view(spark, second, prefix="W_", tables=[left])
    assert not spark.catalog.tableExists(replaced)


def with_accounts(target: Path, amount: int) -> Mirror:
    """Return a mirror of the two tables, with one account in each."""
    columns = {"id": "integer", "amount": "bigint"}
    tables = [testing.Table(f"public.{name}", columns, ["id"]) for name in TABLES]
    bank = testing.Database(*tables)
    bank.commit(*(one.insert(id=1, amount=amount) for one in tables))
    return bank.mirror(target)


def test_a_view_whose_name_spark_would_replace_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would make a view of another name, in which everyone reads the value of a variable. Columns stay."""
    odd = testing.Table("public.${spark.app.name}", {"id": "bigint"}, key=["id"])
    items = testing.Table("public.items", {"id": "bigint", "${price}": "text"}, key=["id"])
    shop = testing.Database(odd, items)
    shop.commit(odd.insert(id=1), items.insert(id=2))
    shop.mirror(tmp_path)
    before = {one.name for one in spark.catalog.listTables()}
    with pytest.raises(SparkReadError, match="replaces in SQL"):
        consistent_view(spark, tmp_path, prefix="v_")
    assert {one.name for one in spark.catalog.listTables()} == before
    consistent_view(spark, tmp_path, tables=["public.items"], prefix="v_")
    assert spark.table("v_public_items").columns[:2] == ["id", "${price}"]
    spark.conf.set("spark.sql.variable.substitute", "false")
    try:
        consistent_view(spark, tmp_path, prefix="v_")
        assert spark.table("`v_public_${spark.app.name}`").count() == 1
        consistent_view(spark, tmp_path, tables=["public.items"], prefix="v_")
    finally:
        spark.conf.unset("spark.sql.variable.substitute")
