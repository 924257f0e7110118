"""Fault 6: PostgreSQL restarts, fast or after a crash, or is down for a while. Each row is there once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.struck_once import Fault, assert_it_goes_on
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly_except
from tests.support.reader import Reader
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def server(pg_server: PostgresServers) -> Iterator[PostgresServer]:
    """A server that may be stopped."""
    own = pg_server.fresh(18)
    with own:
        yield own


def restarted_fast(server: PostgresServer, _daemon: Daemon) -> None:
    """F13: the fast shutdown does not wait for the daemon."""
    server.stop("fast")
    server.start()


def crashed(server: PostgresServer, _daemon: Daemon) -> None:
    """F4: after crash recovery the slot may be behind its last confirmed position."""
    server.stop("immediate")
    server.start()


def away_for_long(server: PostgresServer, daemon: Daemon) -> None:
    """The server refuses connections for a while, and then starts up."""
    server.stop("immediate")
    eventually(lambda: len(daemon.events("retrying")) >= 3, "the daemon has retried several times")
    server.launch()
    server.start()


FAULTS = (restarted_fast, crashed, away_for_long)


@pytest.mark.parametrize("fault", nightly_except(FAULTS, crashed))
def test_the_stream_goes_on_where_it_was(
    server: PostgresServer,
    new_daemon: NewDaemon,
    reader: Reader,
    fault: Fault,
) -> None:
    database = fault.__name__
    server.create_database(database)
    with new_daemon(server, database) as daemon:
        assert_it_goes_on(fault, server, database, daemon, reader)
    server.drop_database(database)
