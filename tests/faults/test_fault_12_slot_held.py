"""Fault 12: another client holds the slot at the start: cdcd waits, names its pid, and takes over a free slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import SLOT_OWNER
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Holder:
    """Another client that holds the slot; `pid` is that of its walsender."""

    connection: Any
    pid: int
    stop_feedback: Callable[[], None]


@contextmanager
def held(server: PostgresServer, database: str, daemon: Daemon, options: str = "") -> Iterator[Holder]:
    """Yield a client that streams from the daemon's slot and confirms nothing.

    The client sends feedback until the test calls `stop_feedback`, so that it does not lose the slot before.
    """
    connection = psycopg2.connect(
        server.dsn(database) + options, connection_factory=LogicalReplicationConnection
    )
    try:
        with connection.cursor() as cursor:
            publication = f"cdcd_{daemon.name}"
            cursor.start_replication(
                daemon.slot, decode=False, options={"proto_version": "1", "publication_names": publication}
            )
            ((pid,),) = server.execute(SLOT_OWNER, daemon.slot)
            with alive(cursor) as stop_feedback:
                yield Holder(connection, pid, stop_feedback)
    finally:
        connection.close()


@contextmanager
def alive(cursor: Any) -> Iterator[Callable[[], None]]:
    """Send feedback until the yielded function is called."""
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.5):
            cursor.send_feedback(reply=False, force=True)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()

    def stop_feedback() -> None:
        over.set()
        feeding.join()

    try:
        yield stop_feedback
    finally:
        stop_feedback()


def ended(_server: PostgresServer, holder: Holder) -> None:
    """The client closes its connection."""
    holder.connection.close()


def killed(server: PostgresServer, holder: Holder) -> None:
    """The client's walsender is terminated."""
    server.execute("SELECT pg_terminate_backend(%s)", holder.pid)


def left_alone(_server: PostgresServer, _holder: Holder) -> None:
    """The client sends nothing more, and the server ends its walsender after wal_sender_timeout (F74)."""


@pytest.mark.parametrize("release", [nightly(ended), killed, nightly(left_alone)])
def test_it_is_waited_for(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    release: Callable[[PostgresServer, Holder], None],
) -> None:
    """F18: cdcd waits for a slot that another client holds, and starts when the slot is free."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    options = "?options=-c%20wal_sender_timeout%3D" + ("4s" if release is left_alone else "60s")
    with held(postgres, database, daemon, options) as holder:
        page = daemon.start().wait_state("waiting_slot")
        assert f"pid={holder.pid}" in page["reason"]
        assert "CDCD-SLOT-ACTIVE" in page["reason"]
        eventually(lambda: len(daemon.events("retrying")) >= 2, "the daemon retries")
        holder.stop_feedback()
        release(postgres, holder)
        daemon.wait_state("streaming")
        assert postgres.execute(SLOT_OWNER, daemon.slot) != [(holder.pid,)]
    postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
    await_confirmed(postgres, daemon)
    assert {line["code"] for line in daemon.events("retrying")} == {"CDCD-SLOT-ACTIVE"}
    assert daemon.stop() == 0
    events = reader.read(f"{daemon.name}.public.t")
    assert_each_once(events)
    assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
