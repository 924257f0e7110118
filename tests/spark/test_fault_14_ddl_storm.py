"""A storm of DDL: tables change under load, cdcd is killed in the middle, and the mirror follows every change.

The judge is PostgreSQL: at the end each table's mirror is loaded back and compared with the table as text.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg2
import pytest
from pyspark.sql import SparkSession

from cdcd.demo.compare import report
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.verify import verify as verify_tables
from cdcd.spark.reading.mirror import read_mirror
from tests.spark.running_mirrors import (
    DEADLINE_S,
    AnyMirror,
    MirrorInSession,
    MirrorProcess,
    await_all,
    compared,
)
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.stack import (
    PostgresServers,
    confirmed_position,
    drop_database,
    new_database_name,
    run,
    wal_position,
)
from tests.support.storm import Pace, Storm, Writer
from tests.support.storm_kinds import KINDS
from tests.support.storm_tables import Tables
from tests.support.waiting import eventually

WRITERS = 2
WRITES_PER_CHANGE = 20
TURNS_PER_BATCH = 5


@pytest.fixture(params=[18, pytest.param(16, marks=pytest.mark.long)])
def source(pg_server: PostgresServers, request: pytest.FixtureRequest) -> PostgresServer:
    return pg_server(request.param)


@pytest.fixture
def database_there(source: PostgresServer) -> Iterator[str]:
    name = new_database_name()
    source.create_database(name)
    yield name
    drop_database(source, name)


@pytest.mark.timeout(900)  # three rounds take minutes on a busy machine
@pytest.mark.parametrize("rounds", [1, nightly(3)])
def test_a_mirror_follows_a_storm_of_ddl(
    rounds: int,
    request: pytest.FixtureRequest,
    source: PostgresServer,
    database_there: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """One round has the mirror in the tests' Spark, several have it as the demo does: as a process."""
    dsn = source.dsn(database_there)
    tables = Tables(dsn, rows=100)
    name = f"storm{os.getpid()}v{source.major}r{rounds}"  # a name of its own: the broker is shared
    source.execute(f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES", dbname=database_there)
    daemon = Daemon(tmp_path / "cdcd", name, dsn=dsn, bootstrap=kafka.bootstrap, registry_url=registry.url)
    with daemon:
        daemon.start().wait_state("streaming")
        servers = (tmp_path, daemon, kafka, registry)
        mirror: AnyMirror = (
            MirrorInSession(request.getfixturevalue("spark"), *servers)
            if rounds == 1
            else MirrorProcess(*servers)
        )
        try:
            storm = run_storm(tables, daemon, mirror, rounds, seed=f"storm {source.major}")
            quiesce(source, tables, daemon, mirror, kafka)
            compare(dsn, tables, mirror)
        finally:
            mirror.stop()
        if rounds > 1:
            verify(tmp_path / "mirror", name, kafka, registry)
        assert daemon.stop() == 0
    assert all(storm.done[kind] >= rounds for kind in KINDS), storm.done
    assert daemon.events("incompatible_schema") == []


def verify(target: Path, prefix: str, kafka: KafkaBroker, registry: SchemaRegistry) -> None:
    """Compare the mirror with the topics by the command, which has to come to the same result as PostgreSQL."""
    command = [sys.executable, "-m", "cdcd.spark", "verify", "--output", "json", "--target", str(target)]
    command += ["--brokers", kafka.bootstrap, "--prefix", prefix, "--registry", registry.url]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout, done.stderr[-4000:]
    found = json.loads(done.stdout)["tables"]
    print("verified:", [(one["topic"], one["status"], one["reason"]) for one in found])
    assert any(one["status"] == "equal" for one in found)
    for one in found:
        assert one["status"] == "equal" or one["reason"].startswith("the table has no key"), one


def is_going_on(daemon: Daemon, mirror: AnyMirror) -> bool:
    """Return True; fail the test with the reason when the daemon has halted or the mirror has ended."""
    page = daemon.status()
    assert page.get("state") != "halted", page
    return mirror.check()


def run_storm(tables: Tables, daemon: Daemon, mirror: AnyMirror, rounds: int, seed: str) -> Storm:
    """Run writers and DDL in parallel, with a kill half-way; the mirror keeps up, so changes lie in many batches."""
    pace = Pace(WRITES_PER_CHANGE)
    total = rounds * len(KINDS)
    seen: list[int] = []

    def between(turn: int) -> None:
        if "killed" not in storm.done and storm.turns_left <= total // 2:
            daemon.kill()
            storm.done["killed"] += 1
            daemon.start()
        if turn % TURNS_PER_BATCH == 0:
            last = seen[-1] if seen else 0
            eventually(
                lambda: is_going_on(daemon, mirror) and mirror.tables.position() > last, "a batch", DEADLINE_S
            )
            seen.append(mirror.tables.position())

    storm = Storm(tables, pace, seed, rounds, between)
    writers = [Writer(tables, pace, f"{seed}, writer {number}") for number in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS + 1) as pool:
        running = [pool.submit(session.run) for session in (*writers, storm)]
        for future in running:
            future.result()
    print(seed, "batches", seen, dict(storm.done), [dict(writer.done) for writer in writers])
    assert storm.done["killed"] == 1
    assert sum(writer.done["committed"] for writer in writers) > total
    return storm


def quiesce(
    source: PostgresServer, tables: Tables, daemon: Daemon, mirror: AnyMirror, kafka: KafkaBroker
) -> None:
    """Write a last row to each table, because DDL without a later row is not visible; then wait for cdcd and the
    mirror.
    """
    with closing(psycopg2.connect(tables.dsn)) as connection, connection, connection.cursor() as cursor:
        for table in tables.leaves():
            tables.insert(random.Random(table), cursor, table)
    end_lsn = wal_position(source)
    eventually(
        lambda: is_going_on(daemon, mirror) and (confirmed_position(source, daemon.slot) or 0) >= end_lsn,
        "all changes are confirmed",
        DEADLINE_S,
    )
    await_all(mirror, kafka.bootstrap)


def compare(dsn: str, tables: Tables, mirror: AnyMirror) -> None:
    """Compare each table, and each partition, which has a topic of its own, with its mirror."""
    outcomes = compared(dsn, tables.leaves(), partial(mirror.tables.read, "public"))
    print("\n".join(f"{one.table}: {one.source_rows} rows" for one in outcomes))
    assert report(outcomes) == []
    assert sum(outcome.mirror_rows > 0 for outcome in outcomes) == len(tables.leaves())


HIDDEN = {
    "renamed": ("ALTER TABLE renamed RENAME a TO c", "ALTER TABLE renamed RENAME b TO a"),
    "again": ("ALTER TABLE again DROP a, ADD a text",),
    "made": ("DROP TABLE made", "CREATE TABLE made (id int PRIMARY KEY, a text, b text)"),
}
"""By table, DDL after which PostgreSQL sends no row again."""


def reach(mirror: AnyMirror, daemon: Daemon, source: PostgresServer, kafka: KafkaBroker) -> None:
    await_confirmed(source, daemon, 120)
    await_all(mirror, kafka.bootstrap)


def make_hidden(execute: Callable[..., None]) -> None:
    for table in HIDDEN:
        execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a text, b text)",
            f"ALTER TABLE {table} ALTER b SET STORAGE EXTERNAL",
            f"INSERT INTO {table} SELECT n, 'a', repeat('b', 9000) FROM generate_series(1, 5) n",
        )


def test_a_mirror_follows_columns_and_tables_of_which_no_row_is_sent_again(
    spark: SparkSession,
    source: PostgresServer,
    database_there: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """A renamed column has its values, also one out of line; a column and a table that were made again have none."""
    name, dsn = f"hidden{os.getpid()}v{source.major}", source.dsn(database_there)
    execute = partial(run, source, database_there)
    execute(f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES")
    daemon = Daemon(tmp_path / "cdcd", name, dsn=dsn, bootstrap=kafka.bootstrap, registry_url=registry.url)
    with daemon:
        daemon.start().wait_state("streaming")
        make_hidden(execute)
        await_confirmed(source, daemon, 120)
        mirror = MirrorInSession(spark, tmp_path, daemon, kafka, registry)
        try:
            reach(mirror, daemon, source, kafka)
            for table, ddl in HIDDEN.items():
                execute(*ddl, f"INSERT INTO {table} VALUES (6, 'new', 'new')")
            execute("UPDATE renamed SET c = 'changed' WHERE id = 1", "UPDATE again SET a = 'x' WHERE id = 2")
            reach(mirror, daemon, source, kafka)
            eventually(
                lambda: mirror.check() and not read_mirror(mirror.target).loading,
                "the table that was made again is copied",
                120,
            )
            found = compared(dsn, list(HIDDEN), partial(mirror.tables.read, "public"))
        finally:
            mirror.stop()
        assert report(found) == []
        assert [one.mirror_rows for one in found] == [6, 6, 1]
        connection = Connection(kafka.bootstrap, name, registry=RegistryAccess(registry.url))
        verified = list(verify_tables(spark, connection, str(tmp_path / "mirror")))
        assert [(one.status, one.reason) for one in verified] == [("equal", "")] * len(HIDDEN)
        assert daemon.stop() == 0
