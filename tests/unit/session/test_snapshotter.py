"""A range of a table counts as complete only at a position that all of its rows precede."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from cdcd.ack.group import Chunk
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
    chunks: list[Chunk] = []

    async def add(chunk: Chunk) -> None:
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
