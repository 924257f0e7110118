"""A session whose TIMESTAMP has no time zone (spark.sql.timestampType): types and values are those of any session."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.spark import decode, mirror, register
from cdcd.spark.session import run_to_end
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
SHOWN = ("2026-11-29 07:00:00", "2026-11-29 12:00:00", "timestamp", "timestamp_ntz")
COLUMNS = "cast({0}.at AS string), cast({0}.there AS string), typeof({0}.at), typeof({0}.there)"
FIELDS = [
    column("id", "int", required=True),
    column("at", {"type": "long", "logicalType": "timestamp-micros"}),
    column("there", {"type": "long", "logicalType": "local-timestamp-micros"}),
]


@pytest.fixture(params=["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session with another type of TIMESTAMP, in New York."""
    given = {"spark.sql.timestampType": request.param, "spark.sql.session.timeZone": "America/New_York"}
    before = {name: spark.conf.get(name) for name in given}
    register(spark)
    for name, value in given.items():
        spark.conf.set(name, value)
    yield spark
    for name, former in before.items():
        assert former is not None
        spark.conf.set(name, former)


@pytest.fixture
def items(topics: TopicsWriter) -> Table:
    """A table with one row."""
    table = topics.table("items", FIELDS)
    row = {"id": 1, "at": NOON, "there": NOON.replace(tzinfo=None)}
    topics.commit(10, topics.change(table, "c", 10, 1, after=row))
    topics.wait_until_visible()
    return table


def test_records_are_read(session: SparkSession, topics: TopicsWriter, items: Table) -> None:
    options = topics.connection.options()
    raw = session.read.format("cdcd").options(**options).load()
    assert dict(raw.dtypes)["timestamp"] == "timestamp"
    assert raw.where("timestamp > timestamp_micros(0)").count() == 1
    decoded = decode(raw, topic=items.topic, connection=topics.connection)
    table = session.read.format("cdcd").options(**options, table="public.items").load()
    for frame in (decoded, table):
        (row,) = frame.selectExpr(*COLUMNS.format("after").split(", ")).collect()
        assert tuple(row) == SHOWN


def test_a_mirror_and_its_table_in_the_catalog_are_read(
    session: SparkSession, topics: TopicsWriter, items: Table, tmp_path: Path
) -> None:
    session.sql(f"CREATE DATABASE clocks LOCATION '{tmp_path / 'warehouse'}'")
    try:
        target = str(tmp_path / "target")
        assert (
            run_to_end(lambda: mirror(session, topics.connection, target, catalog="spark_catalog.clocks"))
            is None
        )
        (row,) = session.sql(f"SELECT {COLUMNS.format('one')} FROM clocks.public_items AS one").collect()
        assert tuple(row) == SHOWN
    finally:
        session.sql("DROP DATABASE clocks CASCADE")
