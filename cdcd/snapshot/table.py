"""Copy units of tables as an exported snapshot sees them.

In: a function that connects, a snapshot's name, units of tables with their published columns and row filter (F41).
Out: batches of Insert frames.
Invariant: the rows are those of the slot's consistent point (F36). With row-level security the copy fails rather than
returning fewer rows (F73). It also fails if the table's file was replaced since, unless it is proven that no row is
missing (F81, replaced_files.py): the snapshot does not see rewritten rows, and logical decoding does not send them.
Must not: decide which tables are copied, or lock a table longer than the copy of its units takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import psycopg2
import structlog
from psycopg2 import sql

from cdcd.errors import CdcdError, SnapshotStale, SourceUnavailable
from cdcd.model import RowBatch
from cdcd.ops.notices import log_notices
from cdcd.snapshot.condition import check_rules, failed_for_a_row, leaf_source, source_of
from cdcd.snapshot.copy_rows import CopyRows, CopyRowsInPython
from cdcd.snapshot.publication_versions import attached_to, publication_versions, with_rows
from cdcd.snapshot.replaced_files import Fate, fate_of, is_regrouped, replaced_files
from cdcd.snapshot.table_files import files_of, partitions_of
from cdcd.snapshot.units import UNIT_PAGES, Blocks, CopiedTable, CopyUnit, TableFile, estimated_rows, units_of
from cdcd.source.copy_out import CopyOut
from cdcd.source.deadline import hang_up
from cdcd.source.locks import lock_holders

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
_ENDED_HINT = (
    "the snapshot restarts by itself; if this repeats, a proxy or idle_session_timeout ends idle connections"
)
_NO_SNAPSHOT_ANY_MORE = "the exported snapshot ended with the connection that exported it"
_CHANGED = "a publication was changed after the snapshot was taken"
_ATTACHED = "a partition was attached after the snapshot was taken"
_CHANGED_HINT = "the snapshot restarts by itself, with the tables that are then published"
_EMPTIED_HINT = (
    "the table, or a partition of it, was truncated or emptied after the snapshot was taken; its earlier rows are "
    "not copied: the TRUNCATE or the deletes are in the stream"
)

BATCH_BYTES = 128 * 1024
BLOCK_RANGES_SINCE = 140_000
Connect = Callable[[], Any]
Translate = Callable[[psycopg2.Error | CdcdError], CdcdError]
Watch = Callable[[Any], contextlib.AbstractContextManager[None]]
"""A context manager around a statement on a connection that may wait for a lock."""


class CopiedRows(NamedTuple):
    """Consecutive rows of a unit. `last_at`: the offset of the last row's frame in the batch."""

    batch: RowBatch
    last_at: int


class SnapshotPlan(NamedTuple):
    """The units of a snapshot in their order; by relid the estimated rows of tables that have statistics, and the
    partitions."""

    units: list[CopyUnit]
    estimates: dict[int, int]
    partitions: dict[int, tuple[str, ...]]


class TableLocked(Exception):
    """Another session holds the lock of a table; its text names the sessions."""


_GONE = frozenset({"42P01", "42703", "3F000"})  # no such table, column, schema: renamed or dropped since
_NO_SNAPSHOT = frozenset({"22023", "42704"})  # the first up to PostgreSQL 16, the second from 17 on

# F73: row-level security. F37: time-outs that would end the copy.
_ENTER = """
    BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET TRANSACTION SNAPSHOT {};
    SET LOCAL row_security = off;
    SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = 0
"""
# After a rename, later changes are in another topic. A table that is not in the snapshot was created since: all of
# its rows are in the stream.
_IS_THERE = """
    SELECT to_regclass(%(quoted)s)::oid IS NOT DISTINCT FROM %(relid)s::oid AND NOT EXISTS (
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = %(relid)s AND (n.nspname::text, c.relname::text) <> (%(schema)s, %(name)s))
"""
_SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %s, true)"
# The name of a relation that was dropped since is its oid: regclass has the current state.
_LEAF_NAME = "SELECT %s::oid::regclass::text"


class SnapshotReader:
    """One connection. The units of a table that follow each other are copied in one transaction with the snapshot."""

    def __init__(
        self,
        connect: Connect,
        translate: Translate,
        snapshot_name: str,
        watch: Watch = contextlib.nullcontext,
        *,
        is_standby: bool = False,
    ) -> None:
        """`is_standby`: the snapshot is one of a standby, and `connect` leads there."""
        self._is_standby = is_standby
        self._connect = connect
        self._watch = watch
        self._translate = translate
        self._snapshot_name = snapshot_name
        self._locked_table: CopiedTable | None = None
        self._emptied: frozenset[int] = frozenset()
        """Of the locked table, it or those of its partitions whose files have no rows any more."""
        self._connection = connect()

    def check_publications(
        self, names: Sequence[str], tables: Sequence[CopiedTable], connect_now: Connect | None = None
    ) -> None:
        """Compare the current publications with those of the snapshot, after the tables to copy were read (blocking).

        `connect_now` leads to the server from which the tables were read.

        Raises SnapshotStale if a publication was changed since, or a partition of the tables was attached, or one of
        them to a partitioned table: changes before that were not published. A partition that was created as such, and
        is empty, has none. Raises Source errors.
        """
        relids = [table.relid for table in tables]
        with self._translated(), self._in_snapshot() as cursor:
            before, attached = publication_versions(cursor, names), attached_to(cursor, relids)
        with (
            self._translated(),
            contextlib.closing((connect_now or self._connect)()) as connection,
            connection.cursor() as cursor,
        ):
            now = publication_versions(cursor, names)
            new = with_rows(cursor, attached_to(cursor, relids) - attached)
        if before != now:
            raise SnapshotStale(_CHANGED, hint=_CHANGED_HINT)
        stale = {relid for relid, *_ in new}
        for table in tables:
            if table.relid in stale:
                raise SnapshotStale(_ATTACHED, hint=_CHANGED_HINT, table=table.title)

    def units(
        self,
        tables: Sequence[CopiedTable],
        rank: Callable[[CopiedTable, int], Any] | None = None,
        unit_pages: int = UNIT_PAGES,
    ) -> SnapshotPlan:
        """Divide the tables into units (blocking), in their order, or by `rank` of a table and its size in pages.

        Raises SnapshotStale, Source errors.
        """
        has_block_ranges = self._connection.server_version >= BLOCK_RANGES_SINCE
        with self._translated(), self._in_snapshot() as cursor, self._watch(self._connection):
            files, bounds = files_of(cursor, tables, with_bounds=not has_block_ranges)
            partitions = partitions_of(cursor, tables)
            for table in tables:
                check_rules(cursor, table)
        found: list[CopyUnit] = []
        if rank is not None:
            pages = {relid: sum(file.pages for file in of_table) for relid, of_table in files.items()}
            tables = sorted(tables, key=lambda table: rank(table, pages.get(table.relid, 0)))
        for table in tables:
            found += units_of(
                table,
                files.get(table.relid) or [TableFile(0)],
                has_block_ranges=has_block_ranges,
                bounds=bounds.get(table.relid),
                unit_pages=unit_pages,
            )
        # The server has no statistics of a part of a table's rows.
        whole = {table.relid for table in tables if not table.row_filter and not table.where}
        estimates = {
            relid: rows
            for relid, of_table in files.items()
            if relid in whole and (rows := estimated_rows(of_table)) is not None
        }
        return SnapshotPlan(found, estimates, partitions)

    def copy(self, unit: CopyUnit, lsn: int, lock_timeout_ms: int = 0) -> Generator[CopiedRows, None, None]:
        """Yield the unit's rows (blocking). Raises SnapshotStale, Source errors, ProtocolError.

        Raises TableLocked, before the first row, if another session holds the table's lock for longer than
        `lock_timeout_ms`; 0: there is no limit. The table stays locked for its next unit: call `release` after the
        last one.
        """
        table = unit.table
        try:
            if self._locked_table is not table:
                self.release()
                self._hold(table, lock_timeout_ms)
            statement = self._statement(unit)
            if statement is None:
                return
            rows = CopyRows(table.relid, len(table.columns), lsn, table.is_binary, table.omitted)
            yield from self._rows(statement, rows)
        except psycopg2.Error as error:
            raise _of_table(self._translate(error), table) from error
        except CdcdError as error:
            raise _of_table(self._translate(error), table) from error
        finally:
            log_notices(self._connection.notices)

    def _rows(self, statement: str, rows: CopyRowsInPython) -> Iterator[CopiedRows]:
        copying = CopyOut(self._connection)
        copying.begin(statement)
        while True:
            has_more = copying.read(rows, BATCH_BYTES)
            if (taken := rows.take()) is not None:
                yield CopiedRows(*taken)
            if not has_more:
                return

    def release(self) -> None:
        """End the transaction that holds a table (blocking). Raises Source errors."""
        if self._locked_table is None:
            return
        self._locked_table = None
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute("COMMIT")

    def hang_up(self) -> None:
        """Shut down the connection: a thread that waits for the server gets an error. May be called in any thread."""
        hang_up(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # --- one transaction ---

    @contextlib.contextmanager
    def _in_snapshot(self) -> Iterator[Any]:
        self.release()
        with self._connection.cursor() as cursor:
            self._enter(cursor)
            yield cursor
            cursor.execute("COMMIT")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            raise self._translate(error) from error

    def _enter(self, cursor: Any) -> None:
        try:
            cursor.execute(sql.SQL(_ENTER).format(sql.Literal(self._snapshot_name)))
        except psycopg2.Error as error:
            if error.pgcode in _NO_SNAPSHOT:
                raise SnapshotStale(_NO_SNAPSHOT_ANY_MORE, hint=_ENDED_HINT) from error
            raise

    def _hold(self, table: CopiedTable, lock_timeout_ms: int) -> None:
        """Lock the table and its partitions against rewriting, and check that the snapshot sees their rows.

        Not by LOCK TABLE, which needs a privilege on the whole table; the role may have it on some columns only.
        """
        with self._connection.cursor() as cursor:
            self._enter(cursor)
            cursor.execute(_SET_LOCK_TIMEOUT, (str(lock_timeout_ms),))
            try:
                with self._watch(self._connection):
                    self._check(cursor, table)
            except psycopg2.errors.LockNotAvailable:
                cursor.execute("ROLLBACK")
                raise TableLocked(lock_holders(self._connection)) from None
            cursor.execute(_SET_LOCK_TIMEOUT, ("0",))
        self._locked_table = table

    def _check(self, cursor: Any, table: CopiedTable) -> None:
        cursor.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(source_of(table)))
        name = sql.Identifier(table.schema, table.name).as_string(cursor)
        cursor.execute(
            _IS_THERE, {"quoted": name, **{key: getattr(table, key) for key in ("relid", "schema", "name")}}
        )
        ((is_there,),) = cursor.fetchall()
        is_there = is_there and not (table.is_partitioned and is_regrouped(cursor, table.relid))
        files = replaced_files(cursor, table.relid, is_partitioned=table.is_partitioned) if is_there else ()
        fate = fate_of(files, is_standby=self._is_standby) if is_there else Fate.STALE
        if fate is Fate.STALE:
            raise _stale(table)
        self._emptied = frozenset(file.relid for file in files if file.is_empty)
        if fate is Fate.EMPTIED:
            _LOG.warning("copied_as_empty", table=table.title, hint=_EMPTIED_HINT)

    def _statement(self, unit: CopyUnit) -> str | None:
        """Return the COPY of a unit; None if its partition was dropped, so that it has no rows any more."""
        table = unit.table
        source = source_of(table)
        if unit.leaf is not None:
            with self._connection.cursor() as cursor:
                cursor.execute(_LEAF_NAME, (unit.leaf,))
                ((name,),) = cursor.fetchall()
            if name.isdecimal():
                return None
            source = leaf_source(table, name)
        if isinstance(unit.range, Blocks) and unit.range.node and unit.condition:
            self._check_file(table, unit.range)
        columns = sql.SQL(", ").join(sql.Identifier(column) for column in table.selected)
        query = sql.SQL("SELECT {} FROM {}").format(columns, source)
        # The filter is the server's own expression.
        conditions = [f"({text})" for text in (unit.condition, table.row_filter, table.where) if text]
        if conditions:
            query += sql.SQL(" WHERE " + " AND ".join(conditions))
        form = sql.SQL("(FORMAT {})").format(sql.SQL("binary" if table.is_binary else "text"))
        statement: str = sql.SQL("COPY ({}) TO STDOUT {}").format(query, form).as_string(self._connection)
        return statement

    def _check_file(self, table: CopiedTable, blocks: Blocks) -> None:
        """Raise SnapshotStale if the blocks of another unit were read from another file: VACUUM FULL moves rows."""
        relid = blocks.leaf or table.relid
        if relid in self._emptied:
            return
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT pg_relation_filenode(%s::oid)::int8", (relid,))
            ((node,),) = cursor.fetchall()
        if node != blocks.node:
            raise _stale(table)


def _of_table(error: CdcdError, table: CopiedTable) -> CdcdError:
    """Return the error of a copy, with the table's name unless the connection failed."""
    if error.context.get("sqlstate") in _GONE:
        return _stale(table)
    if not isinstance(error, SourceUnavailable) and error.message != _NO_SNAPSHOT_ANY_MORE:
        error.context.setdefault("table", table.title)
    return failed_for_a_row(error, table)


def concerns_a_table(error: CdcdError) -> bool:
    """Return whether only the copy of one table has failed, so that the other tables can be copied."""
    return "table" in error.context


def _stale(table: CopiedTable) -> SnapshotStale:
    return SnapshotStale(
        "the table's file, name or partitions were changed after the snapshot was taken, so the snapshot may not see "
        "all of its rows",
        table=table.title,
    )
