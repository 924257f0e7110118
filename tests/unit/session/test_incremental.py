"""A session that copies tables: what a command writes, and no connection is closed while a thread uses it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.ack.group import RecordChunk
from cdcd.ack.position_tracker import PositionTracker
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import RegistryUnavailable
from cdcd.model import CopyState, Record, TableCopyState
from cdcd.monitoring.incomplete_tables import IncompleteTables
from cdcd.monitoring.new_tables import NewTables
from cdcd.pipeline.chunk_emitter import ChunkEmitter
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.table_copies import TableCopies
from cdcd.pipeline.writer import Writer
from cdcd.session.incremental import CopyOptions, IncrementalSnapshots
from cdcd.sink.incomplete_topics import IncompleteTopics
from cdcd.snapshot.chunk_values import Description, NotPublished
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.reports import TableReports
from cdcd.txn.assembler import Assembler
from tests.simulator.initial import _context
from tests.simulator.initial_topic import Plans, decoded, relation_of, table_of


class Reader:
    """A connection whose first statement ends some time after `hang_up`."""

    def __init__(self) -> None:
        self.is_used, self.is_shut = threading.Event(), threading.Event()
        self.events: list[str] = []

    def look(self, _relid: int) -> Any:
        self.is_used.set()
        self.is_shut.wait()
        threading.Event().wait(0.05)  # libpq returns some time later
        self.events.append("returned")
        raise AssertionError

    def hang_up(self) -> None:
        self.is_shut.set()

    def close(self) -> None:
        self.events.append("closed")


class Parts:
    """What the session passes on, and does not use here."""

    plan_of = None

    def titles_of(self, _relids: list[int]) -> dict[int, str]:
        return {}


class NoBlockingSnapshots:
    relids = frozenset[int]()
    live = frozenset[int]()
    is_copying = False

    def refuse(self, _tables: object) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()


def test_a_connection_is_closed_after_the_thread_that_reads_from_it() -> None:
    reader = Reader()

    async def session() -> None:
        unused: Any = Parts()
        copies = TableCopies(CopyState(tables={7: TableCopyState("topic")}))
        reports = TableReports(lambda: 0.0, lambda _table, _rows: None)
        readers = iter([Existing([7]), reader])
        new_reader: Any = lambda: next(readers)  # noqa: E731
        blocking: Any = lambda *_: NoBlockingSnapshots()  # noqa: E731
        options = CopyOptions(workers=1)
        progress = StreamProgress(unused, PositionTracker(0), copies=copies)
        copying = IncrementalSnapshots(
            unused, progress, unused, unused, new_reader, reports, blocking, unused, options
        )
        running = asyncio.create_task(copying.run())
        await asyncio.get_running_loop().run_in_executor(None, reader.is_used.wait)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(session())
    assert reader.events == ["returned", "closed"]


class Written:
    """The writer of a session."""

    def __init__(self) -> None:
        self.chunks: list[RecordChunk] = []

    async def add(self, chunk: RecordChunk) -> None:
        self.chunks.append(chunk)

    async def flush(self) -> None: ...


class Existing:
    """A connection to a server that has these tables."""

    def __init__(self, relids: Sequence[int]) -> None:
        self._relids = relids

    def existing(self, relids: Sequence[int]) -> set[int]:
        return set(self._relids).intersection(relids)

    def hang_up(self) -> None: ...

    def close(self) -> None: ...


def described(relid: int) -> Description:
    return Description(table_of(relid), relation_of(relid), ("id",), (), (), (), frozenset(), None)


class Session:
    """A session whose stream is at a position. `begun`: a table whose copy has begun."""

    def __init__(self, *relids: int, begun: int = 0, reports: TableReports | None = None) -> None:
        self.written = Written()
        tables = {begun: TableCopyState(str(begun), began_lsn=90, began_as="x:public.t1")} if begun else {}
        self.copies = TableCopies(CopyState(tables=tables))
        progress = StreamProgress(Assembler(1), PositionTracker(100), copies=self.copies)
        pump: Any = SimpleNamespace(progress=progress, is_between_transactions=True)
        self.emitter = ChunkEmitter(pump, self.written, _context, lambda: None, self.end)
        plans, unused = Plans(relids), Parts()
        published: Any = SimpleNamespace(plan_of=plans.by_relid.__getitem__, titles_of=unused.titles_of)
        new_reader: Any = lambda: Existing(relids)  # noqa: E731
        writer: Any = self.written
        not_used: Any = unused
        blocking: Any = lambda *_: NoBlockingSnapshots()  # noqa: E731
        self.reports = reports or TableReports(lambda: 0.0, lambda *_: None)
        self.copying = IncrementalSnapshots(
            self.emitter, progress, writer, published, new_reader, self.reports,
            blocking, not_used, CopyOptions(workers=1), note_ended=lambda relid: self.noted.append(
                (relid, len(self.written.chunks))
            ),
        )  # fmt: skip
        self.ends: list[Record] | Exception = []
        self.noted: list[tuple[int, int]] = []
        self._relids = relids
        setattr(self.copying, "_described", self.describe)  # noqa: B010 - it asks the server

    async def describe(self, _command: SnapshotCommand, _left_out: object) -> list[Description]:
        return [described(relid) for relid in self._relids]

    async def end(
        self, _tx: TransactionContext, _table: str, _rows: int | None, _ms: int, _id: str
    ) -> Record:
        if isinstance(self.ends, Exception):
            raise self.ends
        return Record("transactions", 0, None, b"end")

    def start(self, **options: Any) -> None:
        asyncio.run(self.copying.execute(SnapshotCommand("start", ("public.t1",), **options)))


def test_a_command_is_one_kafka_transaction_with_its_truncate_events_and_its_offset() -> None:
    """F40: a copy that continues after a crash does not empty the topic again. A signal is executed once."""
    session = Session(1, 2, begun=1)
    session.start(recopy=True, signal_offset=7)
    (chunk,) = session.written.chunks
    assert [record.topic for record in chunk.records] == ["transactions", "1", "2"]
    assert [decoded(record).op for record in chunk.records[1:]] == ["t", "t"]
    assert chunk.commit_position is not None
    copy = chunk.commit_position.copy
    assert copy is not None
    assert (copy.tables.keys(), copy.partial, copy.signals_at) == ({1, 2}, (1, 2), 8)
    assert copy.tables[1].began_lsn == 0


def test_a_command_that_fails_before_it_is_written_changes_nothing() -> None:
    session = Session(1, 2, begun=2)
    before = dict(session.copies.tables)
    session.ends = RegistryUnavailable("no answer")
    with pytest.raises(RegistryUnavailable):
        session.start(recopy=True)
    assert not session.written.chunks
    assert session.copies.tables == before
    assert not session.copies.partial


def test_tables_that_lack_rows_are_recorded_once() -> None:
    session = Session()

    async def note() -> None:
        for _ in range(2):
            await session.copying.note_uncopied([5, 6], [5, 6, 7])

    asyncio.run(note())
    (chunk,) = session.written.chunks
    assert chunk.commit_position is not None
    assert chunk.commit_position.copy == CopyState(partial=(5, 6))


def test_each_position_has_the_begins_and_ends_of_copies_before_it() -> None:
    """A position that was made before the begin of a copy, and is written later, does not have its end."""
    topics, incomplete = IncompleteTopics(), IncompleteTables(NewTables("snapshot"))
    incomplete.begin(topics)
    copies = TableCopies(None, incomplete)
    progress = StreamProgress(Assembler(1), PositionTracker(100), copies=copies)
    positions = [progress.commit_position()]
    incomplete.begins(7, "topic", is_needed=True)
    copies.begin(7, TableCopyState("topic"))
    positions.append(progress.commit_position())
    copies.end(7)
    incomplete.completes(7, "topic")
    positions.append(progress.commit_position())
    writer: Any = SimpleNamespace(_identity=None, _options=None)
    found = []
    for position in positions:
        topics.recorded(Writer.progress(writer, position).copies_noted)
        found.append(topics.names())
    assert found == [(), ("topic",), ()]
    assert progress.commit_position().copies_noted == 0


def test_the_copy_of_a_table_that_is_not_published_any_more_is_ended_with_its_end_record() -> None:
    """Readers count its topic as loading as long as the progress record has the copy."""
    session = Session(begun=1)

    async def run() -> None:
        raise NotPublished("the table is not published")

    copier: Any = SimpleNamespace(run=run)
    asyncio.run(session.copying._run(copier, 1, session.copies.tables[1]))
    (chunk,) = session.written.chunks
    assert [record.topic for record in chunk.records] == ["transactions"]
    assert chunk.commit_position is not None
    assert chunk.commit_position.copy == CopyState(partial=(1,))
    assert not session.copying.relids
    assert session.noted == [(1, 0)], "so that it is copied when it is published again: in the same record"


def test_a_session_does_not_report_copies_that_its_progress_record_does_not_have() -> None:
    """A new snapshot, or an accepted gap, has ended them; those that continue have their names."""
    first = Session(1, 2)
    first.start()
    assert [one.table for one in first.reports.all()] == [described(relid).table.title for relid in (1, 2)]
    next_one = Session(begun=1, reports=first.reports)
    assert [one.table for one in next_one.reports.all()] == [described(1).table.title]


def test_the_copy_of_a_table_that_was_dropped_is_ended_at_the_start_whatever_its_state() -> None:
    """Nobody resumes a paused or failed copy of a table that does not exist."""
    session = Session(2, begun=1)
    session.copies.pause(1, is_paused=True)
    session.copies.begin(2, TableCopyState("2", is_paused=True))
    asyncio.run(session.copying._end_dropped())
    (chunk,) = session.written.chunks
    assert [record.topic for record in chunk.records] == ["transactions"]
    assert list(session.copying.relids) == [2]
    asyncio.run(session.copying._end_dropped())
    assert len(session.written.chunks) == 1
