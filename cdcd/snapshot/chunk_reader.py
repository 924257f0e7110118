"""Read the chunks of one table over one connection, each in a snapshot of its own. Blocking.

In: a function that connects, the publications, a table.  Out: `Description`s, `ChunkSnapshot` chunks, their rows.
Invariant: a chunk's snapshot is taken first. Then the table is locked against rewriting, and compared with its
description and its file (F73, F81); then the end LSN is read: every transaction that the snapshot sees, and every
change of the table's columns so far, has its commit record below it.
Must not: decide what is read next, or whether rows are emitted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import psycopg2
from psycopg2 import sql

from cdcd.avro.tuple_data import cut_tuple
from cdcd.errors import (
    CdcdError,
    PublicationMissing,
    SnapshotRefused,
    SnapshotStale,
    SourceSetup,
    SourceUnavailable,
)
from cdcd.frame_layout import FRAME_BYTES, RELID_BYTES, relid_at
from cdcd.lsn import Lsn, end_of_commits, parse_lsn
from cdcd.model import FLUSH_PREFIX, KeyValues, RowBatch
from cdcd.ops.notices import log_notices
from cdcd.snapshot.chunk_sql import KEY_COLUMNS, no_rows, rows_after, rows_of_blocks, rows_of_keys
from cdcd.snapshot.chunk_values import (
    CatalogVersions,
    ChunkSnapshot,
    ChunkTable,
    Description,
    FindPublished,
    NotPublished,
    Piece,
    ReadRows,
    ServerAndTimeline,
)
from cdcd.snapshot.condition import OF_COMMAND, check_rules, source_of
from cdcd.snapshot.copy_rows import CopyRows
from cdcd.snapshot.key_sql import KeyColumn, key_columns
from cdcd.snapshot.load_limits import Sessions
from cdcd.snapshot.publication_versions import publication_versions
from cdcd.snapshot.replaced_files import Fate, fate_of, is_regrouped, replaced_files
from cdcd.snapshot.running_xids import RUNNING
from cdcd.snapshot.table_copy import Chunk, KeysChunk
from cdcd.snapshot.units import Blocks, CopiedTable
from cdcd.snapshot.visibility import Snapshot, snapshot_function
from cdcd.source.copy_out import CopyOut
from cdcd.source.deadline import hang_up
from cdcd.source.locks import is_lock_timeout, lock_holders
from cdcd.source.publication_catalog import fetch_while_tables_go

SLICE_BYTES = 64 * 1024
"""Rows that are emitted at once: the stream waits for them."""
MAX_CHUNK_BYTES = 4 * 1024 * 1024
Connect = Callable[[], Any]
Pause = Callable[[float, int], float]
"""Returns how long to pause after work of this duration for these bytes."""
Translate = Callable[[psycopg2.Error], CdcdError]

_BEGIN = """
    BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL row_security = off;
    SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = 0;
    SET LOCAL lock_timeout = '5s'
"""
# Without a wait for a synchronous standby, which may be away.
FLUSH_WAL = """
    SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, %s, '')
"""
# The timeline is the beginning of a WAL file's name.
_SERVER = """
    SELECT current_setting('wal_block_size')::int, pg_size_bytes(current_setting('wal_segment_size')),
           (SELECT system_identifier::text FROM pg_control_system()),
           pg_walfile_name(pg_current_wal_insert_lsn())
"""
# What a description depends on: any change of the table's or an index's catalog rows changes it.
_VERSIONS = """
    SELECT c.oid::int8, c.xmin::text, n.nspname::text, c.relname::text,
           (SELECT array_agg(a.attnum || ' ' || a.xmin::text ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
           (SELECT array_agg(i.indexrelid::int8 || ' ' || i.xmin::text ORDER BY i.indexrelid)
            FROM pg_index i WHERE i.indrelid = c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""
# A row of pg_inherits has the transaction that attached the partition. The size is that of all its own partitions.
_PARTITIONS = """
    SELECT t.relid::oid || ':' || coalesce(i.xmin::text, ''),
           (SELECT coalesce(sum(pg_relation_size(leaf.relid)), 0) = 0 FROM pg_partition_tree(t.relid) leaf)
    FROM pg_partition_tree(%s::oid) t
    LEFT JOIN pg_inherits i ON i.inhrelid = t.relid AND i.inhparent = t.parentrelid
    WHERE t.level > 0 ORDER BY t.relid::oid
"""
_PRESENCE = """
    WITH names AS (SELECT %s::text[] AS names)
    SELECT EXISTS (SELECT FROM pg_class c WHERE c.oid = {relid}),
           EXISTS (SELECT FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
                   JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
                   WHERE t.pubname = ANY(names.names) AND c.oid = {relid}),
           ARRAY(SELECT name FROM unnest(names.names) name
                 WHERE NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = name) ORDER BY name)
    FROM names
"""
_EXISTING = "SELECT c.oid::int8 FROM pg_class c WHERE c.oid = ANY(%s::oid[])"
# The name as it is resolved now, not as of the snapshot.
_IS_STILL = "SELECT to_regclass(%s)::oid IS NOT DISTINCT FROM %s::oid"
_ESTIMATE = """
    SELECT sum(c.reltuples)::int8, bool_or(c.reltuples < 0 OR c.reltuples = 0 AND c.relpages = 0)
    FROM pg_class c WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%(relid)s::oid) WHERE isleaf)
       OR c.oid = %(relid)s AND c.relkind = 'r'
"""
# All of cdcd's connections have the same application_name. Without pg_read_all_stats state and backend_type of other
# roles' sessions are null; only client sessions have a database and a role.
_SESSIONS = """
    SELECT count(*) FILTER (WHERE state = 'active'), count(*) FILTER (WHERE state IS NULL)
    FROM pg_stat_activity
    WHERE coalesce(backend_type, 'client backend') = 'client backend' AND datid IS NOT NULL AND usesysid IS NOT NULL
          AND pid <> pg_backend_pid() AND application_name IS DISTINCT FROM current_setting('application_name')
"""
_FILE = """
    SELECT pg_relation_filenode(c.oid)::int8, pg_relation_size(c.oid) / current_setting('block_size')::int8,
           n.nspname::text, c.relname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""
_NOT_PUBLISHED_HINT = (
    "add the table to the publication; of a partitioned table name the partitions, with "
    "publish_via_partition_root the partitioned table itself"
)
_MISSING_HINT = "create the publication again, or give it its name again; cdcd tries again"
_NO_KEY_HINT = (
    "an incremental snapshot reads by key: give the table a primary key, or a unique index as its replica identity, "
    "and VALIDATE a NOT NULL constraint of the key that is NOT VALID; or run `cdcd snapshot start --table "
    "{table} --blocking --recopy`, which stops the stream while it copies"
)
NO_PRIVILEGE, _READ_ONLY, _DATA_EXCEPTION = "42501", "25006", "22"
"""SQLSTATEs; the last is a class. Row-level security that applies is a missing privilege, too."""
GRANT_HINT = (
    "GRANT the role SELECT on the table, and USAGE on its schema and on the schemas of its key's types; if row-level "
    "security applies to the role, ALTER ROLE ... BYPASSRLS"
)
_NO_RIGHT_HINT = (
    f"{GRANT_HINT}. Then repeat the command; a copy that has begun continues with `cdcd snapshot resume`"
)
_CONDITION_HINT = (
    "run `cdcd snapshot start --table {table} --where ...` with a condition that only reads, and that the server "
    "can evaluate for every row. If the condition is in snapshot.overrides: correct it there, restart cdcd, and "
    "run this command with the same condition and --recopy"
)
_BINARY_HINT = "set source.protocol.binary: false, and restart cdcd; or copy the table with --blocking"


def no_pause(_used_s: float, _size_bytes: int) -> float:
    """Return that no pause is needed."""
    return 0.0


class ChunkReader:
    """One connection, for one table at a time."""

    def __init__(
        self,
        connect: Connect,
        translate: Translate,
        publications: Sequence[str],
        published: FindPublished,
        server: ServerAndTimeline,
    ) -> None:
        """Connect (blocking). Raises Source errors; SourceUnavailable if another server or timeline answers."""
        self._translate = translate
        self._publications = publications
        self._published = published
        self._rows_read = 0
        self._connection = connect()
        try:
            ((self._block_bytes, self._segment_bytes, identifier, wal_file),) = self._rows(_SERVER)
        except BaseException:
            self._connection.close()
            raise
        if (identifier, int(wal_file[:8], 16)) != server:
            self._connection.close()
            raise SourceUnavailable(
                "the connection for the snapshot leads to another server than that of the stream"
            )

    def running(self) -> list[tuple[Any, ...]]:
        """Return the transactions that may be inside their commit: rows of `RUNNING`."""
        return self._rows(RUNNING)

    def sessions(self) -> Sessions:
        """Return the sessions that load the server, without cdcd's own. Raises Source errors."""
        ((active, hidden),) = self._rows(_SESSIONS)
        return Sessions(active, hidden)

    def take_rows_read(self) -> int:
        """Return the number of rows read since the last call."""
        rows, self._rows_read = self._rows_read, 0
        return rows

    def existing(self, relids: Sequence[int]) -> set[int]:
        """Return those of these tables that exist. Raises Source errors."""
        return {relid for (relid,) in self._rows(_EXISTING, (list(relids),))}

    def look(self, relid: int) -> CatalogVersions:
        """Return the row versions of a table's catalog rows. Raises Source errors."""
        with self._transaction():
            return CatalogVersions(self._versions(relid), self._end_lsn())

    def describe(
        self, relid: int, where: str | None, seen: CatalogVersions, is_by_key: bool = True
    ) -> Description | None:
        """Return a table's description, None if it has changed since it was seen.

        `is_by_key`: its rows are read by key, so that it needs one.
        To be called when everything below the end LSN was received: the schemas of a table are registered in the
        order of its changes. Raises SnapshotRefused if the table cannot be copied, and Source errors.
        """
        with self._transaction():
            versions = self._versions(relid)
            if versions != seen.versions:
                return None
            found = self._published(relid)
            if found is not None:
                table = replace(found.table, where=where)
                self._check_readable(table)
                key = self._key(table, found) if is_by_key else ()
                if key:
                    with self._readable(table):
                        self._execute(no_rows(table, key))
                return self._described(table, found, key, versions)
        raise self._refusal(relid, _title_of(versions, relid))

    def _check_readable(self, table: CopiedTable) -> None:
        """Check the rules and the role's rights before a recopy empties the table at the readers."""
        with self._translated(), self._connection.cursor() as cursor:
            check_rules(cursor, table, OF_COMMAND)
        columns = sql.SQL(", ").join(map(sql.Identifier, table.selected))
        with self._readable(table):
            self._execute(sql.SQL("SELECT {} FROM {} LIMIT 0").format(columns, source_of(table)))

    def _refusal(self, relid: int, title: str) -> CdcdError:
        """Return the reason why a table was not found among the published ones.

        Another connection has looked: only this one is known to lead to the stream's server. While a publication is
        missing, its tables are not known: it may have another name for a moment.
        """
        try:
            ((exists, is_published, missing),) = fetch_while_tables_go(
                self._connection, _PRESENCE.format(relid=relid), self._publications, self._ask
            )
        except PublicationMissing as error:  # dropped while it was listed
            return SourceUnavailable(error.message, hint=_MISSING_HINT, table=title)
        if not exists:
            return NotPublished("the table was dropped", hint=_NOT_PUBLISHED_HINT, table=title)
        if not (is_published or missing):
            return NotPublished("the table is not published", hint=_NOT_PUBLISHED_HINT, table=title)
        if is_published:  # by an ancestor in another publication, or by now
            return SnapshotRefused("the table is not published", hint=_NOT_PUBLISHED_HINT, table=title)
        return SourceUnavailable(
            f"a publication does not exist: {', '.join(missing)}", hint=_MISSING_HINT, table=title
        )

    def _ask(self, _connection: Any, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._transaction():
            return self._rows(statement, parameters)

    def _key(self, table: CopiedTable, found: ChunkTable) -> tuple[KeyColumn, ...]:
        if found.unreadable is not None:
            raise SnapshotRefused(
                "an incremental snapshot cannot read this key's values from the stream in binary format",
                hint=_BINARY_HINT,
                table=table.title,
                column=found.unreadable,
            )
        names = found.key_names
        key = key_columns(self._rows(KEY_COLUMNS, {"relid": table.relid, "columns": list(names)}))
        if not names or not key or not {column.name for column in key} <= set(table.columns):
            hint = _NO_KEY_HINT.format(table=table.title)
            raise SnapshotRefused(
                "the table has no key, which an incremental snapshot needs", hint=hint, table=table.title
            )
        return key

    def _described(
        self,
        table: CopiedTable,
        found: ChunkTable,
        key: tuple[KeyColumn, ...],
        versions: tuple[object, ...],
    ) -> Description:
        ((rows, is_unknown),) = self._rows(_ESTIMATE, {"relid": table.relid})
        is_part = is_unknown or table.row_filter or table.where
        partitions = self._partitions(table) if table.is_partitioned else []
        return Description(
            table,
            found.relation,
            found.key_names,
            key,
            versions,
            tuple(name for name, _ in partitions),
            frozenset(name for name, is_empty in partitions if is_empty),
            None if is_part else rows,
        )

    # --- one chunk ---

    def begin(self, described: Description) -> ChunkSnapshot | None:
        """Begin the transaction of a chunk; None if the table has changed: describe it again.

        Raises SnapshotStale if this snapshot may not see all rows: the next one does.
        """
        table = described.table
        with self._ended_by_errors():
            self._execute(_BEGIN)
            function = snapshot_function(self._connection.server_version)
            ((text,),) = self._rows(f"SELECT {function}()::text")
            with self._readable(table):
                self._execute(sql.SQL("SELECT FROM {} LIMIT 0").format(source_of(table)))
            self._execute("SET LOCAL lock_timeout = 0")
            if self._is_changed(described):
                self.end()
                return None
            files = self._files(table)
            if fate_of(files) is Fate.STALE:
                raise SnapshotStale("the table's file was replaced", table=table.title)
            return ChunkSnapshot(Snapshot.parse(text), self._end_lsn())

    def piece_of(self, described: Description, blocks: Blocks, pages: int) -> Piece | None:
        """Return the next `pages` of a range; None if its file was replaced since the range was planned."""
        rows = self._rows(_FILE, (blocks.leaf or described.table.relid,))
        if not rows or rows[0][0] != blocks.node:
            return None
        ((_, end, schema, name),) = rows
        leaf = (schema, name) if blocks.leaf else None
        last = end if blocks.end is None else min(blocks.end, end)
        if blocks.first + pages >= last:
            return Piece(blocks, None, leaf)
        at = blocks.first + pages
        return Piece(replace(blocks, end=at), replace(blocks, first=at), leaf)

    def read_blocks(
        self,
        described: Description,
        piece: Piece,
        lsn: Lsn,
        *,
        max_bytes: int = MAX_CHUNK_BYTES,
        pause_s: Pause = no_pause,
    ) -> ReadRows:
        """Read the rows of these blocks, and end the transaction."""
        blocks = piece.blocks
        statement = rows_of_blocks(described.table, blocks.first, blocks.end, piece.leaf)
        return self._read(described, statement, lsn, max_bytes, pause_s)

    def read(
        self,
        described: Description,
        chunk: Chunk,
        limit: int,
        lsn: Lsn,
        *,
        max_bytes: int = MAX_CHUNK_BYTES,
        pause_s: Pause = no_pause,
    ) -> ReadRows:
        """Read a chunk's rows, at most `limit` or about `max_bytes` of them, and end the transaction."""
        table = described.table
        if isinstance(chunk, KeysChunk):
            by_name = {column.name: column for column in described.key}
            named = [by_name[name] for name in described.key_names]
            statement = rows_of_keys(table, named, chunk.keys.values())
        else:
            statement = rows_after(table, described.key, chunk.after, limit)
        read = self._read(described, statement, lsn, max_bytes, pause_s)
        rows = sum(batch.count for batch, _ in read.slices)
        is_last = isinstance(chunk, KeysChunk) or rows < limit
        return read._replace(is_last=read.is_last and is_last)

    def _read(
        self, described: Description, statement: str, lsn: Lsn, max_bytes: int, pause_s: Pause
    ) -> ReadRows:
        with self._fitting(described.table), self._ended_by_errors(), self._readable(described.table):
            read = self._slices(described, statement, lsn, max_bytes, pause_s)
        self.end()
        self._rows_read += sum(batch.count for batch, _ in read.slices)
        return read

    def _slices(
        self, described: Description, statement: str, lsn: Lsn, max_bytes: int, pause_s: Pause
    ) -> ReadRows:
        table = described.table
        rows = CopyRows(table.relid, len(table.columns), lsn, omitted=table.omitted)
        copying = CopyOut(self._connection)
        copying.begin(statement)
        slices: list[tuple[RowBatch, KeyValues]] = []
        size_bytes, has_more = 0, True
        while has_more:
            began_s, before_bytes = time.monotonic(), size_bytes
            has_more = copying.read(rows, SLICE_BYTES)
            if (taken := rows.take()) is not None:
                batch, last_at = taken
                slices.append((batch, _key_of(described, batch.frames, last_at)))
                size_bytes += len(batch.frames)
            # The server waits meanwhile: what the connection holds is read at once.
            time.sleep(pause_s(time.monotonic() - began_s, size_bytes - before_bytes))
            if has_more and size_bytes >= max_bytes:
                self._connection.cancel()
                self._drain(copying, rows)
                return ReadRows(slices, is_last=False, is_cut=True, size_bytes=size_bytes)
        return ReadRows(slices, is_last=True, is_cut=False, size_bytes=size_bytes)

    @staticmethod
    def _drain(copying: CopyOut, rows: Any) -> None:
        """Read what is left of a cancelled copy."""
        with contextlib.suppress(CdcdError):
            while copying.read(rows, SLICE_BYTES):
                rows.take()

    def flush_wal(self) -> None:
        """Have the server write its WAL to disk: the stream only sends such WAL.

        An idle server leaves the WAL of transactions without changes, of which a reading transaction may be one, in
        memory for seconds. A transaction with a logical message of cdcd's own, which is not data, ends that.
        """
        with contextlib.suppress(CdcdError):
            self._rows(FLUSH_WAL, (FLUSH_PREFIX,))

    def end(self) -> None:
        """End the transaction of a chunk. Raises Source errors."""
        self._execute("ROLLBACK")
        log_notices(self._connection.notices)

    def cancel(self) -> None:
        """Cancel the statement that runs, if one does. May be called in any thread."""
        with contextlib.suppress(psycopg2.Error):  # the connection is lost: so is the statement
            self._connection.cancel()

    def hang_up(self) -> None:
        """Shut down the connection: a thread that waits for the server gets an error. May be called in any thread."""
        hang_up(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # --- statements ---

    def _end_lsn(self) -> Lsn:
        ((insert_lsn,),) = self._rows("SELECT pg_current_wal_insert_lsn()::text")
        return end_of_commits(
            parse_lsn(insert_lsn), block_bytes=self._block_bytes, segment_bytes=self._segment_bytes
        )

    def _versions(self, relid: int) -> tuple[object, ...]:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(_VERSIONS, (relid,))
            table = [tuple(map(_hashable, row)) for row in cursor.fetchall()]
            return (*table, *publication_versions(cursor, self._publications))

    def _partitions(self, table: CopiedTable) -> list[tuple[str, bool]]:
        return [(name, is_empty) for name, is_empty in self._rows(_PARTITIONS, (table.relid,))]

    def _is_changed(self, described: Description) -> bool:
        table = described.table
        name = sql.Identifier(table.schema, table.name).as_string(self._connection)
        # The lock is on the table that has the name now; the snapshot may still show the name on another one.
        ((is_still,),) = self._rows(_IS_STILL, (name, table.relid))
        if not is_still or self._versions(table.relid) != described.versions:
            return True
        partitions = self._partitions(table) if table.is_partitioned else []
        return tuple(name for name, _ in partitions) != described.partitions

    def _files(self, table: CopiedTable) -> list[Any]:
        with self._translated(), self._connection.cursor() as cursor:
            if table.is_partitioned and is_regrouped(cursor, table.relid):
                raise SnapshotStale("a partition was attached or detached", table=table.title)
            return replaced_files(cursor, table.relid, is_partitioned=table.is_partitioned)

    def _rows(self, statement: Any, parameters: Any = None) -> list[tuple[Any, ...]]:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def _execute(self, statement: Any) -> None:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(statement)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._ended_by_errors():
            self._execute(_BEGIN)
            yield
        self.end()

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        try:
            yield
        except CdcdError as error:
            with contextlib.suppress(CdcdError):
                self.end()
            if not is_lock_timeout(error):
                raise
            holders = lock_holders(self._connection) or "no session any more"
            raise SourceUnavailable(f"the table is locked; locks on tables are held by {holders}") from error

    @contextlib.contextmanager
    def _readable(self, table: CopiedTable) -> Iterator[None]:
        """Name what a role needs to read a table, in an error that it may not."""
        try:
            yield
        except SourceSetup as error:
            if error.context.get("sqlstate") != NO_PRIVILEGE:
                raise
            raise SourceSetup(
                error.message, hint=_NO_RIGHT_HINT, table=table.title, sqlstate=NO_PRIVILEGE
            ) from error

    @contextlib.contextmanager
    def _fitting(self, table: CopiedTable) -> Iterator[None]:
        """Raise SnapshotRefused where the table's condition is the reason of an error."""
        try:
            yield
        except CdcdError as error:
            sqlstate = str(error.context.get("sqlstate") or "")
            writes = sqlstate == _READ_ONLY and not self._rows("SELECT pg_is_in_recovery()")[0][0]
            if table.where is None or not (writes or sqlstate.startswith(_DATA_EXCEPTION)):
                raise
            raise SnapshotRefused(
                f"the condition of the copy fails while rows are read: {error.message}",
                hint=_CONDITION_HINT.format(table=table.title),
                table=table.title,
                sqlstate=sqlstate,
            ) from error

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            raise self._translate(error) from error


def _title_of(versions: tuple[object, ...], relid: int) -> str:
    """Return the name of a table from the row versions of its catalog rows; its oid if it was dropped."""
    for row in versions:
        if isinstance(row, tuple) and len(row) > 3 and row[0] == relid:
            return f"{row[2]}.{row[3]}"
    return str(relid)


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _key_of(described: Description, frames: bytes, last_at: int) -> KeyValues:
    """Return the key of the last row of a slice, in the order of the index. Raises ProtocolError."""
    columns = described.table.columns
    position = last_at + FRAME_BYTES + relid_at(None) + RELID_BYTES + 1
    row, _, _ = cut_tuple(frames, position, len(frames), len(columns))
    values = [row[columns.index(column.name)] for column in described.key]
    return tuple(bytes(value).decode() for value in values if value is not None)
