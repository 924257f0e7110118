"""The lock from a session's start until it streams (F69): one has it, the next gets its owner, a loss is noticed."""

from __future__ import annotations

import threading

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import CdcdError, SlotActive, SourceUnavailable
from cdcd.source.settings import SourceSettings
from cdcd.source.start_lock import StartLock
from tests.support.waiting import eventually

OWNERS = """
    SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Locks:
    """Locks on the slots of one database, and the losses reported to their owners."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server, self._database = server, database
        self.lost: list[CdcdError] = []
        self.is_lost = threading.Event()

    def new(self, slot: str = "shop", options: str = "") -> StartLock:
        settings = SourceSettings(
            dsn=self._server.dsn(self._database) + options,
            read_password=lambda: None,
            slot=slot,
            publications=("shop",),
            application_name="cdcd",
        )
        return StartLock(settings, self._lose)

    def _lose(self, error: CdcdError) -> None:
        self.lost.append(error)
        self.is_lost.set()

    def owners(self) -> list[int]:
        """Return the pids of the backends that hold such a lock, according to PostgreSQL."""
        return [pid for (pid,) in self._server.execute(OWNERS, dbname=self._database)]


@pytest.fixture
def locks(postgres: PostgresServer, database: str) -> Locks:
    return Locks(postgres, database)


def test_the_next_process_gets_the_owners_pid_until_the_lock_is_free(locks: Locks) -> None:
    first, second = locks.new(), locks.new()
    pid = first.acquire()
    assert locks.owners() == [pid]
    with pytest.raises(SlotActive) as refused:
        second.acquire()
    assert refused.value.context["pid"] == pid
    first.release()
    second.acquire()
    assert locks.owners() != [pid]
    second.release()
    eventually(lambda: locks.owners() == [], "the lock is free")
    assert locks.lost == []


def test_a_lock_released_before_it_is_acquired_stays_free(locks: Locks) -> None:
    lock = locks.new()
    lock.release()
    lock.acquire()
    eventually(lambda: locks.owners() == [], "the lock is free")


def test_other_slots_have_other_locks(locks: Locks) -> None:
    slots = [locks.new(slot) for slot in ("a", "b")]
    for lock in slots:
        lock.acquire()
    assert len(set(locks.owners())) == 2
    for lock in slots:
        lock.release()


@pytest.mark.nightly
def test_a_lock_outlasts_the_servers_timeout(locks: Locks) -> None:
    """The owner sends a message in time, so a working owner keeps the lock. Three seconds suffice on a
    busy machine.
    """
    lock = locks.new(options="?options=-c%20wal_sender_timeout%3D3s")
    lock.acquire()
    (pid,) = locks.owners()
    assert not locks.is_lost.wait(7)
    assert locks.owners() == [pid]
    lock.release()


def test_a_lost_lock_is_reported_to_its_owner(locks: Locks, postgres: PostgresServer) -> None:
    lock = locks.new(options="?options=-c%20wal_sender_timeout%3D300ms")
    lock.acquire()
    (pid,) = locks.owners()
    postgres.execute("SELECT pg_terminate_backend(%s)", pid)
    assert locks.is_lost.wait(30)
    assert isinstance(locks.lost[0], SourceUnavailable)
