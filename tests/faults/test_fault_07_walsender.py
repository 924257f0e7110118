"""Fault 7: the walsender is terminated, or ends after wal_sender_timeout. Each row is there once."""

from __future__ import annotations

import os
import signal

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.struck_once import BATCH, ROWS, Fault, assert_it_goes_on
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import SLOT_OWNER
from tests.support.waiting import eventually


def terminated(server: PostgresServer, daemon: Daemon) -> None:
    """F74: the walsender is terminated."""
    ((pid,),) = server.execute(SLOT_OWNER, daemon.slot)
    server.execute("SELECT pg_terminate_backend(%s)", pid)
    eventually(lambda: server.execute(SLOT_OWNER, daemon.slot) != [(pid,)], "the walsender has ended")


def timed_out(server: PostgresServer, daemon: Daemon) -> None:
    """F74: a frozen daemon sends nothing for longer than wal_sender_timeout."""
    assert daemon.process is not None
    ((pid,),) = server.execute(SLOT_OWNER, daemon.slot)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        eventually(
            lambda: server.execute(SLOT_OWNER, daemon.slot) != [(pid,)], "the server has ended the walsender"
        )
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("fault", [terminated, nightly(timed_out)])
def test_the_stream_goes_on_where_it_was(
    fault: Fault,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """The daemon continues by itself: the next session starts at the position stored in Kafka."""
    with new_daemon(postgres, database) as daemon:
        daemon.config["source"]["dsn"] += "?options=-c%20wal_sender_timeout%3D2s"
        assert_it_goes_on(fault, postgres, database, daemon, reader)
        assert daemon.events("retrying"), "the fault has struck"


def test_at_least_once_what_readers_have_seen_of_a_lost_stream_is_not_seen_again(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F58: the position of visible rows is stored in Kafka before another server, which may lack them, is queried."""
    waits = {"delivery": "at_least_once", "commit": {"max_wait_ms": 60_000}}
    with new_daemon(postgres, database, sink=waits) as daemon:
        topic = f"{daemon.name}.public.t"
        postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
        daemon.start().wait_state("streaming")
        postgres.execute(ROWS, 1, BATCH, dbname=database)
        eventually(
            lambda: len(reader.read(topic)) == BATCH, "the rows are visible, and their position is not stored"
        )
        terminated(postgres, daemon)
        eventually(lambda: bool(daemon.events("retrying")), "the daemon has lost the stream")
        daemon.wait_state("streaming")
        postgres.execute(ROWS, BATCH + 1, 2 * BATCH, dbname=database)
        eventually(lambda: len(reader.read(topic)) >= 2 * BATCH, "the daemon continues")
        assert daemon.stop() == 0
        assert_each_once(reader.read(topic))
