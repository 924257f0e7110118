"""Fault 6: PostgreSQL restarts, fast or by a crash, or is away for a while. Nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually

BATCH = 200
ROWS = "INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(%s::int, %s) g"


@pytest.fixture(scope="module")
def server(pg_server: PostgresServers) -> Iterator[PostgresServer]:
    """A server that may be stopped."""
    own = pg_server.fresh(17)
    with own:
        yield own


def restarted_fast(server: PostgresServer, _daemon: Daemon) -> None:
    """F13: it does not wait for the daemon."""
    server.stop("fast")
    server.start()


def crashed(server: PostgresServer, _daemon: Daemon) -> None:
    """F4: after crash recovery the slot may be behind what was confirmed to it."""
    server.stop("immediate")
    server.start()


def away_for_long(server: PostgresServer, daemon: Daemon) -> None:
    """Refused for a while, then starting up."""
    server.stop("immediate")
    eventually(lambda: len(daemon.events("retrying")) >= 3, "it has tried some times")
    server.launch()
    server.start()


FAULTS = (restarted_fast, crashed, away_for_long)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_stream_goes_on_where_it_was(
    server: PostgresServer,
    new_daemon: NewDaemon,
    reader: Reader,
    fault: Callable[[PostgresServer, Daemon], None],
) -> None:
    database = fault.__name__
    server.create_database(database)
    server.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    with new_daemon(server, database) as daemon:
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
    server.drop_database(database)
