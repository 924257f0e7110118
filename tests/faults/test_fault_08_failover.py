"""Fault 8: the primary is killed under load and a standby is promoted (F56 to F59)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SourceStandby
from cdcd.source.connection import connect_sql
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import drop_own_slot
from cdcd.waits import KINDS
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.resolutions import equals_table
from tests.support.stack import PostgresServers, run_script
from tests.support.standby import await_slot, hosts_dsn, make_standby, promote
from tests.support.waiting import eventually

FAILOVER = {"slot": {"failover": True}}
TABLE = "CREATE TABLE t (id int PRIMARY KEY, body text)"


@contextlib.contextmanager
def writing(server: PostgresServer) -> Iterator[None]:
    """Insert and update rows, one transaction after another, until the server dies."""

    def write() -> None:
        with contextlib.suppress(psycopg2.Error):
            connection = psycopg2.connect(server.dsn())
            connection.autocommit = True
            with connection.cursor() as cursor:
                for number in range(10, 1_000_000):
                    cursor.execute("INSERT INTO t VALUES (%s, 'load')", (number,))
                    cursor.execute("UPDATE t SET body = body || '+' WHERE id = 1")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        writer.join(60)


@contextlib.contextmanager
def pair(pg_server: PostgresServers, major: int) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary with a table, and a server that is not started yet."""
    primary, standby = pg_server.fresh(major), pg_server.fresh(major)
    try:
        primary.start()
        run_script(primary.dsn(), TABLE, "INSERT INTO t VALUES (1, 'copied')")
        yield primary, standby
    finally:
        primary.stop("immediate")
        standby.stop("immediate")


def is_waiting_for_promotion(daemon: Daemon) -> bool:
    """Whether the daemon waits because it has found a standby at the primary's address."""
    return SourceStandby.code in {line["code"] for line in daemon.events("retrying")}


def assert_timelines(events: list[Event], promoted: PostgresServer) -> None:
    """F58: each change has the timeline of its commit, according to the new primary's timeline history file."""
    path = "pg_wal/00000002.history"
    ((switch_lsn,),) = promoted.execute(
        "SELECT (split_part(pg_read_file(%s), chr(9), 2)::pg_lsn - '0/0')::bigint", path
    )
    committed = [(one.source["timeline"], one.source["commit_lsn"]) for one in events if one.sequence]
    assert {(timeline, lsn < switch_lsn) for timeline, lsn in committed} == {(1, True), (2, False)}


@pytest.mark.parametrize(("major", "is_listed"), [nightly(17, False), (18, True)])
def test_a_promoted_standby_is_followed_without_a_change_lost_repeated_or_invented(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, major: int, is_listed: bool
) -> None:
    """F56, F57, F58, F59: the standby has the slot, and the daemon finds the new primary by itself.

    The servers are in a list of hosts, or one name moves to the standby before its promotion, for which cdcd waits.
    """
    with pair(pg_server, major) as (primary, standby), Proxy(primary.port) as name:
        daemon = new_daemon(primary, "postgres", source=FAILOVER)
        daemon.start().wait_state("streaming")
        make_standby(primary, standby)
        by_name = primary.dsn().replace(f":{primary.port}/", f":{name.port}/")
        daemon.config["source"]["dsn"] = hosts_dsn("postgres", standby, primary) if is_listed else by_name
        daemon.stop()
        daemon.start().wait_state("streaming")
        await_slot(standby, daemon.slot)
        with writing(primary):
            many = "SELECT 1 FROM t WHERE id = 110"
            eventually(lambda: standby.execute(many), "both servers have a hundred rows")
            primary.kill()
        if not is_listed:
            name.point_to(standby.port)
            eventually(lambda: is_waiting_for_promotion(daemon), "the daemon waits for the promotion")
            wait = eventually(lambda: daemon.waits_for("promotion"), "/status shows the wait")
            assert wait["ends_when"] == KINDS["promotion"].ends_when
        promote(standby)
        daemon.wait_state("streaming")
        run_script(standby.dsn(), "INSERT INTO t VALUES (2, 'after')", "DELETE FROM t WHERE id = 10")
        events = equals_table(reader, f"{daemon.name}.public.t", standby, "postgres")
        assert_each_once(events)
        assert len(events) > 200
        assert_timelines(events, standby)
        assert daemon.stop() == 0
        assert daemon.start().wait_state("streaming"), "the new timeline is in the progress record"
        assert daemon.stop() == 0
        settings = SourceSettings(standby.dsn(), lambda: None, daemon.slot, (), "guard")
        with contextlib.closing(connect_sql(settings)) as connection:
            assert drop_own_slot(connection, settings), "F21: the WAL guard saves a promoted primary as well"
