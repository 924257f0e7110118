"""`cdcd verify --mirror` finds each difference that is planted in the files of a mirror, and calls it by its kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.cli.verify_mirror import verify_mirror
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.spark import session as sessions
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.session import run_to_end
from cdcd.spark.target.versions import TableFormat
from cdcd.verify.outcome import TableOutcome, as_document
from tests.integration.conftest import NewDaemon, new_daemon
from tests.spark.conftest import _Lasting
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.verify.mirrored_table import PLANTED, UNTOUCHED, created
from tests.verify.planted_mirror import Found, Source, Ways, rows_found

__all__ = ["new_daemon"]


@pytest.fixture
def source(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Source:
    """Return a source whose tables cdcd streams."""
    for statement in created():
        postgres.execute(statement, dbname=database)
    daemon = new_daemon(postgres, database).start()
    daemon.wait_state("streaming")
    return Source(postgres, database, daemon)


def _ways(spark: SparkSession, daemon: Daemon, target: Path, table_format: TableFormat) -> Ways:
    """Return the functions of the commands, in the tests' Spark."""

    def run() -> Mirror:
        connection = connection_from({"config": str(daemon.config_path)})
        options = {"format": table_format, "on_error": "fail"}
        if failure := run_to_end(lambda: mirror(spark, connection, str(target), **options)):
            raise failure
        return read_mirror(target)

    def verified() -> Found:
        outcomes: list[TableOutcome] = []
        verify_mirror(
            daemon.config_path, str(target), {}, (), shows_keys=True, most_rows=100_000, outcomes=outcomes
        )
        rows = [row for one in as_document(outcomes) for row in one["rows"]]
        return Found({one.table: one.state for one in outcomes}, rows_found(rows))

    return Ways(run, verified)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("table_format", "each", "values"),
    [("parquet", 2, 120), *(nightly(one, 10, 1000) for one in ("parquet", "delta", "iceberg"))],
)
def test_each_planted_difference_is_found(
    spark: SparkSession,
    source: Source,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: TableFormat,
    each: int,
    values: int,
) -> None:
    monkeypatch.setattr(sessions, "session", lambda *_, **__: _Lasting(spark))
    ways = _ways(spark, source.daemon, target, table_format)
    planted, before, after = source.try_mirror(ways, random.Random(values), each=each, values=values)
    planted_topic, untouched_topic = (f"{source.daemon.name}.public.{one}" for one in (PLANTED, UNTOUCHED))
    assert before == Found({planted_topic: "equal", untouched_topic: "equal"}, set())
    assert after.states == {planted_topic: "differs", untouched_topic: "equal"}
    assert [one for one in planted if (one.difference, one.id) not in after.rows] == []
    assert after.rows - {(one.difference, one.id) for one in planted} == set()
