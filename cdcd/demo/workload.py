"""Run the planned transactions in PostgreSQL, from several connections at once, at a limited rate.

In: a DSN, the plan's writers, seconds and rate.  Out: committed changes, and counters to read at any time.
Invariant: every statement changes as many rows as planned, or the workload fails; the plan's set of rows is therefore
correct, and a rolled-back change that took effect would be detected here.
Must not: depend on cdcd.
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

from cdcd.demo.plan import LoadedRows, Step, Transaction, Writer, bulk_steps

WRITERS = 3


class WorkloadFailed(Exception):
    """A statement failed, or changed another number of rows than planned."""


@dataclass(slots=True)
class Counters:
    """The transactions and changes so far. The workload's threads write under `lock`; any thread may read."""

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
        loaded: LoadedRows,
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
        """Start the threads and return at once."""
        self._started_at = self._counted_from = time.monotonic()
        for thread in self._threads:
            thread.start()

    def count(self) -> None:
        """Start the workload's seconds now, if they did not start with the first change (`is_counted`)."""
        if not self._counted.is_set():
            self._counted_from = time.monotonic()
            self._counted.set()

    def stop(self) -> None:
        """Request an early end; an open transaction is finished or rolled back. Call `wait` afterwards."""
        self._stopping.set()
        self._counted.set()

    @property
    def is_running(self) -> bool:
        """Whether a thread runs. Raises WorkloadFailed as soon as one has failed."""
        if self._failures:
            self.stop()
            raise WorkloadFailed(self._failures[0])
        return any(thread.is_alive() for thread in self._threads)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until every thread has ended. Raises WorkloadFailed if one of them failed."""
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
                # a writer below its rate continues at full speed and skips nothing
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
                    return  # closing the connection rolls the transaction back
                run_step(cursor, step)
                with self.counters.lock:
                    self.counters.bulk_changes += step.rows or 0
                self._stopping.wait(0.1)  # so that the writers commit in between
            connection.commit()
            with self.counters.lock:
                self.counters.is_bulk_committed = True
                self.counters.transactions += 1
                self.counters.changes += self.counters.bulk_changes

    def _is_over(self) -> bool:
        return self._counted.is_set() and time.monotonic() - self._counted_from >= self._seconds


def perform(connection: psycopg2.extensions.connection, transaction: Transaction) -> None:
    """Run one transaction to its end. Raises WorkloadFailed if a step changes other rows than planned."""
    with connection.cursor() as cursor:
        for step in transaction.steps:
            run_step(cursor, step)
    if transaction.is_committed:
        connection.commit()
    else:
        connection.rollback()


def run_step(cursor: psycopg2.extensions.cursor, step: Step) -> None:
    """Run one statement. Raises WorkloadFailed if it changes another number of rows than planned."""
    cursor.execute(step.sql, step.values)
    if step.rows is not None and cursor.rowcount != step.rows:
        raise WorkloadFailed(f"{step.sql}: {cursor.rowcount} rows instead of {step.rows}")
