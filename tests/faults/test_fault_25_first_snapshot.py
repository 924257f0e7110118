"""Fault 25: two daemons in a first snapshot, before there is an active slot: one copies, the other waits (F69)."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import ResumeRefused
from tests.faults.test_fault_03_frozen import _ended_or_waits as ended_or_waits
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.proxy import Proxy
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.resolutions import ACCEPT_GAP, RESNAPSHOT, command
from tests.support.waiting import eventually

ROWS = 10_000
DELAYED_FROM_BYTES = 1_500_000
"""Of about 4 MB sent to Kafka: at this point some rows are durable, but not all, even on a slow machine."""
OWNER = """
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
Pair = tuple[Daemon, Daemon]


@pytest.fixture
def pair(postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka_door: Proxy) -> Pair:
    """Two daemons with one slot; the first one's link to Kafka can be held."""
    # Long rows: the rows of one read become one Kafka transaction.
    table = "CREATE TABLE t (id int PRIMARY KEY, note text DEFAULT repeat('x', 200))"
    postgres.execute(table, dbname=database)
    postgres.execute(f"INSERT INTO t SELECT generate_series(1, {ROWS})", dbname=database)
    over = {"sink": {"commit": {"max_rows": 100}}}
    first, second = new_daemon(postgres, database, **over), new_daemon(postgres, database, **over)
    first.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
    second.config["name"] = first.name
    return first, second


def copying(daemon: Daemon, door: Proxy) -> None:
    """Start the daemon, and hold its link to Kafka in the middle of the snapshot."""
    passed_bytes, met = door.passed_bytes["up"], door.met
    door.hold_when(lambda _way, _data: door.passed_bytes["up"] - passed_bytes >= DELAYED_FROM_BYTES)
    daemon.start()
    eventually(lambda: door.met > met, "the link is held")
    page = daemon.status()
    assert page["state"] == "snapshot"
    assert 500 <= page["rows_written"] < ROWS


def held_by(daemon: Daemon) -> list[int]:
    """Return the pids of the slot's owners on /status."""
    waits = [wait for wait in daemon.status()["waiting_for"] if wait["kind"] == "slot_held"]
    return [blocker["pid"] for wait in waits for blocker in wait["blockers"]]


def rows_of(reader: Reader, daemon: Daemon) -> int:
    """Return the number of rows that a reader of the daemon's topic has at the end."""
    return len(fold(reader.read(f"{daemon.name}.public.t"), lambda row: row["id"]))


def test_a_second_daemon_waits_and_does_not_take_over(
    postgres: PostgresServer, database: str, pair: Pair, reader: Reader, kafka_door: Proxy
) -> None:
    """No row is copied twice; after the first one's stop, the second one continues where the first one ended."""
    first, second = pair
    copying(first, kafka_door)
    reason = second.start().wait_state("waiting_slot")["reason"]
    assert "CDCD-SLOT-ACTIVE" in reason
    assert "pid=" in reason
    ((owner,),) = postgres.execute(OWNER, dbname=database)
    eventually(lambda: owner in held_by(second), "/status names the owner of the start lock")
    assert_nobody_decides_meanwhile(postgres, database, second)
    eventually(lambda: len(second.events("retrying")) >= 2, "the second daemon retries")
    assert first.status()["state"] == "snapshot"
    kafka_door.heal()
    first.wait_state("streaming")
    assert first.stop() == 0
    assert first.events("retrying") == []
    second.wait_state("streaming")
    assert second.events("slot_created") == second.events("slot_dropped") == []
    postgres.execute("INSERT INTO t VALUES (0)", dbname=database)
    await_confirmed(postgres, first)
    events = reader.read(f"{first.name}.public.t")
    assert_each_once(events)
    assert len(events) == ROWS + 1


def assert_nobody_decides_meanwhile(server: PostgresServer, database: str, daemon: Daemon) -> None:
    """Assert that commands that need the lock are refused with its owner's pid, and fence no producer."""
    commands = (ACCEPT_GAP, ("resume", "--accept-topic", f"{daemon.name}.public.t"), RESNAPSHOT)
    with ThreadPoolExecutor() as pool:
        ran = list(pool.map(lambda words: command(daemon, *words), commands))
    ((pid,),) = server.execute(OWNER, dbname=database)
    for one in ran:
        assert one.returncode != 0, one.stdout
        assert ResumeRefused.code in one.stderr
        assert f"pid={pid}" in one.stderr, one.stderr


@pytest.mark.nightly
def test_two_daemons_that_are_started_together_after_a_kill_do_not_fight(
    postgres: PostgresServer, database: str, pair: Pair, reader: Reader, kafka_door: Proxy
) -> None:
    """One daemon copies again, the other waits; neither ends."""
    copying(pair[0], kafka_door)
    pair[1].start().wait_state("waiting_slot")
    for daemon in pair:
        daemon.kill()
    kafka_door.heal()
    for daemon in pair:
        daemon.start()
    eventually(
        lambda: sorted(states(pair)) == ["streaming", "waiting_slot"],
        "one daemon streams, the other waits",
        60,
    )
    postgres.execute("INSERT INTO t VALUES (0)", dbname=database)
    await_confirmed(postgres, pair[0])
    assert all(daemon.process is not None and daemon.process.poll() is None for daemon in pair)
    assert sum(len(daemon.events("snapshot_completed")) for daemon in pair) == 1
    assert rows_of(reader, pair[0]) == ROWS + 1


def states(pair: Pair) -> list[str]:
    return [daemon.status().get("state", "") for daemon in pair]


@pytest.mark.nightly
def test_a_daemon_that_is_frozen_while_it_copies_loses_the_lock(
    postgres: PostgresServer, database: str, pair: Pair, reader: Reader, kafka_door: Proxy
) -> None:
    """F74: it loses the lock after wal_sender_timeout (2 s), like a slot; after SIGCONT it writes nothing more."""
    first, second = pair
    for daemon in pair:
        daemon.config["source"]["dsn"] += "?options=-c%20wal_sender_timeout%3D2s"
    copying(first, kafka_door)
    second.start().wait_state("waiting_slot")
    assert first.process is not None
    os.kill(first.process.pid, signal.SIGSTOP)
    second.wait_state("streaming")
    kafka_door.heal()
    os.kill(first.process.pid, signal.SIGCONT)
    assert ended_or_waits(first) in ("fenced", "waits")
    postgres.execute("INSERT INTO t VALUES (0)", dbname=database)
    await_confirmed(postgres, first)
    assert rows_of(reader, first) == ROWS + 1
