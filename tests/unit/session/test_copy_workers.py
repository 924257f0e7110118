"""A unit that was not read counts as copied at no time, however the threads of a failed table take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cdcd.ack.group import RecordChunk
from cdcd.errors import SourceSetup
from cdcd.session.copy_workers import CopyWorkers, Piece
from cdcd.session.snapshot_copy import Snapshotter
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.table import CopiedRows, SnapshotPlan
from cdcd.snapshot.units import Blocks, CopyUnit
from tests.simulator.initial import _context, _Uncounted
from tests.simulator.initial_topic import Plans, copied, relation_of, table_of

POINT, RELID = 100, 1
TABLE = replace(table_of(RELID), can_continue=True, has_key=True)
FAILS, SLOW, SHORT, *SKIPPED = UNITS = [
    CopyUnit(TABLE, n, None, Blocks(0, 7, n * 10, None if n == 4 else n * 10 + 10)) for n in range(5)
]


class Turns:
    """Another thread skips a unit of the failed table, and a third one has rows of it, before its error is queued."""

    def __init__(self) -> None:
        self.have_begun = threading.Barrier(3)
        self.has_failed = threading.Event()
        self.has_skipped = threading.Event()
        self.has_rows = threading.Event()
        self.read: set[CopyUnit] = set()
        """The units that were read to the end."""

    def copy(self, unit: CopyUnit, _lsn: int, _lock_timeout_ms: int) -> Iterator[CopiedRows]:
        if unit in (FAILS, SLOW, SHORT):
            self.have_begun.wait()
        if unit is FAILS:
            raise SourceSetup("a row does not satisfy the condition", table=TABLE.title)
        yield copied(RELID, [(f"key {unit.number}", "1")], POINT)
        if unit is SLOW:
            self.has_skipped.wait()
            yield copied(RELID, [("late", "1")], POINT)
        if unit is SHORT:
            self.has_failed.wait()
        self.read.add(unit)

    def put(self, workers: CopyWorkers, piece: Piece) -> None:
        if piece.unit is FAILS:
            self.has_failed.set()
            self.has_rows.wait()
        CopyWorkers._put(workers, piece)
        if piece.unit in SKIPPED:
            self.has_skipped.set()
        if piece.unit is SLOW and self.has_skipped.is_set():
            self.has_rows.set()

    def hang_up(self) -> None: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


async def _copy(turns: Turns, progress: CopyProgress) -> tuple[list[Piece], Any]:
    async def add(_chunk: RecordChunk) -> None: ...

    reader: Any = turns
    plans: Any = Plans({RELID: {}})
    workers = CopyWorkers(reader, lambda: reader, SnapshotPlan(list(UNITS), {}, {}), POINT, 3)
    workers._put = lambda piece: turns.put(workers, piece)  # type: ignore[method-assign]
    pieces: list[Piece] = []
    every = workers.pieces

    async def noted() -> Any:
        async for piece in every():
            pieces.append(piece)
            yield piece

    workers.pieces = noted  # type: ignore[method-assign]
    snapshotter = Snapshotter(plans, add, _context, _Uncounted(), progress, point_lsn=POINT)
    try:
        return pieces, await snapshotter.run([(TABLE, relation_of(RELID))], workers)
    finally:
        for event in (turns.has_failed, turns.has_skipped, turns.has_rows):
            event.set()  # if the test fails
        await workers.close()


def test_a_unit_that_a_failed_table_skips_is_left_to_the_next_attempt() -> None:
    turns = Turns()
    progress = CopyProgress(
        point_lsn=POINT, stream_lsn=POINT, written_commit_lsn=0, since_us=1, before_us=1, begun_topics=()
    )
    progress.to_copy([RELID])
    pieces, failure = asyncio.run(_copy(turns, progress))
    assert isinstance(failure, SourceSetup)
    assert {piece.unit for piece in pieces if piece.rows is None} <= turns.read
    state = progress.so_far().copy
    assert state is not None
    assert state.pending == (RELID,)
    left = state.tables.get(RELID)
    blocks = [Blocks.parse(text) for text in left.after or ()] if left else [Blocks(0, 7, 0, None)]
    for unit in set(UNITS) - turns.read:
        assert isinstance(unit.range, Blocks)
        assert any(one.first <= unit.range.first < (one.end or 50) for one in blocks), unit
