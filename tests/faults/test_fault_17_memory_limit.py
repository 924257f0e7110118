"""Fault 17: cdcd runs out of memory and ends with a special exit status. Each row is there once.

F30: the memory that a transaction needs does not depend on its size, so that the next start does not fail again.
"""

from __future__ import annotations

import resource
import signal
from contextlib import closing

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import EXIT_MEMORY, OutOfMemory
from tests.integration.conftest import STREAMED, NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.hints import apply, hint_of
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run

TABLE = "CREATE TABLE t (id int PRIMARY KEY, note text)"
ROOM_BYTES = 80 << 20
ROWS = 4_000
MANY = f"INSERT INTO t SELECT g, repeat('n', 30000) FROM generate_series(1, {ROWS}) g"
"""120 MB."""
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""Otherwise malloc reserves 64 MB for each thread, in which allocations succeed despite the limit."""


def address_space_bytes(daemon: Daemon) -> int:
    """Return the size of the process's address space."""
    assert daemon.process is not None
    with open(f"/proc/{daemon.process.pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit(daemon: Daemon, size_bytes: int) -> None:
    """Limit the daemon's address space to this size."""
    assert daemon.process is not None
    resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (size_bytes, size_bytes))


def test_a_transaction_for_which_there_is_no_memory(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The daemon ends by itself; with a lower `buffer.memory` the next start succeeds within the same limit."""
    run(postgres, database, TABLE)
    with new_daemon(postgres, database, buffer={"memory": "1GiB"}) as daemon:
        daemon.config["source"]["dsn"] += f"?{STREAMED}"
        daemon.environment = ONE_HEAP
        daemon.start().wait_state("streaming")
        limit_bytes = address_space_bytes(daemon) + ROOM_BYTES
        limit(daemon, limit_bytes)
        with closing(psycopg2.connect(postgres.dsn(database))) as connection, connection.cursor() as cursor:
            cursor.execute(MANY)
            assert (
                daemon.wait_exit() == EXIT_MEMORY
            )  # while the transaction is open: its rows needed the memory
            connection.commit()
        ended = daemon.events("exiting")[-1]
        assert ended["code"] == OutOfMemory.code
        apply(daemon.config, hint_of(str(ended["error"])), "buffer.memory", "8MiB")
        daemon.start()
        limit(daemon, limit_bytes)
        await_confirmed(postgres, daemon, 240)
        assert daemon.stop() == 0
        assert daemon.events("retrying") == []
        events = reader.read(f"{daemon.name}.public.t")
        assert_each_once(events)
        assert len(events) == ROWS


@pytest.mark.nightly
def test_memory_that_is_refused_in_a_thread_that_is_never_joined(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The error is in a thread that is never joined: the process ends all the same."""
    run(postgres, database, TABLE)
    with new_daemon(postgres, database) as daemon:
        daemon.entry = ("-m", "tests.faults.short")
        daemon.start().wait_state("streaming")
        run(postgres, database, "INSERT INTO t VALUES (1)")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGUSR1)
        assert daemon.wait_exit() == EXIT_MEMORY
        assert f"{OutOfMemory.code}: the system refuses memory" in daemon.log()
        assert "lower buffer.memory" in hint_of(daemon.events("exiting")[-1]["error"])
        daemon.start()
        await_confirmed(postgres, daemon)
        assert_each_once(reader.read(f"{daemon.name}.public.t"))
