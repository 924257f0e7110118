"""A table that cdcd copies incrementally, in a mirror with real Spark, a real broker and a real registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import CdcdError
from cdcd.spark.mirroring.batches import BatchReport
from cdcd.spark.target.commit_log import read_latest
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rewind, rows_of, run_mirror
from tests.support.hints import hint_of
from tests.support.nightly import nightly

ITEMS = [column("id", "int", required=True), column("name", "string"), column("body", "string")]


def _row(number: int, name: str | None = None, body: str | None = None) -> dict[str, object]:
    return {"id": number, "name": name, "body": body}


@pytest.mark.nightly
def test_a_table_is_copied_while_it_changes(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    """Updates and key changes of rows that come later, in three runs; the second repeats the first one's records."""
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    moved = [(number, number + 100) for number in range(1, 5)]
    topics.loading = (items.topic,)
    topics.commit(10, [r for n in range(5, 9) for r in topics.change(items, "r", 10, n, after=_row(n, "s"))])
    records = [*topics.change(others, "c", 20, 1, after=_row(1))]
    for old, new in moved:
        records += topics.change(items, "d", 20, 2 * old, before=_row(old))
        records += topics.change(items, "c", 20, 2 * old + 1, after=_row(new, "moved"), unchanged=["body"])
    topics.commit(20, records)
    reports: list[BatchReport] = []
    opened = run_mirror(spark, topics, target, on_batch=reports.append)
    copied = [_row(number, "s") for number in range(5, 9)]
    assert (opened.loading, rows_of(opened, items), rows_of(opened, others)) == (
        [items.topic],
        copied,
        [_row(1)],
    )
    assert reports[-1].loading == (items.topic,)
    assert reports[-1].written_rows == 5

    rewind(target)
    complete = [_row(new, "moved", f"long {new}") for _, new in moved]
    chunk = [r for n, row in enumerate(complete, 1) for r in topics.change(items, "r", 27, n, after=row)]
    topics.commit(27, chunk)
    opened = run_mirror(spark, topics, target)
    assert (opened.loading, rows_of(opened, items)) == ([items.topic], sorted([*copied, *complete], key=repr))

    topics.loading = ()
    topics.commit(40, [])
    opened = run_mirror(spark, topics, target, on_batch=reports.append)
    assert (opened.loading, rows_of(opened, items)) == ([], sorted([*copied, *complete], key=repr))
    assert (reports[-1].rows, reports[-1].loading) == (0, ())


@pytest.mark.nightly  # test_loading has it
def test_a_row_that_stays_incomplete_stops_the_mirror(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """The mirror stays at its last commit; a new copy completes it."""
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    topics.loading = (items.topic,)
    topics.commit(10, topics.change(items, "u", 10, 1, after=_row(1, "new"), unchanged=["body"]))
    assert rows_of(run_mirror(spark, topics, target), items) == []
    topics.loading = ()
    topics.commit(20, topics.change(others, "c", 20, 1, after=_row(1)))
    with pytest.raises(CdcdError, match="CDCD-MIRROR-INCONSISTENT") as raised:
        run_mirror(spark, topics, target)
    assert f"topic={items.topic}" in str(raised.value)
    assert "first_commit_lsn=0/A" in str(raised.value)
    assert "cdcd resnapshot" in hint_of(str(raised.value))
    stopped = read_latest(target)
    assert stopped is not None
    assert (stopped.commit_lsn, stopped.loading, others.topic in stopped.tables) == (
        10,
        (items.topic,),
        False,
    )
    copied = [
        *topics.change(items, "t", 30, 1, snapshot=True),
        *topics.change(items, "r", 30, 2, after=_row(1, "new", "long")),
    ]
    topics.commit(30, copied)
    opened = run_mirror(spark, topics, target)
    assert (opened.loading, rows_of(opened, items)) == ([], [_row(1, "new", "long")])


@pytest.mark.nightly
def test_a_table_without_a_key_is_copied_while_the_stream_waits(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """The rows follow a truncate event, in several Kafka transactions; equal rows count."""
    log, others = topics.table("log", ITEMS, key=()), topics.table("others", ITEMS)
    topics.commit(
        10,
        [
            *topics.change(log, "c", 10, 1, after=_row(1, "old")),
            *topics.change(others, "c", 10, 2, after=_row(1)),
        ],
    )
    topics.loading = (log.topic,)
    emptied = topics.change(log, "t", 19, 1, snapshot=True)
    topics.commit(
        10, [*emptied, *(r for n in (2, 3) for r in topics.change(log, "r", 19, n, after=_row(1, "same")))]
    )
    opened = run_mirror(spark, topics, target)
    assert (opened.loading, rows_of(opened, log), rows_of(opened, others)) == (
        [log.topic],
        [_row(1, "same")] * 2,
        [_row(1)],
    )
    topics.loading = ()
    topics.commit(10, topics.change(log, "r", 19, 4, after=_row(2, "last")))
    topics.commit(20, topics.change(log, "d", 20, 1, before=_row(1, "same")))
    opened = run_mirror(spark, topics, target)
    assert (opened.loading, rows_of(opened, log)) == ([], [_row(1, "same"), _row(2, "last")])


@pytest.mark.parametrize("points", [(9,), nightly((9, 29))])
def test_the_tables_of_a_snapshot_are_loading_until_it_is_complete(
    spark: SparkSession, topics: TopicsWriter, target: Path, points: tuple[int, ...]
) -> None:
    """Also in a later snapshot, which empties the tables first; the batches keep to their limit."""
    items = topics.table("items", ITEMS)
    for lsn in points:
        name = f"copied at {lsn}"
        topics.snapshot = (items.topic,)
        if lsn > 9:
            topics.commit(lsn, topics.change(items, "t", lsn, 1, snapshot=True))
        for number in range(2, 4):
            topics.commit(lsn, topics.change(items, "r", lsn, number, after=_row(number, name)))
        reports: list[BatchReport] = []
        opened = run_mirror(spark, topics, target, max_rows=1, on_batch=reports.append)
        assert (opened.loading, rows_of(opened, items)) == (
            [items.topic],
            [_row(number, name) for number in (2, 3)],
        )
        assert {report.loading for report in reports} == {(items.topic,)}
        assert len(reports) == (2 if lsn == 9 else 3)
        topics.snapshot = None
        topics.commit(lsn + 1, topics.change(items, "r", lsn, 4, after=_row(4, name)))
        opened = run_mirror(spark, topics, target)
        assert (opened.loading, len(rows_of(opened, items))) == ([], 3)
