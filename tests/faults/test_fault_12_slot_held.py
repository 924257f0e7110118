"""Fault 12: another client holds the slot at the start: cdcd waits, says who it is, takes over when it is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.waiting import eventually

HOLDER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active"


@contextmanager
def held(
    server: PostgresServer, database: str, daemon: Daemon, options: str = ""
) -> Iterator[tuple[Any, int]]:
    """A client that streams from the daemon's slot and confirms nothing: its connection, its walsender's pid."""
    connection = psycopg2.connect(
        server.dsn(database) + options, connection_factory=LogicalReplicationConnection
    )
    try:
        with connection.cursor() as cursor:
            publication = f"cdcd_{daemon.name}"
            cursor.start_replication(
                daemon.slot, decode=False, options={"proto_version": "1", "publication_names": publication}
            )
            ((pid,),) = server.execute(HOLDER, daemon.slot)
            yield connection, pid
    finally:
        connection.close()


def ended(_server: PostgresServer, connection: Any, _pid: int) -> None:
    """The client goes."""
    connection.close()


def killed(server: PostgresServer, _connection: Any, pid: int) -> None:
    """Its walsender is terminated."""
    server.execute("SELECT pg_terminate_backend(%s)", pid)


def left_alone(_server: PostgresServer, _connection: Any, _pid: int) -> None:
    """It is frozen: it answers nothing, and the server gives it up after wal_sender_timeout (F74)."""


@pytest.mark.parametrize("let_go", [ended, killed, left_alone])
def test_it_is_waited_for(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    let_go: Callable[[PostgresServer, Any, int], None],
) -> None:
    """F18."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    options = "?options=-c%20wal_sender_timeout%3D" + ("4s" if let_go is left_alone else "60s")
    with held(postgres, database, daemon, options) as (connection, pid):
        page = daemon.start().wait_state("waiting_slot")
        assert f"pid={pid}" in page["reason"]
        assert "CDCD-SLOT-ACTIVE" in page["reason"]
        eventually(lambda: len(daemon.events("retrying")) >= 3, "it asks again and again")
        let_go(postgres, connection, pid)
        daemon.wait_state("streaming")
        assert postgres.execute(HOLDER, daemon.slot) != [(pid,)]
    postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
    await_confirmed(postgres, daemon)
    assert {line["code"] for line in daemon.events("retrying")} == {"CDCD-SLOT-ACTIVE"}
    assert daemon.stop() == 0
    events = reader.read(f"{daemon.name}.public.t")
    assert_each_once(events)
    assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
