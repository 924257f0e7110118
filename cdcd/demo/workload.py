"""Do the planned transactions against PostgreSQL, from several connections at once, at a limited rate.

In: a DSN, the plan's writers, seconds and rate.  Out: committed changes, and counters to read at any time.
Invariant: every statement touches as many rows as the plan says, or the workload fails; so the plan's picture
of the tables is the truth, and a rolled-back change that stayed would be noticed here.
Must not: know of cdcd.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import psycopg2
import psycopg2.extensions

from cdcd.demo.plan import Loaded, Step, Transaction, Writer, bulk_steps

WRITERS = 3


class WorkloadFailed(Exception):
    """A statement failed, or did not touch the rows it had to."""


@dataclass(slots=True)
class Counters:
    """What was done so far. Written by the workload's threads under `lock`, read by anyone."""

    transactions: int = 0
    changes: int = 0
    rollbacks: int = 0
    truncates: int = 0
    messages: int = 0
    bulk_changes: int = 0
    is_bulk_committed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, transaction: Transaction) -> None:
        """Count a transaction that has ended."""
        sqls = [step.sql for step in transaction.steps]
        with self.lock:
            self.messages += sum("pg_logical_emit_message" in sql for sql in sqls)
            if transaction.is_committed:
                self.transactions += 1
                self.changes += transaction.changes
                self.truncates += sum(sql.startswith("TRUNCATE") for sql in sqls)
            else:
                self.rollbacks += 1


class Workload:
    """The whole workload: `WRITERS` threads and, from `bulk_at_s` on, one for the large transaction."""

    def __init__(
        self,
        dsn: str,
        loaded: Loaded,
        seed: int,
        seconds: float,
        rate_per_s: float = 60.0,
        bulk_at_s: float | None = None,
        is_counted: bool = True,
    ) -> None:
        self._dsn, self._seconds = dsn, seconds
        self._pause_s = WRITERS / rate_per_s
        self._bulk_at_s = seconds * 0.4 if bulk_at_s is None else bulk_at_s
        self._stopping = threading.Event()
        self._counted = threading.Event()
        if is_counted:
            self._counted.set()
        self._failures: list[str] = []
        self.counters = Counters()
        writers = [Writer(seed, number, WRITERS, loaded) for number in range(WRITERS)]
        self._threads = [self._thread(f"writer-{i}", partial(self._write, w)) for i, w in enumerate(writers)]
        self._threads.append(self._thread("bulk", self._bulk))

    def start(self) -> None:
        """Begin; returns at once."""
        self._started_at = self._counted_from = time.monotonic()
        for thread in self._threads:
            thread.start()

    def count(self) -> None:
        """Let the seconds begin, where they have not begun with the changes (`is_counted`)."""
        if not self._counted.is_set():
            self._counted_from = time.monotonic()
            self._counted.set()

    def stop(self) -> None:
        """Ask for an early end; an open transaction is finished or rolled back. `wait` for it."""
        self._stopping.set()
        self._counted.set()

    @property
    def is_running(self) -> bool:
        """True while a thread works. Raises WorkloadFailed as soon as one has failed."""
        if self._failures:
            self.stop()
            raise WorkloadFailed(self._failures[0])
        return any(thread.is_alive() for thread in self._threads)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until every thread has ended. Raises WorkloadFailed when one of them failed."""
        for thread in self._threads:
            thread.join(timeout_s)
        if self.is_running:
            raise WorkloadFailed(f"the workload did not end within {timeout_s} s")

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except (psycopg2.Error, WorkloadFailed) as error:
                if not self._stopping.is_set():
                    self._failures.append(f"{name}: {error}".strip())

        return threading.Thread(target=run, name=name, daemon=True)

    def _write(self, writer: Writer) -> None:
        with closing(psycopg2.connect(self._dsn)) as connection:
            next_at = self._started_at
            for transaction in writer.transactions():
                next_at += self._pause_s
                # behind its rate a writer goes on at full speed; it does not skip anything
                if self._is_over() or self._stopping.wait(max(0.0, next_at - time.monotonic())):
                    return
                perform(connection, transaction)
                self.counters.add(transaction)

    def _bulk(self) -> None:
        self._counted.wait()
        if self._stopping.wait(self._bulk_at_s):
            return
        with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            for step in bulk_steps():
                if self._stopping.is_set():
                    return  # closing rolls it back
                run_step(cursor, step)
                with self.counters.lock:
                    self.counters.bulk_changes += step.rows or 0
                self._stopping.wait(0.1)  # lets the writers' commits come in between
            connection.commit()
            with self.counters.lock:
                self.counters.is_bulk_committed = True
                self.counters.transactions += 1
                self.counters.changes += self.counters.bulk_changes

    def _is_over(self) -> bool:
        return self._counted.is_set() and time.monotonic() - self._counted_from >= self._seconds


def perform(connection: psycopg2.extensions.connection, transaction: Transaction) -> None:
    """Run one transaction to its end. Raises WorkloadFailed when a step finds other rows than planned."""
    with connection.cursor() as cursor:
        for step in transaction.steps:
            run_step(cursor, step)
    if transaction.is_committed:
        connection.commit()
    else:
        connection.rollback()


def run_step(cursor: psycopg2.extensions.cursor, step: Step) -> None:
    """Run one statement and check how many rows it touched."""
    cursor.execute(step.sql, step.values)
    if step.rows is not None and cursor.rowcount != step.rows:
        raise WorkloadFailed(f"{step.sql}: {cursor.rowcount} rows instead of {step.rows}")
