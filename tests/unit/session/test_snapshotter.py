"""What a position says of a table, its records precede: ranges, floors, truncate events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.model import CopyState
from cdcd.session.copy_workers import Piece
from cdcd.session.snapshot_copy import Snapshotter
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.units import Blocks, CopyUnit
from tests.simulator.initial import _context, _Uncounted
from tests.simulator.initial_topic import Plans, copied, relation_of, table_of

POINT, LARGE, OTHER = 100, 1, 2
TABLE = replace(table_of(LARGE), can_continue=True, has_key=True)
RANGES = [CopyUnit(TABLE, n, None, Blocks(0, 7, n * 10, None if n == 2 else n * 10 + 10)) for n in range(3)]
ONE = CopyUnit(table_of(OTHER))


class Workers:
    """The first range ends, and its last row waits for the next rows of its table, while another table is read."""

    units = (*RANGES, ONE)
    estimates: Mapping[int, int | None] = {}
    partitions: Mapping[int, tuple[str, ...]] = {}

    async def pieces(self) -> AsyncIterator[Piece]:
        yield Piece(RANGES[0], copied(LARGE, [("first", "5")], POINT))
        yield Piece(RANGES[0], None)
        for key in ("a", "b", "c"):
            yield Piece(ONE, copied(OTHER, [(key, "1")], POINT))
        yield Piece(RANGES[1], copied(LARGE, [("second", "5"), ("third", "5")], POINT))


def test_a_range_is_left_until_its_last_row_is_written() -> None:
    chunks: list[RecordChunk] = []

    async def add(chunk: RecordChunk) -> None:
        chunks.append(chunk)

    progress = CopyProgress(
        point_lsn=POINT,
        stream_lsn=POINT,
        written_commit_lsn=0,
        since_us=1,
        before_us=1,
        begun_topics=(),
    )
    progress.to_copy([LARGE, OTHER])
    plans: Any = Plans({LARGE: {}, OTHER: {}})
    counts, left = _Uncounted(), list[int]()
    counts.snapshot_chunks = left.append
    snapshotter = Snapshotter(plans, add, _context, counts, progress, point_lsn=POINT)
    tables = [(TABLE, relation_of(LARGE)), (ONE.table, relation_of(OTHER))]
    workers: Any = Workers()
    asyncio.run(snapshotter.run(tables, workers))
    written = 0
    for chunk in chunks:
        written += sum(record.topic == str(LARGE) for record in chunk.records)
        position = chunk.commit_position
        assert position is not None
        assert position.copy is not None
        assert written or LARGE not in position.copy.tables, "a crash here loses the first row"
    assert left == [4, 3], "the chunks that are not read yet"
    assert progress.so_far().copy.tables[LARGE].after == ("0/7/10/",)  # type: ignore[union-attr]


class NoRows:
    """Tables without a row."""

    units = (ONE,)
    estimates: Mapping[int, int | None] = {}
    partitions: Mapping[int, tuple[str, ...]] = {}

    async def pieces(self) -> AsyncIterator[Piece]:
        yield Piece(ONE, None)


def test_with_at_least_once_a_floor_is_not_durable_before_its_truncate_event() -> None:
    """F40: the floor drops changes that the rows of the earlier attempt, which the topic still has, do not have.

    If the table is excluded after a crash, its topic is not emptied any more.
    """
    positions: list[CommitPosition] = []
    truncated = False

    async def mark(position: CommitPosition) -> None:
        positions.append(position)

    async def add(chunk: RecordChunk) -> None:
        nonlocal truncated
        assert chunk.commit_position is not None
        truncated = truncated or bool(chunk.records)
        copy = chunk.commit_position.copy
        assert copy is not None
        assert truncated or OTHER not in copy.floors
        positions.append(chunk.commit_position)

    progress = CopyProgress(
        point_lsn=POINT,
        stream_lsn=POINT - 50,
        written_commit_lsn=0,
        since_us=1,
        before_us=1,
        begun_topics=(str(OTHER),),
        before=CopyState((OTHER,), {}, POINT - 20),
    )
    progress.to_copy([OTHER])
    plans: Any = Plans({OTHER: {}})
    snapshotter = Snapshotter(plans, add, _context, _Uncounted(), progress, point_lsn=POINT, mark_first=mark)
    workers: Any = NoRows()
    asyncio.run(snapshotter.run([(ONE.table, relation_of(OTHER))], workers))
    marked, emptied = (one.copy for one in positions[:2])
    assert marked is not None
    assert emptied is not None
    assert (positions[0].snapshot_tables, marked.floors) == ((str(OTHER),), {})
    assert emptied.floors == {OTHER: POINT}


def test_with_at_least_once_a_topic_is_listed_before_its_first_row_and_has_no_floor_yet() -> None:
    marked: list[CommitPosition] = []

    async def mark(position: CommitPosition) -> None:
        marked.append(position)

    async def add(_chunk: RecordChunk) -> None:
        assert marked, "readers see a row before the record lists its topic"

    progress = CopyProgress(
        point_lsn=POINT,
        stream_lsn=POINT - 50,
        written_commit_lsn=0,
        since_us=1,
        before_us=1,
        begun_topics=(),
        before=CopyState((LARGE, OTHER), {}, POINT - 20),
    )
    progress.to_copy([LARGE, OTHER])
    plans: Any = Plans({LARGE: {}, OTHER: {}})
    snapshotter = Snapshotter(plans, add, _context, _Uncounted(), progress, point_lsn=POINT, mark_first=mark)
    tables = [(TABLE, relation_of(LARGE)), (ONE.table, relation_of(OTHER))]
    workers: Any = Workers()
    asyncio.run(snapshotter.run(tables, workers))
    (position,) = marked
    assert position.snapshot_tables == (str(LARGE), str(OTHER))
    assert position.copy is not None
    assert not position.copy.floors
