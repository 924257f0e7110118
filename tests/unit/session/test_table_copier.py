"""A table is described for its chunks after the stream has received its earlier descriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.model import Column, Relation, ReplicaIdentity, TableCopyState
from cdcd.monitoring.incomplete_tables import IncompleteTables
from cdcd.monitoring.new_tables import NewTables
from cdcd.pipeline.table_copies import TableCopies, WatchedTable
from cdcd.session.table_copier import ReadSlices, TableCopier, describe_as_received
from cdcd.sink.incomplete_topics import IncompleteTopics
from cdcd.snapshot.chunk_pace import ChunkPace
from cdcd.snapshot.chunk_values import CatalogVersions, ChunkSnapshot, Piece, ReadRows
from cdcd.snapshot.table_copy import RangeChunk
from cdcd.snapshot.units import Blocks
from cdcd.snapshot.visibility import Snapshot


class Session:
    """A reader, the emitter and the threads. The table is altered once, after the first look."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.version = 0

    def look(self, _relid: int) -> CatalogVersions:
        self.version += 1
        return CatalogVersions((self.version,), 100 * self.version)

    def describe(
        self, _relid: int, _where: str | None, seen: CatalogVersions, _is_by_key: bool
    ) -> str | None:
        self.events.append(f"describe {seen.versions}")
        return "description" if self.version == 2 else None

    def flush_wal(self) -> None:
        raise AssertionError

    async def received(self, end_lsn: int, _flush_wal: object) -> None:
        self.events.append(f"received {end_lsn}")

    async def in_thread(self, function: Callable[..., Any], *args: object) -> Any:
        return function(*args)

    @property
    def emitter(self) -> Session:
        return self


def test_a_schema_is_registered_after_those_that_the_stream_still_needed() -> None:
    """A registry may refuse an older schema after a newer one, which would halt the stream."""
    session: Any = Session()
    assert asyncio.run(describe_as_received(session, session, 7, None)) == "description"
    assert session.events == ["received 100", "describe (1,)", "received 200", "describe (2,)"]


class Described:
    """A plan, or a description, of a table with one column."""

    def __init__(self, column: str) -> None:
        columns = (Column(column, 23, -1, True),)
        self.relation = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, columns)
        self.topic = "topic"
        self.versions: tuple[object, ...] = (column,)
        self.partitions = self.order = ()
        self.empty_partitions = frozenset[str]()


class OneChunk(Session):
    """The rows of a chunk were read; meanwhile a command has described the table with another column."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = TableCopies()
        self.plan = Described("id")

    report = before_chunk = None

    def plan_of(self, _relid: int) -> Described:
        return self.plan

    async def emit(self, *_slice: object) -> int:
        self.events.append("emitted")
        return 0

    def emitted(self, _relid: int, _rows: int) -> None:
        """Count nothing."""


def test_rows_are_not_encoded_with_the_columns_of_a_later_description() -> None:
    session: Any = OneChunk()
    session.report = session
    session.copies.begin(7, TableCopyState("topic"))
    table: WatchedTable = session.copies.tables[7]
    described: Any = Described("id")
    copier = TableCopier(7, table, session, session, ChunkPace(1.0), described)
    begun = ChunkSnapshot(Snapshot.parse("90:90:"), 100)
    read = ReadSlices(ReadRows([], is_last=True, is_cut=False, size_bytes=0), [], None)
    assert asyncio.run(copier._emit(RangeChunk(None), begun, read))
    session.plan = Described("other")
    assert not asyncio.run(copier._emit(RangeChunk(None), begun, read))
    assert session.events == ["emitted"]


class InAnotherTopic(OneChunk):
    """The table's topic changes before the copy describes it."""

    def __init__(self, incomplete: IncompleteTables) -> None:
        super().__init__()
        self.copies = TableCopies(None, incomplete)
        self.plan.topic = "topic.v2"
        self.version = 1

    def describe(self, *_: object) -> Any:
        table = SimpleNamespace(wanted=None, filter_digest="", title="t")
        return SimpleNamespace(versions=(2,), partitions=(), order=(), table=table)

    def waits(self, _relid: int, _reason: str | None) -> None: ...

    def described(self, _relid: int, _described: object) -> None: ...


def test_a_copy_that_continues_in_another_topic_says_so() -> None:
    """After an incompatible change or RENAME: the end of the copy is that of the table, whatever its topic was."""
    topics, incomplete = IncompleteTopics(begun={7: "topic"}), IncompleteTables(NewTables("snapshot"))
    incomplete.begin(topics)
    session: Any = InAnotherTopic(incomplete)
    session.report = session
    session.copies.begin(7, TableCopyState("topic"))
    copier = TableCopier(7, session.copies.tables[7], session, session, ChunkPace(1.0))
    asyncio.run(copier._describe())
    assert session.copies.tables[7].copy.state.topic == "topic.v2"
    assert topics.names() == ("topic.v2",)
    incomplete.completes(7, "topic.v2")
    topics.recorded(incomplete.noted)
    assert topics.names() == ()


class InBlocks(OneChunk):
    """Each chunk of blocks has few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[int] = []

    def pause_s(self, _used_s: float, _size_bytes: int) -> float:
        return 0.0

    def piece_of(self, _described: object, blocks: Blocks, pages: int) -> Piece:
        self.pages.append(pages)
        return Piece(blocks, None, None)

    def read_blocks(self, *_: object, **_options: object) -> ReadRows:
        return ReadRows([], is_last=True, is_cut=False, size_bytes=1000)


@pytest.mark.parametrize(("goal_s", "pages"), [(60.0, [64, 128, 256]), (0.0, [64, 32, 16])])
def test_a_chunk_of_blocks_becomes_smaller_if_it_takes_longer_than_the_goal(
    goal_s: float, pages: list[int]
) -> None:
    """Also by its pauses: its transaction is open meanwhile, and holds back vacuum."""
    session: Any = InBlocks()
    session.copies.begin(7, TableCopyState("topic", after=("0/0/0/",)))
    copier = TableCopier(7, session.copies.tables[7], session, session, ChunkPace(goal_s))
    begun = ChunkSnapshot(Snapshot.parse("90:90:"), 100)
    for _ in pages:
        assert asyncio.run(copier._read_blocks(RangeChunk(None), begun, session.plan)) is not None
    assert session.pages == pages
