"""`cdcd verify --mirror` finds each difference that is planted in the files of a mirror, and calls it by its kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.spark.target.versions import TableFormat
from tests.integration.conftest import NewDaemon, new_daemon
from tests.support.nightly import nightly
from tests.verify.mirrored_table import PLANTED, UNTOUCHED, created
from tests.verify.planted_mirror import Found, Source, in_session

__all__ = ["new_daemon"]


@pytest.fixture
def source(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Source:
    """Return a source whose tables cdcd streams."""
    for statement in created():
        postgres.execute(statement, dbname=database)
    daemon = new_daemon(postgres, database).start()
    daemon.wait_state("streaming")
    return Source(postgres, database, daemon)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("table_format", "each", "values"),
    [("parquet", 2, 120), *(nightly(one, 10, 1000) for one in ("parquet", "delta", "iceberg"))],
)
def test_each_planted_difference_is_found(
    spark: SparkSession,
    source: Source,
    target: Path,
    table_format: TableFormat,
    each: int,
    values: int,
) -> None:
    ways = in_session(spark, source.daemon, target, table_format)
    planted, before, after = source.try_mirror(ways, random.Random(values), each=each, values=values)
    planted_topic, untouched_topic = (f"{source.daemon.name}.public.{one}" for one in (PLANTED, UNTOUCHED))
    assert before == Found({planted_topic: "equal", untouched_topic: "equal"}, set())
    assert after.states == {planted_topic: "differs", untouched_topic: "equal"}
    assert [one for one in planted if (one.difference, one.id) not in after.rows] == []
    assert after.rows - {(one.difference, one.id) for one in planted} == set()
