"""Rows that are inserted all the time, one transaction each, so that a fault strikes under load.

In: a database with a table t (id int PRIMARY KEY).  Out: increasing ids from 1, each committed before the next.
"""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg2

from tests.support.daemon import Daemon
from tests.support.reader import Event, assert_each_once
from tests.support.waiting import eventually


class Inserting:
    """Inserts rows with increasing ids, one transaction each, until it exits; `last` is the last committed id."""

    def __init__(self, dsn: str, after: int = 0) -> None:
        self._dsn = dsn
        self._is_over = threading.Event()
        self.last = after
        self._thread = threading.Thread(target=self._insert)

    def __enter__(self) -> Inserting:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _insert(self) -> None:
        with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            while not self._is_over.wait(0.005):
                cursor.execute("INSERT INTO t VALUES (%s)", (self.last + 1,))
                self.last += 1


def await_more_rows(daemon: Daemon, within_s: float = 60) -> None:
    """Wait until the daemon has written more rows; its admin port may be unreachable meanwhile."""
    before = daemon.status()["rows_written"]
    eventually(lambda: daemon.status().get("rows_written", 0) > before, "rows flow", within_s)


def assert_all_there(events: list[Event], rows: Inserting) -> None:
    """Assert that the events are those of the committed rows, each once."""
    assert_each_once(events)
    assert sorted(event.value["after"]["id"] for event in events) == list(range(1, rows.last + 1))
