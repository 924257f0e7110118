"""The incremental snapshot's core on a real server, under transactions that are visible late (F36).

The judge is that of the simulation: a reader never gets an older row after a newer one, and after a copy it has the
rows of the table at its position of the stream.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from cdcd.lsn import end_of_commits, parse_lsn
from cdcd.model import Record, TableCopyState
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import Begin, Commit, Delete, Insert, Update
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.chunk_sql import KEY_COLUMNS, key_of_line, rows_after, rows_of_keys
from cdcd.snapshot.key_sql import key_columns
from cdcd.snapshot.running_xids import RUNNING, RunningTransactions
from cdcd.snapshot.table import CopiedTable
from cdcd.snapshot.table_copy import (
    ChunkPosition,
    KeysChunk,
    RangeChunk,
    TableCopy,
    chunk_position,
)
from cdcd.snapshot.visibility import Snapshot
from cdcd.source.connection import connect_sql
from tests.simulator.incremental_server import Change, Row
from tests.simulator.incremental_server import Commit as Committed
from tests.simulator.incremental_topic import Event, Reader, Table
from tests.support.late_commits import TABLE, LateCommits
from tests.support.nightly import nightly
from tests.support.source import make_slot, settings_for
from tests.support.stack import PostgresServers, run_script

KEYS = 40
COPIES = 12
_CHANGES = """
    SELECT data FROM pg_logical_slot_get_binary_changes(
        current_database()::name, NULL, NULL, 'proto_version', '1', 'publication_names', 'pub')
"""


class Capture:
    """What the daemon does, with the slot's SQL functions as its stream; one copy of the table after another."""

    def __init__(self, stream: Any, chunks: Any, major: int, late: LateCommits) -> None:
        self.stream, self.chunks, self.late = stream, chunks, late
        self.snapshot_function = "pg_current_snapshot" if major > 12 else "txid_current_snapshot"
        self.random = Random(major)
        self.commits: list[Committed] = []
        self.table = Table({})
        self.covered_lsn = 0
        self.version_of: dict[int, float] = {}
        self.last: ChunkPosition | None = None
        ((relid, self.block_bytes, self.segment_bytes),) = self.rows(
            "SELECT 'public.t'::regclass::oid, current_setting('wal_block_size')::int,"
            " pg_size_bytes(current_setting('wal_segment_size'))"
        )
        self.copied = CopiedTable(relid, "public", "t", ("k", "ver", "big"), None, is_partitioned=False)
        with chunks.cursor() as cursor:
            cursor.execute(KEY_COLUMNS, {"relid": relid, "columns": ["k"]})
            self.key = key_columns(cursor.fetchall())
        self.reader: Reader | None = None
        self.copy: TableCopy | None = None
        self.dropped = self.read_again = self.waits = 0

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.chunks.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    # --- the stream ---

    def receive(self) -> None:
        """Receive everything that is committed and flushed."""
        ((flushed,),) = self.rows("SELECT pg_current_wal_flush_lsn()::text")
        with self.stream.cursor() as cursor:
            cursor.execute(_CHANGES)
            messages = [
                decode(bytes(data), in_stream=False, protocol_version=1) for (data,) in cursor.fetchall()
            ]
        begin: Begin | None = None
        changes: list[Change] = []
        for message in messages:
            if isinstance(message, Begin):
                begin, changes = message, []
            elif isinstance(message, Insert | Update | Delete):
                changes.append(self.changed(message))
            elif isinstance(message, Commit):
                assert begin is not None
                self.transaction(Committed(begin.xid, message.commit_lsn, message.end_lsn, tuple(changes)))
        self.covered_lsn = max(self.covered_lsn, parse_lsn(flushed))

    def changed(self, message: Insert | Update | Delete) -> Change:
        """Return a change as the simulation has it. A delete is newer than the row that it deletes."""
        if isinstance(message, Delete):
            key = int(message.old.data.columns[0].value or b"")
            return Change("d", key, self.version_of[key] + 0.5)  # type: ignore[arg-type]
        key, version, big = (None if one.value is None else int(one.value) for one in message.new.columns)
        assert key is not None
        assert version is not None
        self.version_of[key] = version
        old = message.old if isinstance(message, Update) else None
        kind = "k" if old is not None else "u" if isinstance(message, Update) else "c"
        return Change(kind, key, version, big, None if old is None else int(old.data.columns[0].value or b""))

    def transaction(self, commit: Committed) -> None:
        self.commits.append(commit)
        self.covered_lsn = commit.end_lsn
        if self.copy is not None:
            self.copy.changed.committed(commit.xid)
            for change in commit.changes:
                keys = {str(key).encode() for key in (change.key, change.old_key) if key is not None}
                is_unsent = change.kind in "uk" and change.big is None
                name = str(change.key).encode()
                moved = {} if change.old_key is None else {name: str(change.old_key).encode()}
                self.copy.note(commit.xid, keys, {name: (str(change.key),)} if is_unsent else {}, moved)
        if self.reader is not None:
            self.reader.read(
                [Event(change, commit.commit_lsn, number) for number, change in enumerate(commit.changes, 1)]
            )

    # --- one copy ---

    def copy_table(self) -> None:
        """Copy the table for a new reader, and compare."""
        self.receive()
        self.reader = Reader(History(self.late.big_of))
        changed_keys = ChangedKeys(1 << 20)
        copy = self.copy = TableCopy(TableCopyState(), changed_keys, max_keys=1000, keys_per_chunk=5)
        running = RunningTransactions(self.rows(RUNNING))
        changed_keys.refuse_until_visible(running.xids)
        while (chunk := copy.next_chunk()) is not None:
            snapshot = self.begin()
            if copy.may_read(snapshot):
                self.read_and_emit(copy, chunk, snapshot)
            else:
                self.waits += 1
                self.rows("COMMIT; SELECT 1")
                self.receive()
                changed_keys.settle(running.settled(self.rows(RUNNING)))
        self.copy = None
        self.table.advance(self.commits, self.commits[-1].commit_lsn)
        self.reader.check(self.table, range(KEYS), ())

    def begin(self) -> Snapshot:
        """Begin the transaction that reads a chunk."""
        self.rows("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1")
        ((text,),) = self.rows(f"SELECT {self.snapshot_function}()::text")
        return Snapshot.parse(text)

    def read_and_emit(self, copy: TableCopy, chunk: RangeChunk | KeysChunk, snapshot: Snapshot) -> None:
        if self.random.random() < 0.5:
            self.receive()  # later than the snapshot, earlier than the rows
        limit = self.random.choice((1, 3, 10))
        if isinstance(chunk, KeysChunk):
            statement = rows_of_keys(self.copied, self.key, chunk.keys.values())
        else:
            statement = rows_after(self.copied, self.key, chunk.after, limit)
        with self.chunks.cursor() as cursor, io.BytesIO() as sent:
            cursor.copy_expert(statement, sent)
            lines = sent.getvalue().splitlines()
        ((text,),) = self.rows("SELECT pg_current_wal_insert_lsn()::text")
        self.rows("COMMIT; SELECT 1")
        end_lsn = end_of_commits(
            parse_lsn(text), block_bytes=self.block_bytes, segment_bytes=self.segment_bytes
        )
        while self.covered_lsn < end_lsn:
            self.receive()
        is_last = isinstance(chunk, KeysChunk) or len(lines) < limit
        after = None if is_last else key_of_line(self.copied, self.key, lines[-1])
        self.emit(copy, chunk, snapshot, lines, after)

    def emit(
        self,
        copy: TableCopy,
        chunk: RangeChunk | KeysChunk,
        snapshot: Snapshot,
        lines: list[bytes],
        after: Any,
    ) -> None:
        rows = {line.split(b"\t")[0]: line.split(b"\t") for line in lines}
        records = [Record("t", 0, key, b"") for key in rows]
        emitted = copy.emit(chunk, snapshot, records, after)
        assert emitted is not None
        self.dropped += len(records) - len(emitted)
        self.read_again += isinstance(chunk, KeysChunk)
        commit_lsn, tx_seq = chunk_position(self.last, self.covered_lsn)
        numbers = count(tx_seq + 1)
        events = [
            Event(Change("r", int(key), int(ver), int(big)), commit_lsn, next(numbers))
            for key, ver, big in (rows[one.key or b""] for one in emitted)
        ]
        self.last = ChunkPosition(commit_lsn, tx_seq + len(events))
        assert self.reader is not None
        self.reader.read(events)


class History(dict[int, Row]):
    """The rows by version, as the sessions have written them."""

    def __init__(self, big_of: dict[int, int]) -> None:
        super().__init__()
        self._big_of = big_of

    def __missing__(self, version: int) -> Row:
        return Row(version, self._big_of[version], 0)


@contextlib.contextmanager
def captured(pg_server: PostgresServers, major: int, capture: type[Capture] = Capture) -> Iterator[Capture]:
    with pg_server.fresh(major) as server:
        run_script(server.dsn("postgres"), *TABLE)
        settings = settings_for(server, "postgres")
        make_slot(settings)
        late = LateCommits(server, keys=KEYS, sessions=6, seed=major)
        with (
            contextlib.closing(connect_sql(settings)) as stream,
            contextlib.closing(connect_sql(settings)) as chunks,
            late.running(),
        ):
            yield capture(stream, chunks, major, late)


@pytest.mark.parametrize("major", [nightly(12), 18])
def test_a_copy_under_late_commits_has_each_row_of_the_table(pg_server: PostgresServers, major: int) -> None:
    """F36, F40, F46: whatever is committed and not visible, moved, or sent without its large value."""
    with captured(pg_server, major) as capture:
        for _ in range(COPIES):
            capture.copy_table()
        assert capture.dropped > 0
        assert capture.read_again > 0
        assert capture.commits


class _LsnSnapshot(Snapshot):
    """A snapshot that takes each commit record before a low watermark for visible, as DBLog does."""

    __slots__ = ("commit_lsns", "low_lsn")

    def sees(self, xid: int) -> bool:
        return xid not in self.commit_lsns or self.commit_lsns[xid] < self.low_lsn

    def includes(self, other: Snapshot) -> bool:
        return True


class WindowByLsn(Capture):
    """Drops what was committed between two LSNs, and not what the snapshot does not see."""

    low_lsn = 0

    def begin(self) -> Snapshot:
        ((low,),) = self.rows("SELECT pg_current_wal_insert_lsn()::text")
        self.low_lsn = parse_lsn(low)
        return super().begin()

    def emit(
        self,
        copy: TableCopy,
        chunk: RangeChunk | KeysChunk,
        snapshot: Snapshot,
        lines: list[bytes],
        after: Any,
    ) -> None:
        by_lsn = _LsnSnapshot(snapshot.xmin, snapshot.xmax, snapshot.in_progress)
        object.__setattr__(by_lsn, "low_lsn", self.low_lsn)
        object.__setattr__(by_lsn, "commit_lsns", {one.xid: one.commit_lsn for one in self.commits})
        super().emit(copy, chunk, by_lsn, lines, after)


def test_a_window_between_two_lsns_is_not_enough(pg_server: PostgresServers) -> None:
    """F36: with watermarks, and everything else as it is, readers get older rows, or lack a large value."""

    def copy_tables(capture: Capture) -> None:
        for _ in range(20 * COPIES):
            capture.copy_table()

    with (
        captured(pg_server, 18, WindowByLsn) as capture,
        pytest.raises(AssertionError, match=r"an older row of key|the row of key \d+ stays incomplete"),
    ):
        copy_tables(capture)
