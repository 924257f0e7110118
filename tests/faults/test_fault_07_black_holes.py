"""Fault 7: links to PostgreSQL that lose, delay or slow bytes, or are cut. Each row is there once (F16)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import CdcdError, SourceUnavailable
from cdcd.snapshot.table import SnapshotReader
from cdcd.snapshot.units import CopiedTable, CopyUnit
from cdcd.source.connection import connect_sql, fetch, translate
from cdcd.source.deadline import within
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.reader import Reader, assert_each_once
from tests.support.source import source_database
from tests.support.stack import run
from tests.support.waiting import eventually

TABLE = "CREATE TABLE t (id int PRIMARY KEY, pad text)"
ROWS = "INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(%s::int, %s) g"


def through(dsn: str, server: PostgresServer, proxy: Proxy) -> str:
    """Return the DSN with the proxy's port."""
    return dsn.replace(f":{server.port}/", f":{proxy.port}/")


# --- connections other than the stream ---


@pytest.mark.parametrize("ways", [("up",), ("down",), ("up", "down")])
def test_a_statement_without_an_answer_ends_at_its_limit(
    postgres: PostgresServer, ways: tuple[str, ...]
) -> None:
    """A proxy that acknowledges every byte prevents TCP's own timeouts."""
    with source_database(postgres) as settings, Proxy(postgres.port) as proxy:
        settings = replace(settings, dsn=through(settings.dsn, postgres, proxy))
        with contextlib.closing(connect_sql(settings)) as connection:
            proxy.lose(*ways)  # type: ignore[arg-type]
            with pytest.raises(SourceUnavailable, match=r"did not answer within 0\.3 s"):
                fetch(connection, "SELECT 1", limit_s=0.3)
            assert connection.closed


def test_a_limit_that_was_met_leaves_the_connection_alone(postgres: PostgresServer) -> None:
    with source_database(postgres) as settings, contextlib.closing(connect_sql(settings)) as connection:
        with within(connection, 0.05):
            assert fetch(connection, "SELECT 1") == [(1,)]
        assert fetch(connection, "SELECT pg_sleep(0.2)::text, 1")[0][1] == 1


def test_a_connection_that_nobody_answers_ends_at_its_limit(postgres: PostgresServer) -> None:
    with source_database(postgres) as settings, Proxy(postgres.port) as proxy:
        proxy.lose()
        dsn = through(settings.dsn, postgres, proxy)
        with pytest.raises(SourceUnavailable):
            connect_sql(replace(settings, dsn=dsn, connect_timeout_s=2))


def test_a_host_that_does_not_resolve_is_tried_again(postgres: PostgresServer) -> None:
    with source_database(postgres) as settings, pytest.raises(SourceUnavailable):
        connect_sql(replace(settings, dsn="postgresql://postgres@no-such-host.invalid/none"))


# --- the daemon behind the link ---


def streaming_through(
    new_daemon: NewDaemon, server: PostgresServer, database: str, proxy: Proxy, timeout_ms: int = 2000
) -> Daemon:
    """Return a daemon with all connections through the proxy, and a short wal_sender_timeout on both sides."""
    run(server, database, TABLE)
    daemon = new_daemon(server, database)
    dsn = through(daemon.config["source"]["dsn"], server, proxy)
    options = f"?options=-c%20wal_sender_timeout%3D{timeout_ms}&connect_timeout=2"
    daemon.config["source"]["dsn"] = dsn + options
    daemon.config["source"]["silence_timeout_ms"] = 2 * timeout_ms
    daemon.start().wait_state("streaming")
    return daemon


def hold(proxy: Proxy) -> None:
    proxy.hold()


def lose_up(proxy: Proxy) -> None:
    proxy.lose("up")


def lose_down(proxy: Proxy) -> None:
    proxy.lose("down")


def cut(proxy: Proxy) -> None:
    proxy.cut()


def refuse(proxy: Proxy) -> None:
    proxy.refuse()


@pytest.mark.parametrize("fault", [hold, nightly(lose_up), nightly(lose_down), nightly(cut), nightly(refuse)])
def test_a_daemon_behind_a_broken_link_goes_on_where_it_was(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    fault: Callable[[Proxy], None],
) -> None:
    with Proxy(postgres.port) as proxy:
        daemon = streaming_through(new_daemon, postgres, database, proxy)
        postgres.execute(ROWS, 1, 500, dbname=database)
        await_confirmed(postgres, daemon)
        fault(proxy)
        postgres.execute(ROWS, 501, 1000, dbname=database)
        if fault is not cut:
            daemon.wait_state("backoff", "waiting_slot")
        if fault is refuse:
            proxy.accept()
        proxy.heal()
        postgres.execute(ROWS, 1001, 1500, dbname=database)
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.t")
        assert_each_once(events)
        assert len(events) == 1500


@pytest.mark.nightly
def test_a_slow_and_a_flapping_link_only_take_longer(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with Proxy(postgres.port) as proxy:
        daemon = streaming_through(new_daemon, postgres, database, proxy, timeout_ms=10000)
        proxy.slow(delay_s=0.3, bytes_per_s=64_000)
        postgres.execute(ROWS, 1, 500, dbname=database)
        await_confirmed(postgres, daemon)
        proxy.heal()
        with proxy.flapping(0.4, 0.2):
            for start in range(501, 1500, 100):
                postgres.execute(ROWS, start, start + 99, dbname=database)
            eventually(
                lambda: len(daemon.events("retrying")) > 2, "the daemon has reconnected more than once"
            )
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.t")
        assert_each_once(events)
        assert len(events) == 1500


def test_a_thread_that_waits_for_a_silent_copy_is_released(postgres: PostgresServer) -> None:
    """All received bytes have been read, so only the server can be the reason of the wait."""
    with source_database(postgres, TABLE) as settings, Proxy(postgres.port) as proxy:
        run(
            postgres,
            settings.slot,
            "INSERT INTO t SELECT g, repeat('p', 1000) FROM generate_series(1, 20000) g",
        )
        behind = replace(settings, dsn=through(settings.dsn, postgres, proxy))
        with (
            contextlib.closing(psycopg2.connect(settings.dsn)) as exporting,
            exporting.cursor() as cursor,
        ):
            exporting.set_session(isolation_level="REPEATABLE READ")
            cursor.execute("SELECT pg_export_snapshot(), 't'::regclass::oid::int")
            snapshot, relid = cursor.fetchone() or ("", 0)
            reader = SnapshotReader(lambda: connect_sql(behind), translate, snapshot)
            table = CopiedTable(relid, "public", "t", ("id", "pad"), None, is_partitioned=False)
            proxy.slow(bytes_per_s=2_000_000)
            rows = reader.copy(CopyUnit(table), 1)
            next(rows)
            proxy.hold()
            failures: list[CdcdError] = []

            def read() -> None:
                try:
                    list(rows)
                except CdcdError as error:
                    failures.append(error)

            waiting = threading.Thread(target=read, daemon=True)
            waiting.start()
            waiting.join(1)
            assert waiting.is_alive(), "the thread waits for the server"
            reader.hang_up()
            waiting.join(10)
            assert not waiting.is_alive()
            assert [type(error) for error in failures] == [SourceUnavailable]
