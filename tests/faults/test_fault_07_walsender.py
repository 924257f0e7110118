"""Fault 7: the server ends the walsender, or gives it up after wal_sender_timeout. Nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.waiting import eventually

BATCH = 200
ROWS = "INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(%s::int, %s) g"
SLOT_PID = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active"


def terminated(server: PostgresServer, daemon: Daemon) -> None:
    """F74."""
    ((pid,),) = server.execute(SLOT_PID, daemon.slot)
    server.execute("SELECT pg_terminate_backend(%s)", pid)
    eventually(lambda: server.execute(SLOT_PID, daemon.slot) != [(pid,)], "its walsender is gone")


def timed_out(server: PostgresServer, daemon: Daemon) -> None:
    """F74: a frozen daemon says nothing for longer than wal_sender_timeout."""
    assert daemon.process is not None
    ((pid,),) = server.execute(SLOT_PID, daemon.slot)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: server.execute(SLOT_PID, daemon.slot) != [(pid,)], "the server has given it up")
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("fault", [terminated, timed_out])
def test_the_stream_goes_on_where_it_was(
    fault: Callable[[PostgresServer, Daemon], None],
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """By itself: the next session begins where Kafka says that the last one got to."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.config["source"]["dsn"] += "?options=-c%20wal_sender_timeout%3D2s"
        daemon.start().wait_state("streaming")
        postgres.execute(ROWS, 1, BATCH, dbname=database)
        await_confirmed(postgres, daemon)
        postgres.execute(ROWS, BATCH + 1, 2 * BATCH, dbname=database)
        fault(postgres, daemon)
        postgres.execute(ROWS, 2 * BATCH + 1, 3 * BATCH, dbname=database)
        await_confirmed(postgres, daemon)
        assert daemon.events("retrying"), "it has struck"
        assert daemon.events("halted") == []
        assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.t")
        assert_each_once(events)
        assert sorted(event.value["after"]["id"] for event in events) == list(range(1, 3 * BATCH + 1))
