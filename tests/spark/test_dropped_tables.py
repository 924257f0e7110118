"""A table that is dropped from a mirror: the others go on, its files go, it comes back with its next copy only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import EXIT_OK, SparkReadError
from cdcd.spark import drop_table, read_mirror
from cdcd.spark.__main__ import main
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.storage.uri import open_storage
from tests.spark.conftest import Command
from tests.spark.events import Table, column
from tests.spark.foreign_readers import READERS
from tests.spark.topics import TopicsWriter, rows_of, run_mirror
from tests.support.nightly import nightly
from tests.support.waiting import eventually

ITEMS = [column("id", "int", required=True), column("body", "string")]
FORMATS = ["parquet", nightly("delta"), nightly("iceberg")]


def insert(topics: TopicsWriter, table: Table, lsn: int, op: str = "c", **row: Any) -> None:
    topics.commit(lsn, topics.change(table, op, lsn, 1, after=row))


def files_of(target: Path, table: Table) -> list[str]:
    name = table.topic.rpartition("public.")[2]
    return [
        one for one in open_storage(target).paths() if f"public.{name}/" in one and one.endswith(".parquet")
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_dropped_table_comes_back_with_a_truncate_or_a_copy_only(
    spark: SparkSession, topics: TopicsWriter, target: Path, kind: str
) -> None:
    """Its files are removed with the first version after the retention."""
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    insert(topics, others, 20, id=2, body="b")
    run_mirror(spark, topics, target, format=kind, retain_s=0.0)
    assert files_of(target, items)
    words = ["drop-table", "--target", str(target), "--table", "public.items"]
    assert main(words) == EXIT_OK
    opened = read_mirror(target)
    assert opened.topics == [others.topic]
    if kind in READERS:
        assert READERS[kind].newest(target, "public.items").num_rows == 1, "the mirror has not gone on"
    assert read_mirror(target, at=f"v{opened.version.number}").commit_lsn == 20

    insert(topics, items, 30, id=3, body="is left out")
    insert(topics, others, 40, id=4, body="d")
    opened = run_mirror(spark, topics, target, format=kind, retain_s=0.0)
    assert opened.topics == [others.topic]
    assert [row["id"] for row in rows_of(opened, others)] == [2, 4]
    run_mirror(spark, topics, target, format=kind, retain_s=0.0)
    assert files_of(target, items) == []
    if kind in READERS:
        assert READERS[kind].newest(target, "public.items").num_rows == 0

    topics.commit(50, topics.change(items, "t", 50, 1))
    insert(topics, items, 60, id=5, body="e")
    opened = run_mirror(spark, topics, target, format=kind, retain_s=0.0)
    assert rows_of(opened, items) == [{"id": 5, "body": "e"}]
    assert opened.version.dropped == {}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_is_dropped_while_the_mirror_runs(
    spark: SparkSession, topics: TopicsWriter, target: Path, kind: str
) -> None:
    """The mirror finds the version of the command, starts again from it, and loses no row of the others."""
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    insert(topics, others, 20, id=1, body="b")
    topics.wait_until_visible()
    query = mirror(spark, topics.connection, str(target), trigger="0 seconds", format=kind)  # type: ignore[arg-type]
    try:
        eventually(lambda: _has(target, others, 1), "both tables")
        drop_table(target, "public.items")
        for number in range(2, 6):
            insert(topics, items, number * 20, id=number, body="a")
            insert(topics, others, number * 20 + 10, id=number, body="b")
        eventually(lambda: _has(target, others, 5), "the rows of the other table")
        assert read_mirror(target).topics == [others.topic]
        assert query.exception() is None
    finally:
        query.stop()
    assert [row["id"] for row in rows_of(read_mirror(target), others)] == [1, 2, 3, 4, 5]


def _has(target: Path, table: Table, rows: int) -> bool:
    try:
        opened = read_mirror(target)
    except SparkReadError:
        return False
    return table.topic in opened.topics and opened.rows(table.topic) == rows


def test_a_dropped_table_is_not_verified_and_stays_dropped_with_a_new_writer(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    command: Command,
    capsys: pytest.CaptureFixture[str],
) -> None:
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    insert(topics, others, 20, id=2, body="b")
    run_mirror(spark, topics, target)
    drop_table(target, "public.items")
    run_mirror(spark, topics, target)
    capsys.readouterr()
    assert command("verify", "--target", str(target), "--output", "json") == EXIT_OK
    shown = capsys.readouterr().out
    assert others.topic in shown
    assert items.topic not in json.loads(shown.splitlines()[-1]).__repr__()


def test_a_table_that_the_mirror_does_not_have(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    insert(topics, topics.table("items", ITEMS), 10, id=1, body="a")
    run_mirror(spark, topics, target)
    with pytest.raises(SparkReadError, match=r"did you mean public.items"):
        drop_table(target, "public.item")
    assert main(["drop-table", "--target", str(target), "--table", "public.*s"]) == EXIT_OK
    assert read_mirror(target).topics == []
