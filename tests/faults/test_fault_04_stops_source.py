"""Fault 4: SIGTERM while cdcd waits for PostgreSQL: status 0 in time, the slot free at once, each row once."""

from __future__ import annotations

import contextlib
import threading

import psycopg2
import psycopg2.extras
import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.keys import assert_each_key_once
from tests.support.proxy import Proxy, Way
from tests.support.reader import Reader, assert_each_once
from tests.support.waiting import eventually

TABLE = "CREATE TABLE t (id int PRIMARY KEY, pad text)"
ROWS = "INSERT INTO t SELECT g, repeat('p', 100) FROM generate_series(%s::int, %s) g"
IN_TIME_S = 20
"""The daemon's shutdown_timeout_ms in these tests."""


def slots(server: PostgresServer, daemon: Daemon) -> list[tuple[object, ...]]:
    """Return whether the slot is active, as PostgreSQL reports it; empty without a slot."""
    return server.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", daemon.slot)


def metric(daemon: Daemon, name: str) -> float:
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    return 0.0


def through(daemon: Daemon, server: PostgresServer, proxy: Proxy) -> None:
    """Connect the daemon to its server through the proxy."""
    source = daemon.config["source"]
    source["dsn"] = source["dsn"].replace(f":{server.port}/", f":{proxy.port}/")


def assert_rows(reader: Reader, daemon: Daemon, rows: int) -> None:
    events = reader.read(f"{daemon.name}.public.t")
    assert_each_once(events)
    assert sorted(event.value["after"]["id"] for event in events) == list(range(1, rows + 1))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "rows", [60_000, pytest.param(10_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_in_an_open_transaction_that_is_streamed(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker, rows: int
) -> None:
    """The received part is discarded (F27); after a stop during its replay, all of its rows are there, or none."""
    postgres.execute(TABLE, dbname=database)
    inserted = 'cdcd_events_total{op="insert",table="public.t"}'
    with (
        new_daemon(postgres, database, buffer={"memory": "8MiB"}) as daemon,
        contextlib.closing(psycopg2.connect(postgres.dsn(database))) as writing,
    ):
        daemon.config["source"]["dsn"] += "?options=-c%20logical_decoding_work_mem%3D64kB"
        daemon.start().wait_state("streaming")
        with writing.cursor() as cursor:
            cursor.execute(ROWS, (1, rows // 2))
        eventually(
            lambda: metric(daemon, "cdcd_open_transactions") > 0, "a part of the transaction is received", 60
        )
        assert daemon.stop(IN_TIME_S) == 0
        assert slots(postgres, daemon) == [(False,)]

        daemon.start().wait_state("streaming")
        with writing.cursor() as cursor:
            cursor.execute(ROWS, (rows // 2 + 1, rows))
        writing.commit()
        eventually(lambda: metric(daemon, inserted) > 0, "the replay has started", 60 + rows / 20_000)
        assert daemon.stop(IN_TIME_S) == 0
        assert slots(postgres, daemon) == [(False,)]

        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon, 60 + rows / 5_000)
        assert daemon.stop(IN_TIME_S) == 0
        assert_each_key_once(kafka.bootstrap, f"{daemon.name}.public.t", rows)


@pytest.mark.nightly
def test_while_the_server_says_nothing(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The stream is in a black hole: the server cannot notice that the slot is free until the link is cut."""
    postgres.execute(TABLE, dbname=database)
    with Proxy(postgres.port) as proxy, new_daemon(postgres, database) as daemon:
        through(daemon, postgres, proxy)
        daemon.start().wait_state("streaming")
        postgres.execute(ROWS, 1, 100, dbname=database)
        await_confirmed(postgres, daemon)
        proxy.lose()
        postgres.execute(ROWS, 101, 200, dbname=database)
        assert daemon.stop(IN_TIME_S) == 0
        proxy.heal()
        eventually(lambda: slots(postgres, daemon) == [(False,)], "the slot is free")
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop(IN_TIME_S) == 0
        assert_rows(reader, daemon, 200)


@pytest.mark.nightly
def test_while_a_snapshot_waits_for_a_server_that_says_nothing(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The thread that reads the COPY does not delay the stop."""
    postgres.execute(TABLE, dbname=database)
    postgres.execute(ROWS, 1, 30_000, dbname=database)
    with Proxy(postgres.port) as proxy, new_daemon(postgres, database) as daemon:
        through(daemon, postgres, proxy)
        daemon.start().wait_state("starting", "snapshot")
        before = proxy.passed_bytes["down"]
        eventually(
            lambda: proxy.passed_bytes["down"] > before + 500_000, "rows are being copied", pause_s=0.01
        )
        proxy.hold()
        daemon.wait_state("snapshot")
        assert daemon.stop(IN_TIME_S) == 0
        proxy.cut()
        proxy.heal()
        eventually(lambda: (True,) not in slots(postgres, daemon), "the slot is free or dropped")
        daemon.start().wait_state("streaming")
        assert daemon.stop(IN_TIME_S) == 0
        events = [event for event in reader.read(f"{daemon.name}.public.t") if event.op == "r"]
        assert {event.value["after"]["id"] for event in events} == set(range(1, 30_001))


def test_while_a_connection_is_not_answered(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """SIGTERM before the first connection is established ends the daemon."""
    with Proxy(postgres.port) as proxy, new_daemon(postgres, database) as daemon:
        through(daemon, postgres, proxy)
        proxy.lose()
        daemon.start()
        eventually(lambda: proxy.accepted >= 2, "the session and the monitor have connected")
        assert daemon.stop(IN_TIME_S) == 0
        assert slots(postgres, daemon) == []


@pytest.mark.nightly
def test_while_the_start_of_the_stream_is_not_answered(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The server does not answer START_REPLICATION: the stop does not wait for the daemon's own timeout."""
    postgres.execute(TABLE, dbname=database)
    asked = threading.Event()

    def is_start(direction: Way, data: bytes) -> bool:
        if direction == "up" and b"START_REPLICATION" in data:
            asked.set()
        return asked.is_set()

    with Proxy(postgres.port) as proxy, new_daemon(postgres, database) as daemon:
        through(daemon, postgres, proxy)
        proxy.lose_when(is_start)
        daemon.start()
        eventually(asked.is_set, "the daemon has sent START_REPLICATION")
        assert daemon.stop(IN_TIME_S) == 0
        proxy.lose_when(None)
        proxy.heal()
        daemon.start().wait_state("streaming")
        postgres.execute(ROWS, 1, 10, dbname=database)
        await_confirmed(postgres, daemon)
        assert daemon.stop(IN_TIME_S) == 0
        assert_rows(reader, daemon, 10)


@pytest.mark.nightly
def test_while_the_slots_creation_waits_for_open_transactions(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F38: the walsender does not notice that its client has gone; cdcd cancels its command."""
    postgres.execute(TABLE, dbname=database)
    with (
        new_daemon(postgres, database) as daemon,
        contextlib.closing(psycopg2.connect(postgres.dsn(database))) as writing,
    ):
        with writing.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1, 'x')")
        daemon.start()
        eventually(lambda: slots(postgres, daemon) == [(True,)], "the slot is being created", pause_s=0.01)
        assert daemon.status()["state"] == "snapshot"
        assert daemon.stop(IN_TIME_S) == 0
        assert slots(postgres, daemon) == [], "the slot is gone, although the transaction is still open"
        writing.commit()
        daemon.start().wait_state("streaming")
        assert daemon.stop(IN_TIME_S) == 0
        assert_rows(reader, daemon, 1)


def test_while_another_holds_the_slot_and_while_halted(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    postgres.execute(TABLE, dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.stop(IN_TIME_S) == 0
        postgres.execute(ROWS, 1, 10, dbname=database)
        with walsender(postgres, database, daemon):
            daemon.start().wait_state("waiting_slot")
            assert daemon.stop(IN_TIME_S) == 0
            assert slots(postgres, daemon) == [(True,)], "the other client still holds the slot"
        eventually(lambda: slots(postgres, daemon) == [(False,)], "the other client has released the slot")
        postgres.execute(f"ALTER PUBLICATION cdcd_{daemon.name} RENAME TO away", dbname=database)
        daemon.start().wait_state("halted")
        assert daemon.stop(IN_TIME_S) == 0
        assert slots(postgres, daemon) == [(False,)]
        postgres.execute(f"ALTER PUBLICATION away RENAME TO cdcd_{daemon.name}", dbname=database)
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop(IN_TIME_S) == 0
        assert_rows(reader, daemon, 10)


@contextlib.contextmanager
def walsender(server: PostgresServer, database: str, daemon: Daemon):  # type: ignore[no-untyped-def]
    """Another client that holds the slot and confirms nothing."""
    connection = psycopg2.connect(
        server.dsn(database), connection_factory=psycopg2.extras.LogicalReplicationConnection
    )
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.start_replication(
            daemon.slot,
            options={"proto_version": "1", "publication_names": f"cdcd_{daemon.name}"},
            decode=False,
        )
        yield
