"""The source's side of a comparison: one table in one snapshot, read in parts.

In: the source's settings, a table.  Out: the table as the snapshot has it, its view, sums by bucket, rows.
Invariant: the table is locked (ACCESS SHARE) before the snapshot is taken, so that no TRUNCATE and
no ALTER TABLE that rewrites is between the two: neither is MVCC-safe. Between two parts, and while the source is not
needed (`watched`), the lock is released as soon as another session waits for it, because all others would wait behind
that one. Only a logical message is written.
Must not: let a psycopg2 exception out, or contain a value in an error.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcd.errors import CdcdError
from cdcd.lsn import parse_lsn
from cdcd.model import VERIFY_PREFIX
from cdcd.schema.policy import Policies
from cdcd.snapshot.key_sql import qualified
from cdcd.snapshot.table_files import files_of
from cdcd.snapshot.units import UNIT_PAGES, CopiedTable, TableFile, estimated_rows, units_of
from cdcd.snapshot.visibility import Snapshot, snapshot_function
from cdcd.source.catalog import Catalog
from cdcd.source.connection import STARTED, connect_sql, fetch, translated
from cdcd.source.key_check import record_key
from cdcd.source.locks import holders_named, is_lock_timeout, lock_holders, set_lock_timeout
from cdcd.source.publication_catalog import PublishedTable, published_tables
from cdcd.source.settings import SourceSettings
from cdcd.verify.columns import compared_column
from cdcd.verify.hashes import hash64
from cdcd.verify.outcome import CannotTell, GaveWay
from cdcd.verify.records import ComparedTable
from cdcd.verify.source_sql import Part, rows_of, sums_of
from cdcd.verify.visible import View

LOCK_TIMEOUT_MS = 4_000
_STATEMENT_LIMIT_S = 3_600.0
_FETCHED_ROWS = 5_000
_POLL_S = 0.05
_WATCH_S = 0.2
_BLOCK_RANGES_SINCE = 140_000
_PROBE = b"cdcd"
_BEHIND = "cdcd is behind, or halted, or a transaction stays prepared (two_phase)"
_CODECS = {
    "UTF8": "utf-8", "SQL_ASCII": "utf-8", "LATIN1": "iso8859-1", "LATIN2": "iso8859-2", "LATIN5": "iso8859-9",
    "LATIN9": "iso8859-15", "WIN1250": "cp1250", "WIN1251": "cp1251", "WIN1252": "cp1252", "KOI8R": "koi8_r",
}  # fmt: skip
"""Python's codecs that encode a text as the server has it. Not EUC_JP: some of its characters have two codes."""

# A waiting session makes all later ones wait, also those that only write. The snapshot's session has locks of more
# relations than the table: REINDEX stops all writers while it waits for that of an index.
_WAITS = """
    SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_locks o USING (locktype, database, relation)
                   WHERE o.locktype = 'relation' AND o.granted AND o.pid = %s AND NOT l.granted AND l.pid <> o.pid)
"""
_ATTNUMS = """
    SELECT a.attname::text, a.attnum::int, a.atttypid::int8, a.atttypmod
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attname::text = ANY(%s) ORDER BY a.attnum
"""
_NAMES = """
    SELECT c.oid::int8, n.nspname::text, c.relname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""
_MARKER = """
    SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(false, %s, '') END::text
"""
_LACKING = """
    SELECT count(*)::int FROM pg_publication p WHERE p.pubname = ANY(%s)
    AND NOT (p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate)
"""
# Of several publications with the table PostgreSQL sends what any of them publishes.
_ACTIONS = """
    SELECT bool_or(p.pubinsert), bool_or(p.pubupdate), bool_or(p.pubdelete), bool_or(p.pubtruncate)
    FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
    WHERE p.pubname = ANY(%s) AND t.schemaname = %s AND t.tablename = %s
"""
_CONFIRMED = "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(slots=True)
class OpenTable:
    """A table in its snapshot. `estimate`: the server's estimate of its rows, None without statistics.

    `read`: how many rows the server read for the sums of a part.
    """

    compared: ComparedTable
    view: View
    parts: tuple[Part, ...]
    row_filter: str | None
    pages: int
    estimate: int | None
    is_released: bool = False
    read: dict[Part, int] = field(default_factory=dict)


def _unpublished(actions: Sequence[bool | None]) -> list[str]:
    """Return the names of the actions that no publication of a table has."""
    names = ("insert", "update", "delete", "truncate")
    return [name for name, is_published in zip(names, actions, strict=True) if not is_published]


class Source:
    """Two connections to one server: one has the snapshot, the other one asks and writes the message.

    Raises Source errors, SourceUnavailable also if a name leads to several servers, and none is met twice.

    `first`: of the numbers of the sample's keys (`ComparedTable`).
    """

    def __init__(self, settings: SourceSettings, policies: Policies, first: int = 0) -> None:
        self._settings, self._policies, self._first = settings, policies, first
        self._silent: tuple[Any, ...] | None = None
        self._connect()

    def _connect(self) -> None:
        with contextlib.ExitStack() as opened:
            self._connection = opened.enter_context(contextlib.closing(connect_sql(self._settings)))
            # A message of another server says nothing about the snapshot.
            same = replace(self._settings, instance=fetch(self._connection, STARTED)[0][0])
            self._other = opened.enter_context(contextlib.closing(connect_sql(same)))
            self._catalog = opened.enter_context(contextlib.closing(Catalog(same)))
            self._set_up()
            opened.pop_all()

    def _set_up(self) -> None:
        for setting in ("row_security = off", "max_parallel_workers_per_gather = 0"):  # F73
            self._execute(f"SET {setting}")
        set_lock_timeout(self._connection, LOCK_TIMEOUT_MS)
        ((encoding, probe),) = fetch(
            self._connection,
            "SELECT getdatabaseencoding()::text, hashtextextended(%s, 1)",
            (_PROBE.decode(),),
        )
        if probe % (1 << 64) != hash64(_PROBE, 1):
            raise CannotTell("the server computes other hashes, because its processor is big-endian")
        if encoding not in _CODECS:
            raise CannotTell(f"the database's encoding {encoding} is not supported")
        self._codec = _CODECS[encoding]

    def renew(self) -> None:
        """Connect again after an error of the connections. Raises Source errors, CannotTell."""
        self.close()
        self._connect()

    def close(self) -> None:
        """Close the connections."""
        for one in (self._connection, self._other, self._catalog):
            one.close()

    def tables(self) -> list[PublishedTable]:
        """Return the published tables."""
        with holders_named(self._other, LOCK_TIMEOUT_MS):
            return published_tables(self._other, self._settings.publications)

    @contextlib.contextmanager
    def opened(self, table: PublishedTable, share: int, unit_pages: int = UNIT_PAGES) -> Iterator[OpenTable]:
        """Lock the table, take the snapshot and write the message; release both at the end. Raises CannotTell."""
        self._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            self._lock(table)
            yield self._open(table, share, unit_pages)
        finally:
            with contextlib.suppress(Exception):  # a broken connection has no snapshot any more
                self._execute("ROLLBACK")

    def _lock(self, table: PublishedTable) -> None:
        """Lock the table by a statement that takes no snapshot."""
        try:
            self._execute(f"LOCK TABLE {qualified((table.schema, table.name))} IN ACCESS SHARE MODE")
        except CdcdError as error:
            if not is_lock_timeout(error):
                raise
            holders = lock_holders(self._other) or "no session any more"
            raise CannotTell(f"a lock on the table was not available, held by {holders}") from None

    def _open(self, named: PublishedTable, share: int, unit_pages: int) -> OpenTable:
        function = snapshot_function(self._connection.server_version)
        ((text,),) = fetch(self._connection, f"SELECT {function}()::text")
        ((marker,),) = fetch(self._other, _MARKER, (VERIFY_PREFIX,))
        if marker is None:
            raise CannotTell("the server is a standby, whose snapshots do not list the running transactions")
        view = View(Snapshot.parse(text), parse_lsn(marker))
        found = published_tables(self._connection, self._settings.publications, only=named.relid)
        if not found:
            raise CannotTell("the table is not published any more")
        table = found[0]
        if (table.schema, table.name) != (named.schema, named.name):
            raise CannotTell("the table was renamed during the run; verify again")
        self._refuse(table)
        self._refuse_actions(table)
        compared = self._compared(table, share)
        parts, files = self._parts(table, unit_pages)
        pages = sum(file.pages for file in files)
        return OpenTable(compared, view, parts, table.row_filter, pages, estimated_rows(files))

    def _refuse(self, table: PublishedTable) -> None:
        title = f"{table.schema}.{table.name}"
        if table.has_row_security:
            raise CannotTell("row-level security hides rows from the role: grant it BYPASSRLS")
        if table.conflict:
            raise CannotTell(table.conflict)
        policy = self._policies.table(title)
        if policy.value == "flat":
            raise CannotTell("records of the flat format do not have the transaction's id")
        key = record_key(table, policy)
        if not key or not table.keys.is_unique(key):
            raise CannotTell("the table has no unique key, and the rows of such a table are not compared")

    def _refuse_actions(self, table: PublishedTable) -> None:
        """Raise CannotTell if PostgreSQL does not send every kind of change of the table."""
        names = list(self._settings.publications)
        if not fetch(self._connection, _LACKING, (names,))[0][0]:
            return
        ((*actions,),) = fetch(self._connection, _ACTIONS, (names, table.schema, table.name))
        if lacking := _unpublished(actions):
            raise CannotTell(
                f"the publication does not publish every change (publish): no {', '.join(lacking)}"
            )

    def _compared(self, table: PublishedTable, share: int) -> ComparedTable:
        rows = fetch(self._connection, _ATTNUMS, (table.relid, list(table.columns)))
        types = self._catalog.types(row[2] for row in rows)
        columns = tuple(
            compared_column(name, attnum, oid, typmod, types) for name, attnum, oid, typmod in rows
        )
        wanted = set(record_key(table, self._policies.table(f"{table.schema}.{table.name}")))
        key = tuple(number for number, column in enumerate(columns) if column.name in wanted)
        name = (table.schema, table.name)
        return ComparedTable(table.relid, *name, columns, key, types, self._codec, share, self._first)

    def _parts(self, table: PublishedTable, unit_pages: int) -> tuple[tuple[Part, ...], list[TableFile]]:
        copied = CopiedTable(
            table.relid, table.schema, table.name, table.columns, table.row_filter, table.is_partitioned
        )
        with translated(), self._connection.cursor() as cursor:
            files, _ = files_of(cursor, [copied], with_bounds=False)
        own = files.get(table.relid, [])
        names = {oid: (schema, name) for oid, schema, name in self._names(table.relid, own)}
        has_ranges = self._connection.server_version >= _BLOCK_RANGES_SINCE
        parts = []
        for unit in units_of(copied, own, has_block_ranges=has_ranges, unit_pages=unit_pages):
            relid = table.relid if unit.leaf is None else unit.leaf
            is_whole = table.is_partitioned and unit.leaf is None
            relation = ("" if is_whole else "ONLY ") + qualified(names[relid])
            parts.append(Part(relation, unit.condition))
        return tuple(parts), own

    def _names(self, relid: int, files: Sequence[Any]) -> list[tuple[Any, ...]]:
        relids = [relid, *(file.leaf for file in files if file.leaf is not None)]
        return fetch(self._connection, _NAMES, (relids,))

    # --- the digests

    def sums(self, table: OpenTable, part: Part) -> list[tuple[int, int, list[int]]]:
        """Return bucket, rows and the columns' sums of a part. Raises GaveWay, CannotTell."""
        self.give_way(table)
        statement = sums_of(table.compared, part, table.row_filter)
        rows = fetch(self._connection, statement, limit_s=_STATEMENT_LIMIT_S)
        return [(bucket, count, [int(one) for one in sums]) for bucket, count, *sums in rows]

    def rows(
        self, table: OpenTable, part: Part, buckets: Sequence[int], *, with_key: bool
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the hashes of the rows of some buckets. Raises GaveWay."""
        self.give_way(table)
        statement = rows_of(table.compared, part, table.row_filter, buckets, with_key=with_key)
        self._execute(f"DECLARE rows NO SCROLL CURSOR FOR {statement}")
        while rows := fetch(self._connection, f"FETCH {_FETCHED_ROWS} FROM rows", limit_s=_STATEMENT_LIMIT_S):
            yield rows
        self._execute("CLOSE rows")

    def give_way(self, table: OpenTable) -> None:
        """Raise GaveWay if the snapshot was released, or has to be because a session waits for a lock of it."""
        self.release_if_waited_for(table)
        if table.is_released:
            raise GaveWay

    def release_if_waited_for(self, table: OpenTable) -> None:
        """Release locks and snapshot if a session waits for one: of the table, its indexes, its partitions."""
        pid = self._connection.info.backend_pid
        if not table.is_released and fetch(self._other, _WAITS, (pid,))[0][0]:
            self._release(table)

    @contextlib.contextmanager
    def watched(self, table: OpenTable) -> Iterator[None]:
        """Within the block, which must not use the source, release the table as soon as a session waits for it."""
        ended = threading.Event()

        def watch() -> None:
            while not table.is_released and not ended.is_set():
                try:
                    self.release_if_waited_for(table)
                except CdcdError:  # what cannot be watched is not locked
                    self._release(table)
                ended.wait(_WATCH_S)

        watching = threading.Thread(target=watch, name="cdcd-verify-lock", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    def _release(self, table: OpenTable) -> None:
        table.is_released = True
        with contextlib.suppress(CdcdError):  # a broken connection has no lock any more
            self._execute("ROLLBACK")

    def _execute(self, statement: str) -> None:
        with translated(), self._connection.cursor() as cursor:
            cursor.execute(statement)

    # --- the stream

    def await_confirmed(self, table: OpenTable, timeout_s: float) -> None:
        """Wait until Kafka has all that was committed before the message, by the slot's confirmed LSN.

        A slot that nobody reads is waited for once, not for each table. Raises CannotTell.
        """
        lsn = table.view.marker_lsn
        deadline_s = time.monotonic() + timeout_s
        while True:
            rows = fetch(self._other, _CONFIRMED, (self._settings.slot,))
            if not rows or rows[0][0] is None:
                raise CannotTell(f"the slot {self._settings.slot} does not exist")
            if parse_lsn(rows[0][0]) >= lsn:
                return
            if time.monotonic() > deadline_s or rows[0] == self._silent:
                self._silent = None if rows[0][1] else rows[0]
                state = _BEHIND if rows[0][1] else "no cdcd reads the slot"
                raise CannotTell(
                    f"the changes up to the snapshot are not in Kafka within {timeout_s:g} s: {state}"
                )
            self.release_if_waited_for(table)
            time.sleep(_POLL_S)
