"""A mirror's rows after changes of the table's columns, for which PostgreSQL sends no rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import CdcdError
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rows_of, run_mirror

ID, NAME = column("id", "int", required=True), column("name", "string")
NUMBER, STATE, STATUS = column("n", "int"), column("state", "string"), column("status", "string")


@pytest.mark.nightly
@pytest.mark.parametrize("in_one_batch", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_column_that_was_dropped_and_added_again_begins_empty(
    spark: SparkSession, topics: TopicsWriter, target: Path, in_one_batch: bool
) -> None:
    """The new schema equals the former one, even in its id; only the schema in between shows that it is another
    column.
    """
    items = topics.table("items", [ID, NAME])
    items_before = [{"id": n, "name": "old"} for n in (1, 2)]
    topics.commit(
        10,
        [
            *topics.change(items, "r", 10, 1, after=items_before[0]),
            *topics.change(items, "r", 10, 2, after=items_before[1], special={"after.name": "infinity"}),
        ],
    )
    if not in_one_batch:
        run_mirror(spark, topics, target)
    items.alter([ID])
    topics.commit(20, topics.change(items, "c", 20, 1, after={"id": 3}))
    if not in_one_batch:
        run_mirror(spark, topics, target)
    items.alter([ID, NAME])
    topics.commit(30, topics.change(items, "c", 30, 1, after={"id": 4, "name": "new"}))
    assert rows_of(run_mirror(spark, topics, target), items) == [
        *({"id": n, "name": None} for n in (1, 2, 3)),
        {"id": 4, "name": "new"},
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("in_one_batch", [True, pytest.param(False, marks=pytest.mark.long)])
def test_rows_without_a_key_are_found_when_postgresql_has_filled_a_column(
    spark: SparkSession, topics: TopicsWriter, target: Path, in_one_batch: bool
) -> None:
    """ADD COLUMN ... DEFAULT, then RENAME: no row is sent, and the next change's old row has the new values."""
    log = topics.table("log", [NUMBER], key=())
    topics.commit(10, [r for n in range(1, 5) for r in topics.change(log, "r", 10, n, after={"n": n})])
    if not in_one_batch:
        run_mirror(spark, topics, target)
    log.alter([NUMBER, STATE])
    topics.commit(
        20,
        [
            *topics.change(log, "u", 20, 1, before={"n": 1, "state": "x"}, after={"n": 1, "state": "x"}),
            *topics.change(log, "d", 20, 2, before={"n": 2, "state": "x"}),
            *topics.change(log, "c", 20, 3, after={"n": 5, "state": None}),
        ],
    )
    if not in_one_batch:
        run_mirror(spark, topics, target)
    log.alter([NUMBER, STATUS])
    topics.commit(
        30,
        [
            *topics.change(log, "u", 30, 1, before={"n": 1, "status": "x"}, after={"n": 1, "status": "y"}),
            *topics.change(log, "d", 30, 2, before={"n": 3, "status": "x"}),
            *topics.change(log, "d", 30, 3, before={"n": 5, "status": None}),
        ],
    )
    assert rows_of(run_mirror(spark, topics, target), log) == [
        {"n": 1, "status": "y"},
        {"n": 4, "status": None},
    ]


@pytest.mark.nightly
def test_a_row_without_a_key_that_is_nowhere_is_an_error(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    log = topics.table("log", [NUMBER], key=())
    topics.commit(10, topics.change(log, "r", 10, 1, after={"n": 1}))
    log.alter([NUMBER, STATE])
    topics.commit(20, topics.change(log, "d", 20, 1, before={"n": 2, "state": "x"}))
    with pytest.raises(CdcdError, match="the target does not have the row that a change removes"):
        run_mirror(spark, topics, target)
