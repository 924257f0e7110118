"""F21, F22: the WAL that the slot retains is reported with its blocker; the slot is dropped only if so configured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.source.oldest_transaction import oldest_writer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.hints import commands_in, hint_of
from tests.support.quick import QUICK
from tests.support.resolutions import audited, command, halts_with
from tests.support.stack import PostgresServers, prepare, run, wal_position
from tests.support.waiting import eventually

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(pg_server: PostgresServers) -> Iterator[PostgresServer]:
    """Yield a server with only this file's slots."""
    with pg_server.fresh(18) as own:
        yield own


def burn(server: PostgresServer, size_bytes: int) -> None:
    """Write WAL, by whole segments."""
    end_lsn = wal_position(server) + size_bytes
    while wal_position(server) < end_lsn:
        server.execute("SELECT pg_logical_emit_message(false, 'burn', 'x'), pg_switch_wal()")


def guard(**sizes: str) -> dict[str, object]:
    return {"wal_guard": {"warn": "24MiB", "critical": "48MiB", **sizes}}


def shown(daemon: Daemon) -> dict[str, str]:
    return dict(daemon.status().get("wal_guard") or {})


def has_slot(server: PostgresServer, daemon: Daemon) -> bool:
    return bool(server.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", daemon.slot))


def test_the_oldest_transaction_that_writes_is_named_also_a_prepared_one_of_another_database(
    server: PostgresServer,
) -> None:
    """F22."""
    server.create_database("elsewhere")
    server.execute("CREATE TABLE w (id int)", dbname="elsewhere")
    with (
        contextlib.closing(psycopg2.connect(server.dsn())) as observer,
        contextlib.closing(
            psycopg2.connect(server.dsn("elsewhere", user="postgres") + "?application_name=batch")
        ) as writing,
    ):
        observer.autocommit = True
        with writing.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert oldest_writer(observer) is None, "a transaction that only reads retains no WAL"
            cursor.execute("INSERT INTO w VALUES (1)")
        name, age_s = oldest_writer(observer) or ("", -1.0)
        assert name == f"pid {writing.info.backend_pid} of postgres in database elsewhere (batch)"
        assert age_s >= 0
        writing.rollback()
        prepare(server.dsn("elsewhere"), "forgotten", "INSERT INTO w VALUES (1)")
        name, _ = oldest_writer(observer) or ("", -1.0)
        server.execute("ROLLBACK PREPARED 'forgotten'", dbname="elsewhere")
        assert name == "prepared transaction 'forgotten' of postgres in database elsewhere"


def test_a_slot_that_streams_is_released_before_it_is_given_up(
    server: PostgresServer, new_daemon: NewDaemon
) -> None:
    """A prepared transaction retains the WAL, whatever is confirmed; the halt names the resolutions."""
    server.create_database("held")
    run(server, "held", "CREATE TABLE t (id int PRIMARY KEY)")
    with new_daemon(server, "held", source=guard(drop_slot="96MiB")) as daemon:
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        prepare(server.dsn("held"), "kept", "INSERT INTO t VALUES (1)")
        try:
            burn(server, 40 * MIB)
            assert_one_that_waits_only_tells(server, new_daemon(server, "held"), daemon)
            burn(server, 70 * MIB)
            page = daemon.wait_state("halted")
            assert "CDCD-SLOT-DROPPED-BY-WAL-GUARD" in page["reason"]
            assert "from_lsn=" in page["reason"]
            (way,) = [way for way in commands_in(hint_of(page["reason"])) if way[0] == "resnapshot"]
            eventually(lambda: not has_slot(server, daemon), "the slot is dropped")
            eventually(lambda: daemon.events("slot_dropped_by_wal_guard"), "the drop is logged")
        finally:
            server.execute("ROLLBACK PREPARED 'kept'", dbname="held")
        assert 'cdcd_pipeline_state{state="halted"} 1.0' in daemon.get("/metrics")[1]
        assert "cdcd_wal_guard_slots_dropped_total 1.0" in daemon.get("/metrics")[1]
        assert daemon.get("/readyz")[0] != 200
        daemon.reload()
        eventually(
            lambda: "CDCD-SLOT-MISSING" in daemon.status()["reason"],
            "the next start reports the missing slot",
        )
        assert daemon.events("wal_guard")[-1]["now"] == "drop_slot"
        audited(command(daemon, *way))
        daemon.wait_state("streaming")
        run(server, "held", "INSERT INTO t VALUES (2)")
        await_confirmed(server, daemon)
        assert daemon.stop() == 0


def test_a_slot_that_cannot_be_dropped_is_an_error_in_the_log(
    server: PostgresServer, new_daemon: NewDaemon
) -> None:
    """The role loses its right while it streams: the server's disk is in danger, and nobody would know why."""
    server.create_database("revoked")
    run(server, "revoked", "CREATE TABLE t (id int PRIMARY KEY)")
    run(server, "revoked", "CREATE ROLE revoked LOGIN REPLICATION")
    run(server, "revoked", "GRANT SELECT ON t TO revoked")
    run(server, "revoked", "CREATE PUBLICATION revoked FOR TABLE t")
    with new_daemon(server, "revoked", source=guard(drop_slot="96MiB")) as daemon:
        daemon.config["source"] |= {
            "dsn": server.dsn("revoked", user="revoked"),
            "publication": {"names": ["revoked"]},
        }
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        prepare(server.dsn("revoked"), "revoked", "INSERT INTO t VALUES (1)")
        run(server, "revoked", "ALTER ROLE revoked NOREPLICATION")
        try:
            burn(server, 110 * MIB)
            daemon.wait_state("halted")
            eventually(lambda: daemon.events("slot_not_dropped"), "the refusal is logged")
            assert "permission denied" in daemon.events("slot_not_dropped")[0]["reason"]
            assert has_slot(server, daemon)
            run(server, "revoked", "ALTER ROLE revoked REPLICATION")
            eventually(lambda: not has_slot(server, daemon), "the slot is dropped")
        finally:
            server.execute("ROLLBACK PREPARED 'revoked'", dbname="revoked")
        assert len(daemon.events("slot_not_dropped")) == 1


def test_the_guard_does_not_depend_on_the_other_queries_of_the_monitor(
    server: PostgresServer, new_daemon: NewDaemon
) -> None:
    """F21: the publication cannot be read; the slot can, and is reported and released as ever."""
    server.create_database("blind")
    server.create_role("blind")
    run(server, "blind", "CREATE TABLE t (id int PRIMARY KEY)", "GRANT SELECT ON t TO blind")
    with new_daemon(server, "blind", source=guard(drop_slot="96MiB")) as daemon:
        daemon.config["source"]["dsn"] = server.dsn("blind", user="blind")
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        run(server, "blind", "REVOKE SELECT ON pg_publication_tables FROM PUBLIC")
        prepare(server.dsn("blind"), "kept", "INSERT INTO t VALUES (1)")
        try:
            burn(server, 110 * MIB)
            eventually(lambda: not has_slot(server, daemon), "the slot is dropped")
        finally:
            server.execute("ROLLBACK PREPARED 'kept'", dbname="blind")
        assert "CDCD-SLOT-DROPPED-BY-WAL-GUARD" in daemon.wait_state("halted")["reason"]
        assert daemon.stop() == 0


def assert_one_that_waits_only_tells(server: PostgresServer, second: Daemon, first: Daemon) -> None:
    """F69: a daemon does not drop a slot that another one holds, whatever its own limit; nor does it halt."""
    second.config["name"], second.entry = first.name, QUICK
    second.config["source"] |= guard(warn="8MiB", critical="16MiB", drop_slot="24MiB")
    second.start()
    eventually(lambda: second.events("wal_guard"), "the second daemon's guard has measured the slot")
    (level,) = second.events("wal_guard")
    assert level["now"] == "drop_slot"
    tries = len(second.events("retrying"))
    eventually(lambda: len(second.events("retrying")) > tries, "the daemon continues to wait")
    assert second.status()["state"] == "waiting_slot"
    assert second.status()["wal_guard"]["level"] == "drop_slot"
    assert second.stop() == 0
    assert has_slot(server, first)
    assert first.status()["state"] == "streaming"


@pytest.mark.nightly
def test_wal_that_cdcd_retains_is_reported_while_kafka_is_away_and_released_where_configured(
    server: PostgresServer, new_daemon: NewDaemon
) -> None:
    """F21: no session gets far enough to hold the slot, and the guard works all the same."""
    server.create_database("away")
    run(server, "away", "CREATE TABLE t (id int PRIMARY KEY)")
    with new_daemon(server, "away", source=guard()) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{free_port()}"
        daemon.entry = ("-m", "tests.faults.impatient")
        burn(server, 100 * MIB)
        daemon.start()
        eventually(lambda: shown(daemon).get("level") == "critical", "the guard has measured the slot")
        assert shown(daemon)["held_by"].startswith("cdcd, which has not confirmed 1")
        assert has_slot(server, daemon), "the default drops no slot"
        assert daemon.stop() == 0
        daemon.config["source"] |= guard(drop_slot="96MiB")
        daemon.start()
        eventually(lambda: not has_slot(server, daemon), "the slot is dropped")
        assert "CDCD-SLOT-DROPPED-BY-WAL-GUARD" in daemon.status()["reason"]
        assert daemon.stop() == 0


@pytest.mark.nightly  # test_new_snapshots has one
def test_the_slot_of_a_daemon_with_another_name_is_not_dropped(
    server: PostgresServer, new_daemon: NewDaemon
) -> None:
    """F80: the slot's daemon is stopped, and this one has halted because the slot belongs to the other."""
    server.create_database("shared")
    run(server, "shared", "CREATE TABLE t (id int PRIMARY KEY)")
    with new_daemon(server, "shared") as owner, new_daemon(server, "shared") as other:
        owner.start().wait_state("streaming")
        assert owner.stop() == 0
        other.config["source"] |= guard(warn="8MiB", critical="16MiB", drop_slot="24MiB")
        other.config["source"]["slot"] = {"name": owner.slot}
        other.config["sink"]["transactional_id"] = f"cdcd-{other.slot}"
        reason = other.start().wait_state("halted")["reason"]
        assert "CDCD-SLOT-UNUSABLE" in reason
        assert "drop" not in reason
        burn(server, 32 * MIB)
        eventually(lambda: shown(other).get("level") == "drop_slot", "its guard has measured the slot")
        assert "not this one" in shown(other)["held_by"]
        eventually(lambda: other.events("wal_guard")[-1]["now"] == "drop_slot", "the level is logged")
        assert other.status()["state"] == "halted"
        assert has_slot(server, owner)
        assert other.stop() == 0
        assert not other.events("slot_dropped_by_wal_guard")
        # Its WAL is beyond the limit already: the guard waits for the result of the start.
        other.start()
        reason = halts_with(other, "CDCD-SLOT-UNUSABLE")
        eventually(lambda: shown(other).get("level") == "drop_slot", "its guard has measured the slot")
        eventually(lambda: other.events("wal_guard")[-1]["now"] == "drop_slot", "the level is logged")
        assert other.status()["reason"] == reason
        assert other.stop() == 0
        assert not other.events("slot_dropped_by_wal_guard")
        assert has_slot(server, owner)
        owner.start().wait_state("streaming")
