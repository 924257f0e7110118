"""F11, F12, fault 34: the slot of an idle database retains no WAL of a busy one, with heartbeats and without."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.source.heartbeat import may_write_heartbeat
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.preflight import preflight
from tests.support.reader import Reader
from tests.support.source import settings_for
from tests.support.stack import PostgresServers, wal_position
from tests.support.waiting import eventually

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
BEHIND = "SELECT restart_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
FUNCTION = "pg_logical_emit_message(boolean, text, text, boolean)"


def retained_from(server: PostgresServer, daemon: Daemon) -> int:
    """Return the slot's restart_lsn, after a checkpoint whose running-transactions record lets it advance."""
    server.execute("CHECKPOINT")
    return int(server.execute(BEHIND, daemon.slot)[0][0])


def samples(daemon: Daemon) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in daemon.get("/metrics")[1].splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in lines}


def test_a_slot_of_an_idle_database_advances_while_another_database_is_busy(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    with pg_server.fresh(18) as server:
        for name in ("idle", "busy"):
            server.create_database(name)
            server.execute(TABLE, dbname=name)
        every_second = {"heartbeat_interval_ms": 1000}
        with (
            new_daemon(server, "idle") as without,
            new_daemon(server, "idle", source=every_second) as beating,
        ):
            for daemon in (without, beating):
                daemon.start().wait_state("streaming")
            server.execute("INSERT INTO t SELECT generate_series(1, 50000)", dbname="busy")
            end_lsn = wal_position(server)
            for daemon in (without, beating):
                eventually(
                    lambda one=daemon: retained_from(server, one) >= end_lsn, "the slot retains no WAL", 60
                )
            returned = "cdcd_heartbeat_last_roundtrip_timestamp_seconds"
            eventually(lambda: samples(beating).get(returned), "a heartbeat has come back in the stream")
            assert samples(beating)["cdcd_heartbeats_sent_total"] >= 2
            assert samples(without)["cdcd_heartbeats_sent_total"] == 0
            # Not heartbeats, but data: the same prefix within a transaction, and another prefix outside of one.
            for transactional, prefix in (
                (False, "cdcd.heartbeat"),
                (True, "cdcd.heartbeat"),
                (False, "app"),
            ):
                server.execute(
                    "SELECT pg_logical_emit_message(%s, %s, 'x')", transactional, prefix, dbname="idle"
                )
            for daemon in (without, beating):
                events = reader.wait([f"{daemon.name}.message"], lambda events: len(events) >= 2)
                found = {(event.value["transactional"], event.value["prefix"]) for event in events}
                assert found == {(True, "cdcd.heartbeat"), (False, "app")}
                assert daemon.stop() == 0


@pytest.mark.nightly
def test_a_role_without_permission_for_heartbeats_is_reported_and_a_read_only_role_has_it(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    with pg_server.fresh(18) as server:
        server.create_database("shop")
        server.execute(TABLE, dbname="shop")
        server.create_role("reads")
        server.execute("ALTER ROLE reads SET default_transaction_read_only = on")
        dsn = server.dsn("shop", user="reads")
        with contextlib.closing(psycopg2.connect(dsn)) as connection:
            assert may_write_heartbeat(connection)
        with new_daemon(server, "shop", source={"heartbeat_interval_ms": 1000}) as daemon:
            daemon.config["source"]["dsn"] = dsn
            daemon.config["snapshot"] = {"mode": "never"}
            daemon.start().wait_state("streaming")
            eventually(
                lambda: samples(daemon)["cdcd_heartbeats_sent_total"] >= 1, "the daemon writes heartbeats"
            )
            server.execute(f"REVOKE EXECUTE ON FUNCTION {FUNCTION} FROM PUBLIC", dbname="shop")
            eventually(lambda: daemon.events("heartbeat_failed"), "the daemon reports the missing permission")
            sent = samples(daemon)["cdcd_heartbeats_sent_total"]
            server.execute(f"GRANT EXECUTE ON FUNCTION {FUNCTION} TO reads", dbname="shop")
            eventually(
                lambda: samples(daemon)["cdcd_heartbeats_sent_total"] > sent,
                "the daemon writes heartbeats again",
            )
            assert daemon.status()["state"] == "streaming"
            assert len(daemon.events("heartbeat_failed")) == 1
            assert daemon.stop() == 0
        server.execute(f"REVOKE EXECUTE ON FUNCTION {FUNCTION} FROM reads", dbname="shop")
        settings = settings_for(server, "shop")
        found = {
            (one.level, one.hint)
            for one in preflight(replace(settings, dsn=dsn), heartbeat=True)
            if one.subject == "source.heartbeat_interval_ms"
        }
        ((level, hint),) = found
        assert level == "warn", "a warning, because the daemon streams without heartbeats"
        server.execute(hint.partition(", or ")[0], dbname="shop")
        with contextlib.closing(psycopg2.connect(dsn)) as connection:
            assert may_write_heartbeat(connection)
