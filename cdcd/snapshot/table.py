"""Copy one table as an exported snapshot sees it.

In: a function that connects, a snapshot's name, a table with its published columns and row filter (F41).
Out: batches of Insert frames, a bounded number of them ahead of the reader.
Invariant: the rows are those of the slot's consistent point (F36). With row-level security the copy fails rather than
returning fewer rows (F73). It also fails if the table's file was replaced since, unless it is proven that no row is
missing (F81, replaced_files.py): the snapshot does not see rewritten rows, and logical decoding does not send them.
Must not: decide which tables are copied, or lock a table longer than its copy takes.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2
import structlog
from psycopg2 import sql

from cdcd.errors import CdcdError, SnapshotStale
from cdcd.model import RowBatch
from cdcd.ops.notices import log_notices
from cdcd.snapshot.copy_text import row_batch_of
from cdcd.snapshot.publication_versions import publication_versions
from cdcd.snapshot.replaced_files import Fate, fate_of, is_regrouped, replaced_files

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
_ENDED_HINT = (
    "the snapshot restarts by itself; if this repeats, a proxy or idle_session_timeout ends idle connections"
)
_CHANGED = "a publication was changed after the snapshot was taken"
_CHANGED_HINT = "the snapshot restarts by itself, with the tables that are then published"
_EMPTIED_HINT = (
    "the table, or a partition of it, was truncated or emptied after the snapshot was taken; its earlier rows are "
    "not copied: the TRUNCATE or the deletes are in the stream"
)

RUN_BYTES = 256 * 1024
BATCHES_AHEAD = 4
PATIENCE_S = 1.0
"""How long a cancelled copy may wait for the server's next row."""
Connect = Callable[[], Any]
Translate = Callable[[psycopg2.Error], CdcdError]
Watch = Callable[[Any], contextlib.AbstractContextManager[None]]
"""A context manager around a statement on a connection that may wait for a lock."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The parts of one relation that are copied. `is_partitioned`: it is read with its partitions."""

    relid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    row_filter: str | None
    is_partitioned: bool


_GONE = frozenset({"42P01", "42703", "3F000"})  # no such table, column, schema: renamed or dropped since
_NO_SNAPSHOT = frozenset({"22023", "42704"})  # the first up to PostgreSQL 16, the second from 17 on

# After a rename, later changes are in another topic. A table that is not in the snapshot was created since: all of
# its rows are in the stream.
_IS_THERE = """
    SELECT to_regclass(%(quoted)s)::oid IS NOT DISTINCT FROM %(relid)s::oid AND NOT EXISTS (
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = %(relid)s AND (n.nspname::text, c.relname::text) <> (%(schema)s, %(name)s))
"""


class _Cancelled(Exception):
    """The reader of the batches has stopped."""


class SnapshotReader:
    """One connection; each `copy` is a separate transaction with the exported snapshot."""

    def __init__(
        self,
        connect: Connect,
        translate: Translate,
        snapshot_name: str,
        watch: Watch = contextlib.nullcontext,
    ) -> None:
        self._connect = connect
        self._watch = watch
        self._translate = translate
        self._snapshot_name = snapshot_name
        self._cancelled = threading.Event()
        self._abandoned = threading.Event()
        self._connection = connect()

    def _enter(self, cursor: Any) -> None:
        cursor.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            cursor.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self._snapshot_name)))
        except psycopg2.Error as error:
            if error.pgcode in _NO_SNAPSHOT:
                raise SnapshotStale(
                    "the exported snapshot ended with the connection that exported it", hint=_ENDED_HINT
                ) from error
            raise
        cursor.execute("SET LOCAL row_security = off")  # F73
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # F37

    def check_publications(self, names: Sequence[str]) -> None:
        """Compare the current publications with those of the snapshot, after the tables to copy were read (blocking).

        Raises SnapshotStale if a publication was changed since, or a Source error.
        """
        try:
            with self._connection.cursor() as cursor:
                self._enter(cursor)
                before = publication_versions(cursor, names)
                cursor.execute("COMMIT")
            with contextlib.closing(self._connect()) as connection, connection.cursor() as cursor:
                now = publication_versions(cursor, names)
        except psycopg2.Error as error:
            raise self._translate(error) from error
        if before != now:
            raise SnapshotStale(_CHANGED, hint=_CHANGED_HINT)

    def _hold(self, cursor: Any, table: CopiedTable) -> None:
        """Lock the table and its partitions against rewriting, and check that the snapshot sees their rows.

        Not by LOCK TABLE, which needs a privilege on the whole table; the role may have it on some columns only.
        """
        cursor.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(_source(table)))
        name = sql.Identifier(table.schema, table.name).as_string(cursor)
        cursor.execute(
            _IS_THERE, {"quoted": name, **{key: getattr(table, key) for key in ("relid", "schema", "name")}}
        )
        ((is_there,),) = cursor.fetchall()
        is_there = is_there and not (table.is_partitioned and is_regrouped(cursor, table.relid))
        files = replaced_files(cursor, table.relid, is_partitioned=table.is_partitioned) if is_there else ()
        fate = fate_of(files) if is_there else Fate.STALE
        if fate is Fate.STALE:
            raise _stale(table)
        if fate is Fate.EMPTIED:
            _LOG.warning("copied_as_empty", table=f"{table.schema}.{table.name}", hint=_EMPTIED_HINT)

    def copy(self, table: CopiedTable, lsn: int) -> Iterator[RowBatch]:
        """Yield the table's rows as batches (blocking). Raises SnapshotStale, Source errors."""
        batches: queue.Queue[RowBatch | BaseException | None] = queue.Queue(BATCHES_AHEAD)
        collector = _Collector(batches, table, lsn, self._cancelled)
        worker = threading.Thread(target=self._copy, args=(table, collector), daemon=True)
        worker.start()
        try:
            while (item := self._next(batches)) is not None:
                if isinstance(item, psycopg2.Error):
                    raise _stale(table) if item.pgcode in _GONE else self._translate(item) from item
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._cancelled.set()
            hang_up_s = time.monotonic() + PATIENCE_S
            while worker.is_alive():  # a full queue must not block the worker
                with contextlib.suppress(queue.Empty):
                    batches.get(timeout=0.05)
                if time.monotonic() > hang_up_s:
                    self._hang_up()  # the worker waits for a server that does not send
            self._cancelled.clear()

    def _copy(self, table: CopiedTable, collector: _Collector) -> None:
        try:
            with self._connection.cursor() as cursor:
                self._enter(cursor)
                with self._watch(self._connection):
                    self._hold(cursor, table)
                cursor.copy_expert(self._statement(table).as_string(cursor), collector)
                cursor.execute("COMMIT")
            collector.finish()
        except _Cancelled:
            pass  # the reader has stopped and waits only for this thread's end
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            with contextlib.suppress(_Cancelled):
                collector.put(error)
        finally:
            log_notices(self._connection.notices)

    def _next(self, batches: queue.Queue[RowBatch | BaseException | None]) -> RowBatch | BaseException | None:
        """Wait for the next item; return None at the end, and after `abandon`."""
        while not self._abandoned.is_set():
            with contextlib.suppress(queue.Empty):
                return batches.get(timeout=0.1)
        return None

    def abandon(self) -> None:
        """End the wait for the next batch, since the server may never send one. May be called from any thread."""
        self._abandoned.set()

    def _hang_up(self) -> None:
        """Shut down the socket on which the worker thread waits."""
        with (
            contextlib.suppress(OSError, psycopg2.Error),
            socket.fromfd(self._connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as ours,
        ):
            ours.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _statement(table: CopiedTable) -> sql.Composable:
        columns = sql.SQL(", ").join(sql.Identifier(column) for column in table.columns)
        query = sql.SQL("SELECT {} FROM {}").format(columns, _source(table))
        if table.row_filter:
            query += sql.SQL(" WHERE " + table.row_filter)  # the server's own expression
        return sql.SQL("COPY ({}) TO STDOUT").format(query)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _source(table: CopiedTable) -> sql.Composable:
    name = sql.Identifier(table.schema, table.name)
    return sql.SQL("{}" if table.is_partitioned else "ONLY {}").format(name)


def _stale(table: CopiedTable) -> SnapshotStale:
    return SnapshotStale(
        "the table's file, name or partitions were changed after the snapshot was taken, so the snapshot may not see "
        "all of its rows",
        table=f"{table.schema}.{table.name}",
    )


class _Collector:
    """The file that COPY writes its lines to."""

    def __init__(
        self,
        batches: queue.Queue[RowBatch | BaseException | None],
        table: CopiedTable,
        lsn: int,
        cancelled: threading.Event,
    ) -> None:
        self._batches = batches
        self._table = table
        self._lsn = lsn
        self._cancelled = cancelled
        self._lines: list[bytes] = []
        self._size_bytes = 0

    def write(self, data: bytes) -> int:
        """Receive one row as libpq passes it: a complete line with its newline."""
        self._lines.append(data[:-1])
        self._size_bytes += len(data)
        if self._size_bytes >= RUN_BYTES:
            self._emit()
        return len(data)

    def _emit(self) -> None:
        batch = row_batch_of(self._table.relid, self._lines, len(self._table.columns), self._lsn)
        self._lines, self._size_bytes = [], 0
        self.put(batch)

    def put(self, item: RowBatch | BaseException | None) -> None:
        """Put an item into the queue. Raises _Cancelled when the reader has stopped."""
        while not self._cancelled.is_set():
            try:
                self._batches.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
        raise _Cancelled

    def finish(self) -> None:
        """Pass on the last rows and the end marker."""
        if self._lines:
            self._emit()
        self.put(None)
