"""Confirmations to PostgreSQL: never before Kafka has the rows, always when nothing is left to write."""

from __future__ import annotations

import threading

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.proxy import Proxy
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually
from tests.support.wire import Heard, WalsenderTap


def confirmed_lsn(server: PostgresServer, slot: str) -> str:
    """Return the slot's confirmed position."""
    return str(
        server.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", slot
        )[0][0]
    )


def test_a_received_transaction_is_not_confirmed_by_keepalives_while_a_larger_one_comes(
    pg_server: PostgresServers, kafka_door: Proxy, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F71: C is received and not in Kafka; D, begun before it, is arriving, with keepalives beyond C; then a kill."""
    server = pg_server.fresh(18)
    server.start()
    try:
        # 9 s when the stream starts: cdcd reports every 3 s. Then 5 s: the walsender asks after 2.5 s, also during D.
        _set_timeout(server, "9s")
        server.create_database("f71")
        server.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname="f71")
        sink = {"bootstrap_servers": f"127.0.0.1:{kafka_door.port}"}
        with new_daemon(server, "f71", sink=sink) as daemon, WalsenderTap(server.port) as tap:
            direct = daemon.config["source"]["dsn"]
            through = direct.replace(f":{server.port}/", f":{tap.port}/")
            daemon.config["source"]["dsn"] = f"{through}?sslmode=disable&gssencmode=disable"
            topic = f"{daemon.name}.public.t"
            daemon.start().wait_state("streaming")
            server.execute("INSERT INTO t VALUES (1, 'a')", dbname="f71")
            reader.wait([topic], lambda events: len(events) == 1)
            _set_timeout(server, "5s")
            large = psycopg2.connect(server.dsn("f71"))
            with large.cursor() as cursor:
                cursor.execute("INSERT INTO t SELECT g, repeat('d', 500) FROM generate_series(1000, 12999) g")
            kafka_door.hold()
            before = len(tap.heard)
            server.execute("INSERT INTO t VALUES (2, 'c')", dbname="f71")
            received = eventually(lambda: _lsns(tap.heard[before:], "commit"), "C is received")
            tap.bytes_per_second = 600_000
            large.commit()
            c_end_lsn = received[0]
            eventually(
                lambda: any(lsn >= c_end_lsn for lsn in _keepalives_in_open(tap.heard[before:])),
                "a keepalive beyond C while D is coming",
                60,
            )
            daemon.kill()
            kafka_door.heal()
            heard = tap.heard[before:]
            assert len(_lsns(heard, "commit")) == 1, "D was received completely: the kill must interrupt it"
            assert _lsns(heard, "flush"), "cdcd reported nothing while it could not write (F14)"
            assert max(_lsns(heard, "flush")) < c_end_lsn, "C was confirmed although Kafka does not have it"
            large.close()
            daemon.config["source"]["dsn"] = direct
            daemon.start()
            events = reader.wait([topic], lambda events: len(events) >= 12_002, 120)
            assert len(events) == 12_002
            assert_each_once(events)
    finally:
        server.stop("immediate")


def _set_timeout(server: PostgresServer, timeout: str) -> None:
    server.execute(f"ALTER SYSTEM SET wal_sender_timeout = '{timeout}'")
    server.execute("SELECT pg_reload_conf()")
    eventually(
        lambda: server.execute("SELECT current_setting('wal_sender_timeout')") == [(timeout,)],
        f"wal_sender_timeout is {timeout}",
    )


def _lsns(heard: list[Heard], what: str) -> list[int]:
    return [one.lsn for one in heard if one.what == what]


def _keepalives_in_open(heard: list[Heard]) -> list[int]:
    """Return the WAL ends of the keepalives inside the last begun, unfinished transaction."""
    begins = [index for index, one in enumerate(heard) if one.what == "begin"]
    last = heard[begins[-1] :] if len(begins) == 2 else []
    return [] if _lsns(last, "commit") else _lsns(last, "keepalive")


@pytest.mark.nightly  # fault 34 has two databases
def test_an_idle_slot_follows_what_other_databases_write(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F11: WAL of another database is confirmed although it has no published rows."""
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        postgres.execute("CREATE TABLE IF NOT EXISTS other (v text)")
        postgres.execute("INSERT INTO other SELECT repeat('z', 1000) FROM generate_series(1, 20000)")
        await_confirmed(postgres, daemon, 90)


def test_a_fast_shutdown_ends_at_once_while_idle_and_cdcd_comes_back(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F13: the walsender waits for the confirmation of everything it has sent; F18: cdcd acquires the slot again."""
    server = pg_server.fresh(17)
    server.start()
    try:
        server.create_database("f13")
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname="f13")
        with new_daemon(server, "f13") as daemon:
            topic = f"{daemon.name}.public.t"
            daemon.start().wait_state("streaming")
            server.execute("INSERT INTO t VALUES (1)", dbname="f13")
            reader.wait([topic], lambda events: len(events) == 1)
            stopping = threading.Thread(target=server.stop, args=("fast",))
            stopping.start()
            stopping.join(
                10
            )  # a client that confirms only commit ends delays the shutdown for wal_sender_timeout, 60 s
            assert not stopping.is_alive(), "pg_ctl stop -m fast waits for cdcd"
            daemon.wait_state("backoff")
            server.start()
            daemon.wait_state("streaming")
            server.execute("INSERT INTO t VALUES (2)", dbname="f13")
            events = reader.wait([topic], lambda events: len(events) >= 2)
            assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
            assert_each_once(events)
    finally:
        server.stop("immediate")


def test_a_stop_leaves_the_slot_free_and_everything_confirmed(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F69: after SIGTERM under load the slot is inactive, and exactly the records in Kafka are confirmed."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        for start in range(0, 20000, 1000):
            postgres.execute(
                "INSERT INTO t SELECT g, repeat('p', 300) FROM generate_series(%s::int, %s) g",
                start,
                start + 999,
                dbname=database,
            )
        assert daemon.stop() == 0
        active = postgres.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", daemon.slot)
        assert active == [(False,)]
        daemon.start()
        events = reader.wait([topic], lambda events: len(events) >= 20000)
        assert len(events) == 20000
        assert_each_once(events)
