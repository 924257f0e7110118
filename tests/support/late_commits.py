"""Sessions that change a small table, and whose commits are visible late, in another order than their records.

In: a server of the test's own.  Out: the value of each row version that was ever written.
Half of the transactions wait for a synchronous standby that does not exist, until the wait is cancelled, which does
not cancel the commit. Each session locks a key until its transaction is visible, so versions of a key have one order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer
from tests.support.stack import run_script
from tests.support.waiting import eventually

TABLE = (
    "CREATE SEQUENCE public.versions",
    "CREATE TABLE public.t (k int PRIMARY KEY, ver int NOT NULL, big text NOT NULL)",
    "ALTER TABLE public.t ALTER big SET STORAGE EXTERNAL",
    "CREATE PUBLICATION pub FOR TABLE public.t",
)
_BIG = "%s || repeat(' ', 3000)"
_INSERT = f"INSERT INTO public.t VALUES (%(key)s, %(ver)s, {_BIG % '%(ver)s::text'})"
_UPDATE = "UPDATE public.t SET ver = %(ver)s WHERE k = %(key)s"
_UPDATE_ALL = f"UPDATE public.t SET ver = %(ver)s, big = {_BIG % '%(ver)s::text'} WHERE k = %(key)s"
_DELETE = "DELETE FROM public.t WHERE k = %(key)s"
_MOVE = "UPDATE public.t SET ver = %(ver)s, k = %(other)s WHERE k = %(key)s"

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
END_WAITS = f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) w"
"""Ends the wait, and not the commit."""


def let_commits_wait(server: PostgresServer) -> None:
    """Have each commit wait for a standby, and return when one has waited: the checkpointer applies the setting."""
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.execute("SELECT pg_reload_conf()")
    probe = "SELECT pg_logical_emit_message(true, 'probe', '')"
    has_waited = False
    while not has_waited:
        commit = threading.Thread(target=run_script, args=(server.dsn("postgres"), probe))
        commit.start()
        eventually(lambda: server.execute(WAITING) or not commit.is_alive(), "a commit waits or ends")  # noqa: B023
        has_waited = commit.is_alive()
        server.execute(END_WAITS)
        commit.join()


class LateCommits:
    """`sessions` threads, and one that ends waits. `big_of`: the version that set the large value of each version."""

    def __init__(self, server: PostgresServer, *, keys: int, sessions: int, seed: int) -> None:
        self._server = server
        self._keys = keys
        self._seed = seed
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(sessions)]
        self._canceller = threading.Thread(target=self._cancel)
        self._failures: list[BaseException] = []
        self.big_of: dict[int, int] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the sessions inside the block. Raises an error that one of them had."""
        run_script(self._server.dsn("postgres"), "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self._server.execute("SELECT pg_reload_conf()")
        eventually(
            lambda: self._server.execute("SHOW synchronous_standby_names") == [("nobody",)], "the setting"
        )
        for thread in (*self._threads, self._canceller):
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in (*self._threads, self._canceller):
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _cancel(self) -> None:
        random = Random(self._seed)
        waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'late'"
        with contextlib.closing(psycopg2.connect(self._server.dsn("postgres"))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                while any(thread.is_alive() for thread in self._threads):
                    cursor.execute(waits)
                    pids = [pid for (pid,) in cursor.fetchall()]
                    for pid in (
                        pids if self._stop.is_set() else random.sample(pids, len(pids) // 2 or bool(pids))
                    ):
                        cursor.execute("SELECT pg_cancel_backend(%s)", (pid,))
                    self._stop.wait(random.choice((0.001, 0.02, 0.1)))

    def _write(self, number: int) -> None:
        random = Random(self._seed * 1000 + number)
        try:
            with contextlib.closing(
                psycopg2.connect(self._server.dsn("postgres"), application_name="late")
            ) as connection:
                while not self._stop.is_set():
                    try:
                        with connection, connection.cursor() as cursor:
                            self._transaction(cursor, random)
                    except psycopg2.errors.QueryCanceled:
                        connection.rollback()  # the cancel came after the commit
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._failures.append(error)

    def _transaction(self, cursor: Any, random: Random) -> None:
        keys = random.sample(range(self._keys), random.choice((2, 2, 4)))
        if random.random() < 0.5:
            cursor.execute("SET LOCAL synchronous_commit = local")
        for key in sorted(keys):
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
        for key, other in zip(keys[::2], keys[1::2], strict=True):
            for _ in range(random.choice((1, 1, 3))):
                self._change(cursor, random, key, other)

    def _change(self, cursor: Any, random: Random, key: int, other: int) -> None:
        cursor.execute("SELECT nextval('public.versions')")
        ((ver,),) = cursor.fetchall()
        cursor.execute("SELECT k, trim(big)::int FROM public.t WHERE k IN (%s, %s)", (key, other))
        present = dict(cursor.fetchall())
        values = {"key": key, "other": other, "ver": ver}
        if key not in present:
            self.big_of[ver] = ver
            cursor.execute(_INSERT, values)
            return
        draw = random.random()
        if draw < 0.15:
            cursor.execute(_DELETE, values)
        elif draw < 0.35:
            self.big_of[ver] = ver
            cursor.execute(_UPDATE_ALL, values)
        elif draw < 0.55 and other not in present:
            self.big_of[ver] = present[key]
            cursor.execute(_MOVE, values)
        else:
            self.big_of[ver] = present[key]
            cursor.execute(_UPDATE, values)
