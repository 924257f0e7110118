"""The blockers of cdcd in PostgreSQL, compared with the blocking sessions' own pids (F38)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg2
import pytest

from cdcd.errors import SourceUnavailable
from cdcd.source import lock_watch
from cdcd.source.blockers import table_lockers
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.lock_watch import fetch_watched
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import create_slot, read_slot
from cdcd.waits import Blocker, WaitCause
from tests.support.nightly import nightly, nightly_except
from tests.support.source import plain, source_database
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers
from tests.support.waiting import eventually

TABLE = ("CREATE TABLE public.t (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR TABLE public.t")
READ = "SELECT count(*) FROM public.t"


@dataclass
class Looks:
    """The results of the blocker queries for one statement."""

    found: list[WaitCause | None] = field(default_factory=list)

    def __call__(self, seen: WaitCause | None) -> None:
        self.found.append(seen)

    def until(self, *whoever: str) -> Blocker:
        """Wait until one of these is the first blocker, and return it."""
        eventually(
            lambda: self._first() is not None and self._first().who in whoever, f"one of {whoever}", 20
        )
        found: Blocker = self._first()
        return found

    def of(self, kind: str) -> set[str]:
        """Return all blockers of a wait of this kind in the last result."""
        seen = self.found[-1]
        assert seen is not None
        assert seen.kind == kind
        return {blocker.who for blocker in seen.blockers}

    def _first(self) -> Any:
        seen = self.found[-1] if self.found else None
        return seen.blockers[0] if seen is not None and seen.blockers else None


@contextlib.contextmanager
def session(settings: SourceSettings, *statements: str, **connect: Any) -> Iterator[Any]:
    """Open another session with a transaction in which these statements were run."""
    with contextlib.closing(psycopg2.connect(plain(settings), **connect)) as connection:
        for statement in statements:
            connection.cursor().execute(statement)
        yield connection


def own_pid(connection: Any) -> int:
    """Return the session's pid, according to the session itself."""
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    (pid,) = cursor.fetchone()
    return int(pid)


@contextlib.contextmanager
def in_thread(work: Any) -> Iterator[list[Any]]:
    """Run `work` in a thread and wait for its end; yield a list for its result or exception."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - handed to the test
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield results
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_a_slot_waits_for_each_open_transaction_and_names_it(pg_server: PostgresServers, major: int) -> None:
    """A transaction in its own database, one in another, and a prepared one: the test ends the named one, then the
    next.
    """
    looks = Looks()
    server = pg_server(major)
    with (
        source_database(server, *TABLE) as settings,
        source_database(server, *TABLE) as elsewhere,
        session(settings, "INSERT INTO public.t VALUES (1)", application_name="nightly report") as first,
        session(elsewhere, "INSERT INTO public.t VALUES (1)", application_name="batch") as second,
        session(elsewhere, "INSERT INTO public.t VALUES (2)", "PREPARE TRANSACTION 'it''s open'") as third,
        in_thread(lambda: create_slot(settings, export_snapshot=True, report=looks)) as made,
    ):
        open_now = {
            f"pid {own_pid(first)}": (settings.slot, "nightly report", first.rollback),
            f"pid {own_pid(second)}": (elsewhere.slot, "batch", second.commit),
            "prepared transaction 'it's open'": (elsewhere.slot, None, lambda: roll_back_prepared(third)),
        }
        while open_now:
            blocker = looks.until(*open_now)
            database, application, end = open_now.pop(blocker.who)
            assert (blocker.database, blocker.application) == (database, application)
            assert blocker.since_s is not None
            assert blocker.pid == (int(blocker.who.split()[1]) if blocker.who.startswith("pid") else None)
            assert looks.of("slot_creation") == open_now.keys() | {blocker.who}
            end()
        eventually(lambda: made, "the slot is created")
        made[0].close()
        assert looks.found[-1] is None
        with contextlib.closing(connect_sql(settings)) as connection:
            assert read_slot(connection, settings.slot) is not None


def roll_back_prepared(connection: Any) -> None:
    connection.rollback()
    connection.autocommit = True
    connection.cursor().execute("ROLLBACK PREPARED 'it''s open'")


def test_a_role_without_rights_sees_who_it_is_but_not_since_when(pg_server: PostgresServers) -> None:
    """Values that PostgreSQL hides from the role stay unknown."""
    looks = Looks()
    server = pg_server(18)
    with source_database(server, *TABLE) as settings:
        server.execute("CREATE ROLE blind LOGIN REPLICATION", dbname=settings.slot)
        blind = replace(settings, dsn=plain(settings).replace(f"{server.superuser}@", "blind@"))
        try:
            with session(settings, "INSERT INTO public.t VALUES (1)") as blocking:
                with in_thread(lambda: create_slot(blind, export_snapshot=False, report=looks)) as made:
                    blocker = looks.until(f"pid {own_pid(blocking)}")
                    assert (blocker.database, blocker.since_s) == (settings.slot, None)
                    assert "since" not in str(blocker)
                    assert "since" not in blocker.page()
                    blocking.rollback()
                made[0].close()
        finally:
            server.execute("DROP ROLE blind", dbname=settings.slot)


def test_a_slot_is_not_given_up_while_others_go_on_writing(
    pg_server: PostgresServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writer begins before the last one ends, and all take longer than any statement time-out."""
    monkeypatch.setattr(lock_watch, "ANSWER_DEADLINE_S", 1.0)
    monkeypatch.setattr("cdcd.source.deadline.ANSWER_DEADLINE_S", 1.0)
    looks = Looks()
    with source_database(pg_server(18), *TABLE) as settings:
        write = "INSERT INTO public.t VALUES ({})"
        with session(settings, write.format(1)) as first:
            with in_thread(lambda: create_slot(settings, export_snapshot=True, report=looks)) as made:
                looks.until(f"pid {own_pid(first)}")
                with session(settings, write.format(2)) as second:
                    first.commit()
                    # The second writer began before the first's end: the second phase of the creation waits for it.
                    looks.until(f"pid {own_pid(second)}")
                    with session(settings, write.format(3)) as third:
                        second.commit()
                        eventually(lambda: made, "the slot is created although the third writer is active")
                        third.commit()
            made[0].close()


@pytest.mark.parametrize("major", [nightly(17), 18])
def test_a_table_that_is_locked_is_waited_for_however_long(
    pg_server: PostgresServers, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of the published tables, which the server locks from 16 on; the lock queue is followed to
    its head.
    """
    monkeypatch.setattr(lock_watch, "ANSWER_DEADLINE_S", 1.0)
    looks = Looks()

    def ask(connection: Any, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return fetch_watched(settings, connection, sql, parameters, looks)

    with source_database(pg_server(major), *TABLE) as settings, contextlib.ExitStack() as stack:
        altering = stack.enter_context(session(settings))
        reading = stack.enter_context(session(settings, READ))
        alter = lambda: altering.cursor().execute("ALTER TABLE public.t ADD COLUMN v int")  # noqa: E731
        connection = stack.enter_context(contextlib.closing(connect_sql(settings)))
        with in_thread(alter):
            is_waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
            eventually(
                lambda: fetch(connection, is_waiting, (altering.info.backend_pid,)), "the ALTER TABLE waits"
            )
            with in_thread(lambda: published_tables(connection, ("pub",), ask)) as listed:
                found = looks.until(f"pid {altering.info.backend_pid}")
                assert f"itself waits for pid {reading.info.backend_pid}" in found.doing
                seen = looks.found[-1]
                assert seen is not None
                assert (seen.kind, seen.what) == ("lock", "AccessShareLock on public.t")
                assert [blocker.pid for blocker in seen.blockers] == [
                    altering.info.backend_pid,
                    reading.info.backend_pid,
                ]
                reading.rollback()
                holds = lambda: looks.until(f"pid {altering.info.backend_pid}").doing  # noqa: E731
                eventually(lambda: holds() == "idle in transaction", "the session has the lock")
                with contextlib.closing(connect_sql(settings)) as observer:
                    (locker,) = table_lockers(observer)
                assert locker.pid == altering.info.backend_pid
                assert "AccessExclusiveLock on public.t" in locker.doing
                altering.rollback()
            assert [table.name for table in listed[0]] == ["t"]


def test_a_prepared_transaction_that_locks_a_table_is_named(pg_server: PostgresServers) -> None:
    looks = Looks()
    with source_database(pg_server(18), *TABLE) as settings:
        lock = ("LOCK TABLE public.t", "PREPARE TRANSACTION 'locks'")
        with session(settings, *lock), contextlib.closing(connect_sql(settings)) as connection:
            with in_thread(lambda: fetch_watched(settings, connection, READ, (), looks)) as read:
                assert looks.until("prepared transaction 'locks'").database == settings.slot
                with contextlib.closing(connect_sql(settings)) as observer:
                    assert [one.who for one in table_lockers(observer)] == ["prepared transaction 'locks'"]
                    fetch_nothing(observer, "ROLLBACK PREPARED 'locks'")
            assert read == [[(0,)]]


def fetch_nothing(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_wait_ends_when_its_session_has_ended(
    pg_server: PostgresServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F16: the server has ended the session, and its link is silent; only the blocker queries show its end."""
    monkeypatch.setattr(lock_watch, "ANSWER_DEADLINE_S", 1.0)
    looks = Looks()
    with source_database(pg_server(18), *TABLE) as settings:
        with contextlib.closing(connect_sql(settings)) as connection:
            monkeypatch.setattr(lock_watch, "blockers_of", gone)
            with session(settings, "LOCK TABLE public.t") as locking:
                with in_thread(lambda: fetch_watched(settings, connection, READ, (), looks)) as read:
                    eventually(lambda: read, "the watched query has ended")
                locking.rollback()
        assert isinstance(read[0], SourceUnavailable)
        assert "has not shown the session" in read[0].message


def gone(_connection: Any, _pid: int) -> WaitCause | None:
    raise lock_watch.BackendGone
