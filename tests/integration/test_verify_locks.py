"""`cdcd verify` and its connections: no session waits while it waits for Kafka; lost ones; the oldest server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.cli.published_topics import command_settings
from cdcd.config import load_config
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.sink.names import topic_name
from cdcd.verify import topic_log, verification
from cdcd.verify.outcome import EQUAL, TableOutcome
from cdcd.verify.records import ALL_KEYS
from cdcd.verify.schemas import RegistryIds
from cdcd.verify.source import Source
from cdcd.verify.verification import Options, Verification
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.stack import POSTGRES_MAJORS, PostgresServers
from tests.verify.running import verify

ROWS = 50


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    postgres.execute(f"INSERT INTO t SELECT n, 'x' FROM generate_series(1, {ROWS}) n", dbname=database)
    daemon = new_daemon(postgres, database).start()
    daemon.wait_state("streaming")
    return daemon


@contextlib.contextmanager
def comparing(daemon: Daemon, folder: Path) -> Iterator[Callable[[], TableOutcome]]:
    """Return what compares the daemon's table within this process."""
    config = load_config(daemon.config_path, os.environ)
    schemas = RegistryIds(config.registry_settings())
    source = Source(config.source_settings(), config.format.policies())
    with contextlib.closing(schemas), contextlib.closing(source):
        settings = command_settings(config, timeout_s=30)
        compares = Verification(source, settings, schemas.schema, Options(folder, ALL_KEYS), lambda *_: None)
        (table,) = source.tables()
        topic = topic_name(config.sink.topics.template, name=config.name, schema="public", table="t")
        yield lambda: compares.compare(table, topic)


@pytest.mark.parametrize(
    "step", [*map(nightly, ("topics_with_records", "cleanup_policies", "bounds_of")), "peek", "sums"]
)
def test_an_alter_table_does_not_wait_for_kafka_or_for_the_fold(
    daemon: Daemon,
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Each time that the step is taken it lasts until an ALTER TABLE of another session has ended."""
    where: Any = {"bounds_of": topic_log, "sums": verification.Fold}.get(step, verification)
    taken = getattr(where, step)
    altered = []

    def step_with_alter_table(*given: Any) -> Any:
        statement = f"ALTER TABLE t ALTER note SET DEFAULT '{len(altered)}'"
        postgres.execute(f"SET lock_timeout = '60s'; {statement}", dbname=database)
        altered.append(statement)
        return taken(*given)

    monkeypatch.setattr(where, step, step_with_alter_table)
    with comparing(daemon, tmp_path) as compare:
        found = compare()
    assert (found.state, found.rows_in_source, found.reason) == (EQUAL, ROWS, "")
    assert altered


@pytest.mark.parametrize("step", ["_lock", "await_confirmed"])
def test_a_lost_connection_is_made_again(
    daemon: Daemon,
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """As after a restart of the server, between two tables or while one is compared."""
    taken: Any = getattr(Source, step)
    ended: list[Any] = []

    def step_without_connections(source: Any, *given: Any) -> Any:
        if not ended:
            pids = [one.info.backend_pid for one in (source._connection, source._other)]
            ended.append(postgres.execute("SELECT pg_terminate_backend(p) FROM unnest(%s::int[]) p", pids))
        return taken(source, *given)

    monkeypatch.setattr(Source, step, step_without_connections)
    with comparing(daemon, tmp_path) as compare:
        found = compare()
    assert (found.state, found.rows_in_source, found.reason) == (EQUAL, ROWS, "")
    assert ended


def test_the_oldest_server(pg_server: PostgresServers, new_daemon: NewDaemon) -> None:
    """It has not all functions of the later ones."""
    server = pg_server(POSTGRES_MAJORS[0])
    database = "verified_on_the_oldest"
    server.create_database(database)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    server.execute(f"INSERT INTO t SELECT n, 'x' FROM generate_series(1, {ROWS}) n", dbname=database)
    daemon = new_daemon(server, database).start()
    daemon.wait_state("streaming")
    server.execute("UPDATE t SET note = 'y' WHERE id % 2 = 0", dbname=database)
    found = verify(daemon)
    assert (found.status, found.one()["rows_in_topics"]) == (0, ROWS), found


@pytest.mark.parametrize(
    "statement",
    [
        "REINDEX INDEX leaf_pkey",  # it has a lock of the table, behind which all writers wait
        nightly("ALTER INDEX leaf_pkey SET TABLESPACE pg_default"),
        "ALTER TABLE half ALTER note SET DEFAULT 'x'",
    ],
)
def test_nobody_waits_for_a_lock_of_an_index_or_between_root_and_leaf(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
) -> None:
    """A SELECT locks the table's indexes too, and LOCK TABLE all partitions."""
    for made in (
        "CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE half PARTITION OF t FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF half DEFAULT",
        f"INSERT INTO t SELECT n, 'x' FROM generate_series(1, {ROWS}) n",
    ):
        postgres.execute(made, dbname=database)
    daemon = new_daemon(postgres, database)
    rooted = f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root)"
    postgres.execute(rooted, dbname=database)
    daemon.start().wait_state("streaming")
    taken: Any = verification.Fold.sums
    done = []

    def sums_with_lock(*given: Any) -> Any:
        postgres.execute(f"SET lock_timeout = '60s'; {statement}", dbname=database)
        done.append(statement)
        return taken(*given)

    monkeypatch.setattr(verification.Fold, "sums", sums_with_lock)
    with comparing(daemon, tmp_path) as compare:
        found = compare()
    assert (found.state, found.rows_in_source, found.reason) == (EQUAL, ROWS, "")
    assert done
