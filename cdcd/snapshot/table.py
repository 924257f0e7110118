"""Copy one table as an exported snapshot sees it.

In: a connection maker, a snapshot's name, a table with its published columns and row filter (F41).
Out: runs of Insert frames, a bounded number of them ahead of the reader.
Invariant: the rows are those of the slot's consistent point (F36); row-level security makes it fail rather
than return fewer rows (F73). Must not: decide what is copied.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import sql

from cdcd.errors import CdcdError
from cdcd.model import Run
from cdcd.snapshot.copy_text import run_of

RUN_BYTES = 256 * 1024
RUNS_AHEAD = 4
Connect = Callable[[], Any]
Translate = Callable[[psycopg2.Error], CdcdError]


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """What is copied of one relation. `is_partitioned`: read through the root, its partitions included."""

    relid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    row_filter: str | None
    is_partitioned: bool


class _Cancelled(Exception):
    """The reader of the runs has gone away."""


class SnapshotReader:
    """One connection inside the exported snapshot; `copy` may be called for one table after another."""

    def __init__(self, connect: Connect, translate: Translate, snapshot_name: str) -> None:
        self._translate = translate
        self._cancelled = threading.Event()
        self._connection = connect()
        try:
            self._enter(snapshot_name)
        except psycopg2.Error as error:
            self._connection.close()
            raise translate(error) from error

    def _enter(self, snapshot_name: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot_name)))
            cursor.execute("SET LOCAL row_security = off")  # F73
            cursor.execute("SET LOCAL statement_timeout = 0")
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # F37

    def copy(self, table: CopiedTable, lsn: int) -> Iterator[Run]:
        """Yield the table's rows as runs; blocking, to be iterated in a thread."""
        runs: queue.Queue[Run | BaseException | None] = queue.Queue(RUNS_AHEAD)
        collector = _Collector(runs, table, lsn, self._cancelled)
        worker = threading.Thread(target=self._copy, args=(table, collector), daemon=True)
        worker.start()
        try:
            while (item := runs.get()) is not None:
                if isinstance(item, psycopg2.Error):
                    raise self._translate(item) from item
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._cancelled.set()
            while worker.is_alive():  # whatever it still wants to put must not hold it up
                try:
                    runs.get(timeout=0.05)
                except queue.Empty:
                    continue
            self._cancelled.clear()

    def _copy(self, table: CopiedTable, collector: _Collector) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(self._statement(table).as_string(cursor), collector)
            collector.finish()
        except _Cancelled:
            pass  # the reader is gone and waits only for this thread's end
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            with contextlib.suppress(_Cancelled):
                collector.put(error)

    @staticmethod
    def _statement(table: CopiedTable) -> sql.Composable:
        source = sql.SQL("{}" if table.is_partitioned else "ONLY {}").format(
            sql.Identifier(table.schema, table.name)
        )
        columns = sql.SQL(", ").join(sql.Identifier(column) for column in table.columns)
        query = sql.SQL("SELECT {} FROM {}").format(columns, source)
        if table.row_filter:
            query += sql.SQL(" WHERE " + table.row_filter)  # the server's own expression
        return sql.SQL("COPY ({}) TO STDOUT").format(query)

    def close(self) -> None:
        """Give the snapshot up."""
        self._connection.close()


class _Collector:
    """The file that COPY writes its lines to."""

    def __init__(
        self,
        runs: queue.Queue[Run | BaseException | None],
        table: CopiedTable,
        lsn: int,
        cancelled: threading.Event,
    ) -> None:
        self._runs = runs
        self._table = table
        self._lsn = lsn
        self._cancelled = cancelled
        self._lines: list[bytes] = []
        self._size_bytes = 0

    def write(self, data: bytes) -> int:
        """Take one row, as libpq hands it on: a whole line with its newline."""
        self._lines.append(data[:-1])
        self._size_bytes += len(data)
        if self._size_bytes >= RUN_BYTES:
            self._emit()
        return len(data)

    def _emit(self) -> None:
        run = run_of(self._table.relid, self._lines, len(self._table.columns), self._lsn)
        self._lines, self._size_bytes = [], 0
        self.put(run)

    def put(self, item: Run | BaseException | None) -> None:
        """Hand on, or give up when nobody reads any more."""
        while not self._cancelled.is_set():
            try:
                self._runs.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
        raise _Cancelled

    def finish(self) -> None:
        """Hand on the last rows and the end."""
        if self._lines:
            self._emit()
        self.put(None)
