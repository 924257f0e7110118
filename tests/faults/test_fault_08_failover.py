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
from tests.faults.test_fault_34_idle import samples
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.quick import QUICK
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.resolutions import equals_table
from tests.support.stack import PostgresServers, run_script, wal_position
from tests.support.standby import await_slot, hosts_dsn, make_standby, promote
from tests.support.waiting import eventually

FAILOVER = {"slot": {"failover": True}}
MIB = 1 << 20
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


def burn(server: PostgresServer, size_bytes: int) -> None:
    """Write WAL, by whole segments."""
    end_lsn = wal_position(server) + size_bytes
    while wal_position(server) < end_lsn:
        server.execute("SELECT pg_logical_emit_message(false, 'burn', 'x'), pg_switch_wal()")


def has_slot(server: PostgresServer, daemon: Daemon) -> bool:
    return bool(server.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", daemon.slot))


@contextlib.contextmanager
def split(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> Iterator[tuple[PostgresServer, PostgresServer, Daemon, Proxy]]:
    """A daemon that streams from a primary; the name leads to a promoted standby now, and both accept writes."""
    guard = {"warn": "24MiB", "critical": "48MiB", "drop_slot": "96MiB"}
    source = {**FAILOVER, "heartbeat_interval_ms": 1000, "wal_guard": guard}
    with pair(pg_server, 18) as (primary, standby), Proxy(primary.port) as name:
        daemon = new_daemon(primary, "postgres", source=source)
        daemon.entry = QUICK
        daemon.config["source"]["dsn"] = primary.dsn().replace(f":{primary.port}/", f":{name.port}/")
        daemon.start().wait_state("streaming")
        make_standby(primary, standby)
        await_slot(standby, daemon.slot)
        name.point_to(standby.port)
        promote(standby)
        yield primary, standby, daemon, name


def test_a_slot_of_the_promoted_server_is_not_judged_while_the_stream_is_on_the_former_primary(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F59, F21: only the SQL connections move. The next primary's slot is the one that the stream will need."""
    with split(pg_server, new_daemon) as (primary, standby, daemon, name):
        primary.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'cdcd%%' AND backend_type = 'client backend'"
        )
        burn(standby, 110 * MIB)
        made = name.accepted
        eventually(
            lambda: name.accepted > made + 3 or daemon.events("slot_dropped_by_wal_guard"),
            "the monitor connects again and again",
        )
        assert daemon.status()["state"] == "streaming"
        assert daemon.status()["wal_guard"] is None
        assert "cdcd_slot_active" not in samples(daemon)
        assert [line["event"] for line in daemon.events("another_server_answers")] == [
            "another_server_answers"
        ]
        assert has_slot(standby, daemon)
        run_script(standby.dsn(), "CREATE TABLE u (id int PRIMARY KEY)")
        primary.kill()
        # The slot there retains more than the limit. Once the former primary is gone, the guard judges it: while the
        # daemon streams from the promoted server, or between two sessions.
        eventually(lambda: not has_slot(standby, daemon), "the slot is dropped")
        assert "CDCD-SLOT-DROPPED-BY-WAL-GUARD" in daemon.status()["reason"]
        assert daemon.stop() == 0


@pytest.mark.nightly  # the other way round loses changes
def test_the_monitors_follow_the_stream_from_a_primary_that_still_runs(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F59: only the walsender moves; the former primary still answers on the other connections."""
    with split(pg_server, new_daemon) as (primary, standby, daemon, _):
        primary.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
            daemon.slot,
        )
        eventually(lambda: len(daemon.events("streaming")) == 2, "the stream moves")
        burn(primary, 110 * MIB)
        run_script(standby.dsn(), "CREATE TABLE u (id int PRIMARY KEY)")
        eventually(
            lambda: daemon.events("publication_changed") or daemon.events("halted"),
            "the new primary's publication is compared",
        )
        assert daemon.events("halted") == []
        (line,) = daemon.events("publication_changed")
        assert "public.u" in line["reason"]
        await_confirmed(standby, daemon)
        ((confirmed_lsn, active),) = standby.execute(
            "SELECT (confirmed_flush_lsn - '0/0')::bigint, active FROM pg_replication_slots WHERE slot_name = %s",
            daemon.slot,
        )
        found = samples(daemon)
        assert found["cdcd_slot_confirmed_flush_lsn"] >= confirmed_lsn
        assert found["cdcd_slot_active"] == active == 1
        begun = found.get("cdcd_heartbeat_last_roundtrip_timestamp_seconds", 0)
        returned = "cdcd_heartbeat_last_roundtrip_timestamp_seconds"
        eventually(lambda: samples(daemon)[returned] > begun, "a heartbeat comes back from the new primary")
        assert has_slot(primary, daemon)
        assert has_slot(standby, daemon)
        run_script(standby.dsn(), "INSERT INTO t VALUES (2, 'after')")
        equals_table(reader, f"{daemon.name}.public.t", standby, "postgres")
        assert daemon.stop() == 0


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
