"""`format("cdcd")` with the option table: typed columns at once, for a table, for several, in SQL, in a stream."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdcd.spark import decode
from cdcd.spark.data_source import register
from cdcd.spark.session import run_to_end
from tests.spark.events import column
from tests.spark.topics import TopicsWriter
from tests.support.nightly import nightly
from tests.support.waiting import eventually

ITEMS = [column("id", "int", required=True), column("name", "string")]
SALES = [column("id", "int", required=True), column("total", "long")]


@pytest.fixture
def topics_of_two(topics: TopicsWriter) -> TopicsWriter:
    """Two tables, with two commits of both."""
    items, sales = topics.table("items", ITEMS), topics.table("sales", SALES)
    for number in (1, 2):
        changes = topics.change(items, "c", number * 10, 0, after={"id": number, "name": f"item {number}"})
        changes += topics.change(sales, "c", number * 10, 1, after={"id": number, "total": number * 100})
        topics.commit(number * 10, changes)
    return topics


def read(spark: SparkSession, topics: TopicsWriter, **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("cdcd").options(**topics.connection.options(), **options).load()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def test_a_table_has_the_columns_and_rows_of_decode(spark: SparkSession, topics_of_two: TopicsWriter) -> None:
    topic = f"{topics_of_two.prefix}.public.items"
    found = read(spark, topics_of_two, table="public.items")
    decoded = decode(read(spark, topics_of_two), topic=topic, connection=topics_of_two.connection)
    assert found.schema == decoded.schema
    assert rows(found) == rows(decoded)
    assert rows(found.select("op", "after.*")) == [("c", 1, "item 1"), ("c", 2, "item 2")]


def test_options_choose_what_is_decoded(spark: SparkSession, topics_of_two: TopicsWriter) -> None:
    found = read(
        spark, topics_of_two, table="public.items", columns="name", before="true", sourceFields="table"
    )
    assert found.select("after.*").columns == ["name"]
    assert found.select("before.*").columns == ["name"]
    assert rows(found.select("source.table")) == [("items",), ("items",)]


def test_a_pattern_is_a_union_without_other_topics(spark: SparkSession, topics_of_two: TopicsWriter) -> None:
    found = read(spark, topics_of_two, table="public.*")
    assert found.select("after.*").columns == ["id", "name", "total"]
    assert rows(found.select("after.*")) == [
        (1, "item 1", None),
        (1, None, 100),
        (2, "item 2", None),
        (2, None, 200),
    ]
    assert {topic for (topic,) in rows(read(spark, topics_of_two, table="*.sales").select("topic"))} == {
        f"{topics_of_two.prefix}.public.sales"
    }


def test_a_table_without_a_topic_is_an_error_at_load(
    spark: SparkSession, topics_of_two: TopicsWriter
) -> None:
    with pytest.raises(AnalysisException, match=r"the table has no topic.*did you mean public.items"):
        read(spark, topics_of_two, table="public.itms")


def test_a_view_of_sql(spark: SparkSession, topics_of_two: TopicsWriter) -> None:
    register(spark)
    options = {**topics_of_two.connection.options(), "table": "public.sales"}
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sales_changes USING cdcd OPTIONS ({given})")
    assert rows(spark.sql("SELECT sum(after.total) FROM sales_changes WHERE op = 'c'")) == [(300,)]
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE sales_table USING cdcd OPTIONS ({given})")


def test_a_stream_of_a_table(spark: SparkSession, topics: TopicsWriter, tmp_path: Path) -> None:
    """Each start reads the changes that are new, also those of a newer schema."""
    register(spark)
    items, connection = topics.table("items", ITEMS), topics.connection.options()
    for number in (1, 2):
        row = {"id": number, "name": "an item"}
        topics.commit(number * 10, topics.change(items, "c", number * 10, 0, after=row))
    for expected in (2, 3):
        frame = spark.readStream.format("cdcd").options(**connection, table="public.items").load()
        query = (
            frame.select("commit_lsn", "after.id")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
        found = spark.read.parquet(str(tmp_path / "out"))
        assert rows(found) == [(10 * number, number) for number in range(1, expected + 1)]
        items.alter([*ITEMS, column("more", "long")])
        topics.commit(30, topics.change(items, "c", 30, 0, after={"id": 3, "name": "c", "more": 7}))


def test_a_running_stream_goes_on_over_an_alter(spark: SparkSession, topics: TopicsWriter) -> None:
    register(spark)
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "c", 10, 0, after={"id": 1, "name": "one"}))
    found: list[tuple[object, ...]] = []
    query = (
        spark.readStream.format("cdcd")
        .options(**topics.connection.options(), table="public.items")
        .load()
        .select("after.*", "schema_id")
        .writeStream.foreachBatch(lambda batch, _number: found.extend(map(tuple, batch.collect())))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        eventually(lambda: len(found) == 1 or query.exception() is not None, "the first row arrives", 60)
        items.alter([*ITEMS, column("more", "long")])
        topics.commit(20, topics.change(items, "c", 20, 0, after={"id": 2, "name": "two", "more": 7}))
        eventually(lambda: len(found) == 2 or query.exception() is not None, "the second row arrives", 60)
        assert query.exception() is None
    finally:
        query.stop()
    assert [row[:-1] for row in found] == [(1, "one"), (2, "two")]
    assert found[0][-1] != found[1][-1]


@pytest.mark.parametrize(
    "other", [nightly([], id="dropped"), pytest.param([column("title", "string")], id="renamed")]
)
def test_a_running_stream_stops_at_a_row_without_one_of_its_columns(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path, other: list[dict[str, Any]]
) -> None:
    """It would be null from there on; started again, the stream has the newest columns and all rows."""
    register(spark)
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "c", 10, 0, after={"id": 1, "name": "one"}))
    found: list[int] = []

    def started(**options: str) -> StreamingQuery:
        frame = spark.readStream.format("cdcd").options(**topics.connection.options(), **options)
        return (
            frame.load()
            .select("after.id")
            .writeStream.foreachBatch(lambda batch, _number: found.extend(row.id for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    query = started(table="public.items")
    try:
        eventually(lambda: found == [1] or query.exception() is not None, "the first row arrives", 60)
        items.alter([ITEMS[0], *other])
        row = {"id": 2} | {one["name"]: "two" for one in other}
        topics.commit(20, topics.change(items, "c", 20, 0, after=row))
        eventually(lambda: query.exception() is not None, "the stream stops", 60)
        assert "columns of the query were dropped or renamed while it ran" in str(query.exception())
        assert "columns name" in str(query.exception())
        assert found == [1]
    finally:
        query.stop()
    query = started(table="public.items", columns="id")
    try:
        eventually(lambda: len(found) == 2 or query.exception() is not None, "the second row arrives", 60)
        assert found == [1, 2]
    finally:
        query.stop()


@pytest.mark.parametrize(("zone", "ansi"), [nightly("UTC", "true"), ("America/New_York", "false")])
def test_the_sessions_settings_change_no_value(
    spark: SparkSession, topics: TopicsWriter, zone: str, ansi: str
) -> None:
    register(spark)
    moment = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    times = topics.table(
        "times",
        [
            column("id", "int", required=True),
            column("at", {"type": "long", "logicalType": "timestamp-micros"}),
            column("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ],
    )
    row = {"id": 1, "at": moment, "local": moment.replace(tzinfo=None)}
    topics.commit(10, topics.change(times, "c", 10, 0, after=row))
    settings = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        typed = read(spark, topics, table="public.times")
        decoded = decode(read(spark, topics), topic=times.topic, connection=topics.connection)
        for frame in (typed, decoded):
            found = frame.selectExpr("unix_micros(after.at)", "cast(after.local as string)")
            assert rows(found) == [(1_700_000_000_123_456, "2023-11-14 22:13:20.123456")]
    finally:
        for name, was in before.items():
            spark.conf.set(name, was or "")


@pytest.mark.nightly
def test_a_worker_that_starts_later_than_spark_waits_is_started_again(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's limit of 10 seconds is fixed; a busy machine may need longer (here the first start takes 20 s)."""
    started = tmp_path / "started"
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *source_runner*) echo >> {started}; [ "$(wc -l < {started})" -gt 1 ] || sleep 20;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    register(spark)
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after={"id": 1, "name": "one"}))
    frame = (
        spark.readStream.format("cdcd").options(**topics.connection.options(), table="public.items").load()
    )
    writer = frame.select("after.*").writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert run_to_end(writer.start) is None
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == [(1, "one")]
    assert len(started.read_text().splitlines()) > 1
