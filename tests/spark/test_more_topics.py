"""A mirror is started again with more topics: a transfer is never batches in one table and not in the other one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import TablesParked
from cdcd.spark import drop_table, read_mirror, wait
from cdcd.spark.mirroring.batches import BatchReport
from cdcd.spark.reading.views import consistent_view
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter, rows_of, run_mirror
from tests.support.nightly import nightly_except

FIELDS = [column("id", "int", required=True), column("name", "string")]


def transfers(topics: TopicsWriter, tables: tuple[Table, Table], numbers: range) -> None:
    """Write transactions that insert a row into each of two tables."""
    for number in numbers:
        lsn = 1000 * number
        records = [topics.change(one, "c", lsn, n, after=_row(number)) for n, one in enumerate(tables, 1)]
        topics.commit(lsn, [one for each in records for one in each])


def _row(number: int) -> dict[str, object]:
    return {"id": number, "name": "x"}


class BatchRows:
    """What a reader finds after each batch."""

    def __init__(self, target: Path, tables: tuple[Table, Table]) -> None:
        self._target, self._tables = target, tables
        self.found: list[tuple[int, int, int, bool]] = []

    def __call__(self, report: BatchReport) -> None:
        opened = read_mirror(self._target)
        first, second = (len(rows_of(opened, one)) for one in self._tables)
        self.found.append((opened.end_lsn, first, second, self._tables[1].topic in opened.loading))

    def expect(self, end_lsn: int, rows: int, added_rows: int | None = None) -> None:
        """The added table is loading in all batches but the last one, and the position is that of the other."""
        *earlier, last = self.found
        assert len(earlier) > 1
        assert {(end, first, is_loading) for end, first, _, is_loading in earlier} == {(end_lsn, rows, True)}
        assert last == (end_lsn, rows, added_rows or rows, False)


@pytest.mark.parametrize("table_format", nightly_except(TABLE_FORMATS, "parquet"))
def test_an_added_table_is_loading_until_it_is_as_of_the_commit_of_the_others(
    spark: SparkSession, topics: TopicsWriter, target: Path, table_format: TableFormat
) -> None:
    a, b = tables = topics.table("a", FIELDS), topics.table("b", FIELDS)
    transfers(topics, tables, range(1, 11))
    asked = {"format": table_format, "stored_as_scd_type": 2}
    run_mirror(spark, topics, target, topics=[a.topic], **asked)
    batches = BatchRows(target, tables)

    def note(report: BatchReport) -> None:
        batches(report)
        if len(batches.found) == 1:
            assert wait(target, 10_000, timeout_s=0, loading=True)
            with pytest.raises(TablesParked):
                wait(target, 10_000, timeout_s=0)
            assert list(consistent_view(spark, target).views) == ["public.a"]

    run_mirror(spark, topics, target, topics=[a.topic, b.topic], max_rows=3, on_batch=note, **asked)
    batches.expect(10_008, 10)
    assert wait(target, 10_000, timeout_s=0).loading == []
    assert sum(one.rows for one in read_mirror(target).version.tables[b.topic].history) == 10


def test_a_dropped_table_that_was_left_out_is_loading_when_it_is_copied_again(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    a, b = tables = topics.table("a", FIELDS), topics.table("b", FIELDS)
    transfers(topics, tables, range(1, 3))
    run_mirror(spark, topics, target)
    drop_table(target, "public.b")
    topics.commit(3000, topics.change(b, "t", 3000, 1))
    transfers(topics, tables, range(4, 9))
    run_mirror(spark, topics, target, topics=[a.topic])
    batches = BatchRows(target, tables)
    run_mirror(spark, topics, target, max_rows=5, on_batch=batches)
    batches.expect(8008, 7, 5)
