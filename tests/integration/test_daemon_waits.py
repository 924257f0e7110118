"""The waits of a daemon and their blockers: /status, log and metrics, compared with the blocking
session's own pid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.waits import KINDS
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.proxy import Proxy
from tests.support.quick import QUICK
from tests.support.source import source_database
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually

TABLES = ("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")


@contextlib.contextmanager
def session(server: PostgresServer, database: str, *statements: str, **connect: Any) -> Iterator[Any]:
    """Open another session with a transaction in which these statements were run."""
    with contextlib.closing(psycopg2.connect(server.dsn(database), **connect)) as connection:
        for statement in statements:
            connection.cursor().execute(statement)
        yield connection


def own_pid(connection: Any) -> int:
    """Return the session's pid, according to the session itself."""
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    (pid,) = cursor.fetchone()
    return int(pid)


def waits_of(daemon: Daemon, kind: str) -> list[dict[str, Any]]:
    """Return the waits of this kind in /status."""
    return [wait for wait in daemon.status().get("waiting_for", []) if wait["kind"] == kind]


def named(daemon: Daemon, kind: str, pid: int) -> dict[str, Any]:
    """Wait until /status and the metrics name this pid for a wait of this kind; return the blocker."""

    def found() -> dict[str, Any] | None:
        blockers = [one for wait in waits_of(daemon, kind) for one in wait["blockers"]]
        return next((one for one in blockers if one.get("pid") == pid), None)

    try:
        blocker = eventually(found, f"{kind} by {pid}", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {daemon.status()}\n{daemon.log()[-3000:]}") from None
    assert blocker is not None
    for wait in waits_of(daemon, kind):
        assert wait["ends_when"] == KINDS[kind].ends_when  # type: ignore[index]
        assert wait["seconds"] >= 3
    assert_in_metrics(daemon, kind, pid)
    eventually(
        lambda: any(f"pid {pid} " in line["held_by"] for line in daemon.events("waiting")),
        "the blocker is logged",
        90,
    )
    return blocker


def assert_in_metrics(daemon: Daemon, kind: str, pid: int) -> None:
    """Check the duration and the blocker in the metrics."""
    lines = daemon.get("/metrics")[1].splitlines()
    (seconds,) = (line for line in lines if line.startswith(f'cdcd_wait_seconds{{kind="{kind}"}}'))
    assert float(seconds.split()[-1]) >= 3
    start = 'cdcd_wait_blocker_info{application="'
    infos = [
        line
        for line in lines
        if line.startswith(start) and f'pid="{pid}"' in line and f'kind="{kind}"' in line
    ]
    assert len(infos) == 1, infos


def is_logged(daemon: Daemon, kind: str) -> None:
    """Wait for the wait's log line, which follows /status by up to a turn; the end is logged only after it."""
    eventually(
        lambda: [line for line in daemon.events("waiting") if line["kind"] == kind], "the wait is logged"
    )


def over(daemon: Daemon, kind: str) -> None:
    """Check that the wait has ended in /status, metrics and log."""
    assert waits_of(daemon, kind) == []
    assert f'cdcd_wait_seconds{{kind="{kind}"}} 0.0' in daemon.get("/metrics")[1]
    assert "cdcd_wait_blocker_info{" not in daemon.get("/metrics")[1]
    ended = lambda: [line for line in daemon.events("wait_ended") if line["kind"] == kind]  # noqa: E731
    eventually(ended, "the wait's end is logged")


def test_the_creation_of_the_slot_names_who_it_waits_for_in_another_database(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F38: a daemon stopped meanwhile leaves no slot; started again, it creates the slot after the
    transaction's end.
    """
    daemon = new_daemon(postgres, database)
    with source_database(postgres, TABLES[0]) as elsewhere:
        writing = session(postgres, elsewhere.slot, "INSERT INTO a VALUES (1)", application_name="nightly")
        with writing as blocking:
            pid = own_pid(blocking)
            daemon.start()
            blocker = named(daemon, "slot_creation", pid)
            assert (blocker["database"], blocker["application"]) == (elsewhere.slot, "nightly")
            assert blocker["user"] == postgres.superuser
            assert blocker["since"].endswith("Z")
            assert daemon.status()["state"] == "snapshot"
            assert daemon.stop() == 0
            slots = "SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s"
            assert postgres.execute(slots, daemon.slot) == []
            daemon.start()
            named(daemon, "slot_creation", pid)
            blocking.commit()
            daemon.wait_state("streaming")
    over(daemon, "slot_creation")


def long_table(name: str) -> list[str]:
    """Return the statements that make a table whose copy takes more than cdcd's buffer."""
    return [
        f"CREATE TABLE {name} (id int PRIMARY KEY, note text)",
        f"INSERT INTO {name} SELECT g, repeat('x', 200) FROM generate_series(1, 100000) g",
    ]


@pytest.mark.nightly  # test_snapshot_bad_input names who locks a table
@pytest.mark.parametrize(("major", "workers"), [(14, 1), (14, 2), (18, 1), (18, 2)])
def test_a_table_locked_before_its_copy_is_waited_for_with_the_same_slot(
    pg_server: PostgresServers, major: int, workers: int, new_daemon: NewDaemon, kafka_door: Proxy
) -> None:
    """The link to Kafka is paused while each worker copies a table, and the table after these is locked meanwhile."""
    server = pg_server(major)
    long = [statement for number in range(workers) for statement in long_table(f"a{number}")]
    with source_database(server, *long, TABLES[1], "INSERT INTO b VALUES (1)") as settings:
        daemon = new_daemon(server, settings.slot, buffer={"memory": "16 MiB"}, snapshot={"workers": workers})
        daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
        before_bytes, met = kafka_door.passed_bytes["up"], kafka_door.met
        kafka_door.hold_when(lambda _way, _data: kafka_door.passed_bytes["up"] - before_bytes >= 1_500_000)
        daemon.start()
        eventually(lambda: kafka_door.met > met, "the link is held")
        with session(server, settings.slot, "LOCK TABLE b") as locking:
            kafka_door.heal()
            blocker = named(daemon, "lock", own_pid(locking))
            assert blocker["database"] == settings.slot
            waits_for = {wait["waits_for"] for wait in waits_of(daemon, "lock")}
            assert "a lock in PostgreSQL: AccessShareLock on public.b" in waits_for
            locking.rollback()
        daemon.wait_state("streaming")
        over(daemon, "lock")
        assert len(daemon.events("slot_created")) == 1
        assert daemon.events("retrying") == []
        await_confirmed(server, daemon)
        assert daemon.status()["rows_written"] == workers * 100_000 + 1
        assert daemon.stop() == 0


@pytest.mark.nightly
def test_while_a_published_table_is_locked_the_publications_are_not_compared_and_it_says_so(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """The stream continues meanwhile."""
    for table in TABLES:
        postgres.execute(table, dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.entry = QUICK
    daemon.start().wait_state("streaming")
    with session(postgres, database, "LOCK TABLE b") as locking:
        named(daemon, "lock", own_pid(locking))
        postgres.execute("INSERT INTO a VALUES (1)", dbname=database)
        await_confirmed(postgres, daemon)
        locking.rollback()
    eventually(lambda: not waits_of(daemon, "lock"), "the wait has ended")
    over(daemon, "lock")


@pytest.mark.nightly
def test_who_holds_the_slot_is_named(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> None:
    """Another client streams from the slot (F18)."""
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    dsn = postgres.dsn(database)
    holding = psycopg2.connect(
        dsn, connection_factory=LogicalReplicationConnection, application_name="pg_recvlogical"
    )
    with contextlib.closing(holding):
        publication = {"proto_version": "1", "publication_names": f"cdcd_{daemon.name}"}
        holding.cursor().start_replication(slot_name=daemon.slot, decode=False, options=publication)
        daemon.start().wait_state("waiting_slot")
        blocker = named(daemon, "slot_held", holding.info.backend_pid)
        assert (blocker["application"], blocker["database"]) == ("pg_recvlogical", database)
        since = {wait["since"] for wait in waits_of(daemon, "slot_held")}
        eventually(lambda: len(daemon.events("retrying")) >= 4, "the daemon retries")
        assert {wait["since"] for wait in waits_of(daemon, "slot_held")} == since
    daemon.wait_state("streaming")
    over(daemon, "slot_held")


def blockers(daemon: Daemon, kind: str) -> list[str]:
    """Return the blockers of waits of this kind, and the relation of each."""
    found = [one for wait in waits_of(daemon, kind) for one in wait["blockers"]]
    return [f"{one['who']}: {one.get('doing', '')}" for one in found]


@pytest.mark.nightly
def test_a_kafka_that_says_nothing_is_named_and_so_is_the_back_pressure(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka_door: Proxy
) -> None:
    """A link that forwards nothing: first the commit waits, and then reading stops."""
    postgres.execute(
        "CREATE TABLE a (id int PRIMARY KEY, note text DEFAULT repeat('x', 1000))", dbname=database
    )
    daemon = new_daemon(postgres, database, buffer={"memory": "16 MiB"})
    daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
    daemon.start().wait_state("streaming")
    met = kafka_door.met
    kafka_door.hold_when(lambda _way, _data: True)
    for first in range(0, 40_000, 1000):  # many transactions, each of which is encoded as it arrives
        postgres.execute(f"INSERT INTO a SELECT generate_series({first}, {first + 999})", dbname=database)
    eventually(lambda: kafka_door.met > met, "the link is held")
    eventually(lambda: waits_of(daemon, "back_pressure"), "reading has stopped")
    eventually(lambda: waits_of(daemon, "kafka"), "the commit waits")
    silent = f"brokers 127.0.0.1:{kafka_door.port}: do not answer"
    eventually(lambda: any(silent in one for one in blockers(daemon, "kafka")), "the silent broker is named")
    is_logged(daemon, "kafka")
    kafka_door.heal()
    eventually(lambda: daemon.status().get("waiting_for") == [], "all waits have ended")
    await_confirmed(postgres, daemon)
    over(daemon, "kafka")


def test_a_registry_that_says_nothing_is_named(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, registry: SchemaRegistry
) -> None:
    """/status names the subject whose registration waits."""
    postgres.execute("CREATE TABLE a (id int PRIMARY KEY)", dbname=database)
    with Proxy(urlsplit(registry.url).port or 80) as door:
        daemon = new_daemon(postgres, database)
        daemon.config["registry"]["url"] = registry.url.replace(
            f":{urlsplit(registry.url).port}", f":{door.port}"
        )
        daemon.start().wait_state("streaming")
        door.hold_when(lambda _way, _data: True)
        postgres.execute("CREATE TABLE b (id int PRIMARY KEY)", dbname=database)
        postgres.execute("INSERT INTO b VALUES (1)", dbname=database)
        (wait,) = eventually(lambda: waits_of(daemon, "registry"), "the registration waits")
        assert f"subject {daemon.name}.public.b-" in wait["waits_for"]
        is_logged(daemon, "registry")
        door.heal()
        await_confirmed(postgres, daemon)
        over(daemon, "registry")


def test_a_standby_that_has_to_be_first_is_named_by_its_slot(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """F56: PostgreSQL sends no change that a slot of synchronized_standby_slots lacks; no standby is
    connected to it.
    """
    server = pg_server.fresh(18)
    server.start()
    try:
        server.create_database("shop")
        server.execute("CREATE TABLE a (id int PRIMARY KEY)", dbname="shop")
        daemon = new_daemon(server, "shop", source={"slot": {"failover": True}})
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        server.execute("SELECT pg_create_physical_replication_slot('standby_1', true)")
        server.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby_1'")
        server.execute("SELECT pg_reload_conf()")
        server.execute("INSERT INTO a VALUES (1)", dbname="shop")
        eventually(
            lambda: any("slot standby_1: no standby" in one for one in blockers(daemon, "standby")),
            "the standby slot is named",
        )
        is_logged(daemon, "standby")
        server.execute("ALTER SYSTEM RESET synchronized_standby_slots")
        server.execute("SELECT pg_reload_conf()")
        await_confirmed(server, daemon)
        eventually(lambda: not waits_of(daemon, "standby"), "the wait has ended")
        over(daemon, "standby")
        assert daemon.stop() == 0
    finally:
        server.stop("immediate")


@pytest.mark.nightly
def test_a_source_that_is_away_is_one_wait_however_often_it_is_tried(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    server = pg_server.fresh(17)
    server.start()
    try:
        server.create_database("shop")
        daemon = new_daemon(server, "shop")
        daemon.start().wait_state("streaming")
        server.stop()
        eventually(lambda: waits_of(daemon, "source"), "the source is waited for")
        since = {wait["since"] for wait in waits_of(daemon, "source")}
        eventually(lambda: len(daemon.events("retrying")) >= 4, "the daemon retries")
        is_logged(daemon, "source")
        assert {wait["since"] for wait in waits_of(daemon, "source")} == since
        server.start()
        daemon.wait_state("streaming")
        over(daemon, "source")
        assert daemon.stop() == 0
    finally:
        server.stop("immediate")
