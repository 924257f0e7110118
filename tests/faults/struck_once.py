"""Rows before, during and after one fault of PostgreSQL or of the link to it.

In: a database, a daemon that is not started, the fault.  Out: nothing; the daemon has stopped with status 0.
"""

from __future__ import annotations

from collections.abc import Callable

from cdcd.demo.stack.postgres import PostgresServer
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader, assert_each_once

BATCH = 200
ROWS = "INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(%s::int, %s) g"

Fault = Callable[[PostgresServer, Daemon], None]


def assert_it_goes_on(
    fault: Fault, server: PostgresServer, database: str, daemon: Daemon, reader: Reader
) -> None:
    """Assert that the daemon continues by itself after the fault, and that each row is there once."""
    server.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    daemon.start().wait_state("streaming")
    server.execute(ROWS, 1, BATCH, dbname=database)
    await_confirmed(server, daemon)
    server.execute(ROWS, BATCH + 1, 2 * BATCH, dbname=database)
    fault(server, daemon)
    server.execute(ROWS, 2 * BATCH + 1, 3 * BATCH, dbname=database)
    await_confirmed(server, daemon)
    assert daemon.events("halted") == []
    assert daemon.stop() == 0
    events = reader.read(f"{daemon.name}.public.t")
    assert_each_once(events)
    assert sorted(event.value["after"]["id"] for event in events) == list(range(1, 3 * BATCH + 1))
