"""Tables without a row are in a mirror, with their columns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark import consistent_view, read_mirror
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.mirroring.verify import verify
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.support.daemon import Daemon, await_confirmed, environment_without_cdcd
from tests.support.nightly import nightly_except

TABLES = """
CREATE TABLE full_one (id int PRIMARY KEY);
INSERT INTO full_one VALUES (1);
CREATE TABLE nothing (id int PRIMARY KEY, "A name" text, price numeric(10,2), at timestamptz);
CREATE TABLE keyless (note text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE reserved (id int PRIMARY KEY, __key text);
CREATE TABLE cases (id int PRIMARY KEY, name text, "NAME" text);
CREATE PUBLICATION cdcd_{name} FOR TABLE full_one, nothing, keyless, reserved, cases;
"""


@pytest.mark.parametrize("table_format", nightly_except(TABLE_FORMATS, "parquet"))
def test_a_table_without_a_row_is_there_with_its_columns(
    table_format: TableFormat,
    spark: SparkSession,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """And has its rows when they come, also under columns that it got meanwhile.

    One whose columns the mirror cannot have is left out, and does not disturb the others.
    """
    name, target = f"bare{os.getpid()}{table_format}", str(tmp_path / "mirror")
    postgres.execute(TABLES.format(name=name), dbname=database)
    connection = Connection(kafka.bootstrap, name, registry=RegistryAccess(registry.url))
    daemon = Daemon(
        tmp_path / "cdcd",
        name,
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
    )

    def run() -> None:
        await_confirmed(postgres, daemon)
        mirror(spark, connection, target, format=table_format).awaitTermination()

    with daemon:
        daemon.start().wait_state("streaming")
        run()
        view = consistent_view(spark, target)
        expected = {"public.full_one", "public.nothing", "public.keyless"}
        assert view.views.keys() == expected | ({"public.cases"} if table_format == "parquet" else set())
        assert not read_mirror(target).parked
        found = spark.table("public_nothing")
        assert found.count() == 0
        shown = [(one.name, one.dataType.simpleString()) for one in found.schema][:4]
        assert shown == [("id", "int"), ("A name", "string"), ("price", "decimal(10,2)"), ("at", "timestamp")]

        results = {one.topic.rpartition(".")[2]: one.status for one in verify(spark, connection, target)}
        assert set(results.values()) == {"equal"}
        assert {"full_one", "nothing", "keyless"} <= results.keys()

        postgres.execute(
            "ALTER TABLE nothing ADD more int; INSERT INTO nothing VALUES (7, 'x', 1, now(), 3);"
            "INSERT INTO keyless VALUES ('k'), ('k')",
            dbname=database,
        )
        ((lsn,),) = postgres.execute("SELECT pg_current_wal_insert_lsn()::text")
        run()
        waited = [
            sys.executable,
            "-m",
            "cdcd",
            "wait",
            lsn,
            "--mirror",
            target,
            "--config",
            str(daemon.config_path),
        ]
        output = subprocess.run(
            waited, stdout=subprocess.PIPE, text=True, env=environment_without_cdcd(), check=True, timeout=120
        ).stdout
        assert "visible in the mirror: all commits up to" in output, (
            "by the daemon's slot, server and timeline"
        )
        ((slot, position),) = read_mirror(target).version.positions.items()
        assert (slot, position.timeline) == (daemon.slot, 1)
    opened = read_mirror(target)
    rows = opened.table(f"{name}.public.nothing").to_pylist()
    assert [(one["id"], one["A name"], one["more"]) for one in rows] == [(7, "x", 3)]
    assert opened.table(f"{name}.public.keyless").num_rows == 2
