"""Fault 7: the server ends the walsender, or gives it up after wal_sender_timeout. Nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.struck_once import BATCH, ROWS, Fault, assert_it_goes_on
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import SLOT_OWNER
from tests.support.waiting import eventually


def terminated(server: PostgresServer, daemon: Daemon) -> None:
    """F74."""
    ((pid,),) = server.execute(SLOT_OWNER, daemon.slot)
    server.execute("SELECT pg_terminate_backend(%s)", pid)
    eventually(lambda: server.execute(SLOT_OWNER, daemon.slot) != [(pid,)], "its walsender is gone")


def timed_out(server: PostgresServer, daemon: Daemon) -> None:
    """F74: a frozen daemon says nothing for longer than wal_sender_timeout."""
    assert daemon.process is not None
    ((pid,),) = server.execute(SLOT_OWNER, daemon.slot)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        eventually(lambda: server.execute(SLOT_OWNER, daemon.slot) != [(pid,)], "the server has given it up")
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("fault", [terminated, timed_out])
def test_the_stream_goes_on_where_it_was(
    fault: Fault,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """By itself: the next session begins where Kafka says that the last one got to."""
    with new_daemon(postgres, database) as daemon:
        daemon.config["source"]["dsn"] += "?options=-c%20wal_sender_timeout%3D2s"
        assert_it_goes_on(fault, postgres, database, daemon, reader)
        assert daemon.events("retrying"), "it has struck"


def test_at_least_once_what_readers_have_seen_of_a_lost_stream_is_not_seen_again(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F58: its position is in Kafka before anybody else is asked for the stream, who may not have it."""
    waits = {"delivery": "at_least_once", "commit": {"max_wait_ms": 60_000}}
    with new_daemon(postgres, database, sink=waits) as daemon:
        topic = f"{daemon.name}.public.t"
        postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
        daemon.start().wait_state("streaming")
        postgres.execute(ROWS, 1, BATCH, dbname=database)
        eventually(lambda: len(reader.read(topic)) == BATCH, "its rows are there, and its position is not")
        terminated(postgres, daemon)
        eventually(lambda: bool(daemon.events("retrying")), "it has struck")
        daemon.wait_state("streaming")
        postgres.execute(ROWS, BATCH + 1, 2 * BATCH, dbname=database)
        eventually(lambda: len(reader.read(topic)) >= 2 * BATCH, "it goes on")
        assert daemon.stop() == 0
        assert_each_once(reader.read(topic))
