"""Planted bugs of the initial snapshot: each is a simulation whose daemon does one thing wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cdcd.avro.plan import RelationPlan
from cdcd.errors import CdcdError
from cdcd.lsn import Lsn
from cdcd.model import CopyState
from cdcd.pipeline.floors import Floors
from cdcd.pipeline.table_copies import TableCopies
from cdcd.recovery.start_decision import Resume, Snapshot
from cdcd.session.copy_workers import CopyWorkers, Piece
from cdcd.session.snapshot_copy import Snapshotter
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.table import CopiedRows
from cdcd.snapshot.units import CopyUnit
from tests.simulator.initial import Simulation, Workers


class _NoFloors(Floors):
    def concern(self, commit_lsn: Lsn) -> bool:
        return False

    def dropped(self, relids: Collection[int], commit_lsn: Lsn) -> set[int]:
        return set()


class FloorsMissing(Simulation):
    """Changes that a later copy of their table contains are written again."""

    floors = _NoFloors


class _OneHigher(Floors):
    def __init__(self, copy: CopyState | None = None) -> None:
        super().__init__(
            copy and replace(copy, floors={relid: lsn + 1 for relid, lsn in copy.floors.items()})
        )


class FloorsTooHigh(Simulation):
    """A commit that begins exactly at the point of a later copy is dropped (F1)."""

    floors = _OneHigher


class _OneForAll(Floors):
    def dropped(self, relids: Collection[int], commit_lsn: Lsn) -> set[int]:
        return set(relids) if commit_lsn < self._highest_lsn else set()


class FloorsOfOtherTables(Simulation):
    """Below the highest floor every table's changes are dropped."""

    floors = _OneForAll


class _Forgotten(TableCopies):
    def state_at(self, end_lsn: Lsn) -> CopyState | None:
        return None


class FloorsForgotten(Simulation):
    """The progress records of the stream lack the floors, which a restart needs."""

    copies = _Forgotten


class StreamFromTheLastPoint(Simulation):
    """The stream begins at the point of the last copy, not of the first one."""

    async def stream(self, begin: Resume, transactions: int) -> None:
        if begin.copy is not None and begin.copy.floors:
            point = max(begin.copy.floors.values())
            begin = replace(begin, start_lsn=max(begin.start_lsn, point))
        await super().stream(begin, transactions)


class RangeSkipped(Simulation):
    """The rows of a table's second range are not copied."""

    def rows_of(self, unit: CopyUnit, point: int) -> Iterator[CopiedRows]:
        return iter(()) if unit.number == 1 else super().rows_of(unit, point)


class RangeTwice(Simulation):
    """The rows of a table's second range are copied twice."""

    def rows_of(self, unit: CopyUnit, point: int) -> Iterator[CopiedRows]:
        yield from super().rows_of(unit, point)
        if unit.number == 1:
            yield from super().rows_of(unit, point)


class RangesOfTwoSnapshots(Simulation):
    """A range is read in a later snapshot than the others of its table."""

    def rows_of(self, unit: CopyUnit, point: int) -> Iterator[CopiedRows]:
        return super().rows_of(unit, self.server.wal_lsn if unit.number else point)


class _Early(CopyProgress):
    def begin(self, relid: int, topic: str) -> None:
        super().begin(relid, topic)
        self.complete(relid)


class CompleteTooEarly(Simulation):
    """A table counts as complete with its first row."""

    progress = _Early


class _EarlyUnits:
    def __init__(self, workers: CopyWorkers, complete: Callable[[CopyUnit], None]) -> None:
        self.units, self.estimates, self.partitions = workers.units, workers.estimates, workers.partitions
        self._workers, self._complete = workers, complete

    async def pieces(self) -> AsyncIterator[Piece]:
        async for piece in self._workers.pieces():
            if piece.rows is None:
                self._complete(piece.unit)
            yield piece


class _RangesEarly(Snapshotter):
    async def _copy(self, plan_of: Mapping[int, RelationPlan], workers: CopyWorkers) -> CdcdError | None:
        def complete(unit: CopyUnit) -> None:
            self._progress.complete_units((unit,), plan_of[unit.table.relid].topic)

        early: Any = _EarlyUnits(workers, complete)
        return await super()._copy(plan_of, early)


class RangeCompleteTooEarly(Simulation):
    """A range counts as complete before its last row is written: the row waits for the next rows of its table."""

    snapshotter = _RangesEarly


class _NotCleared(Snapshotter):
    async def _clear(self, plans: object) -> None:
        pass


class NotEmptied(Simulation):
    """The rows of an interrupted copy remain in the topic of a table that is copied again."""

    snapshotter = _NotCleared


class _NeverBegun(CopyProgress):
    def begin(self, relid: int, topic: str) -> None:
        pass


class BegunForgotten(Simulation):
    """The progress record lacks the topics that have rows of an incomplete copy."""

    progress = _NeverBegun


class CompleteCopiedAgain(Simulation):
    """After an interruption all tables are copied."""

    async def snapshot(self, begin: Snapshot) -> Resume:
        if begin.left is not None:
            state = replace(begin.left.state, pending=tuple(self.server.tables), tables={})
            begin = replace(begin, left=replace(begin.left, state=state))
        return await super().snapshot(begin)


class _SkippedAsRead(Workers):
    def skipped(self, unit: CopyUnit) -> Piece:
        return Piece(unit, None)


class SkippedCountsAsRead(Simulation):
    """A range that was not read, because its table had failed, ends as one that was: its error may come later."""

    workers = _SkippedAsRead


class _ContinuedNotPending(CopyProgress):
    def to_copy(self, relids: Iterable[int], excluded: Iterable[int] = ()) -> None:
        super().to_copy(relids, excluded)
        for relid in self._later:
            self._pending.pop(relid, None)


class ContinuedForgotten(Simulation):
    """A table that a start has left to an incremental snapshot is missing where the next one copies the rest."""

    progress = _ContinuedNotPending

    def left_of(self, state: CopyState) -> frozenset[int]:
        return frozenset(state.pending)


class _FloorsGivenUp(CopyProgress):
    def to_copy(self, relids: Iterable[int], excluded: Iterable[int] = ()) -> None:
        before = {*self._pending, *self._tables}
        super().to_copy(relids, excluded)
        for relid in before.difference(self._pending):
            self._floors.pop(relid, None)


class FloorGivenUpWithItsTable(Simulation):
    """The changes of a table whose copy is given up come behind newer copied rows."""

    progress = _FloorsGivenUp


class _GivenUpForgotten(CopyProgress):
    def to_copy(self, relids: Iterable[int], excluded: Iterable[int] = ()) -> None:
        super().to_copy(relids, excluded)
        self._partial = frozenset()


class _ExcludedForgotten(CopyProgress):
    def to_copy(self, relids: Iterable[int], excluded: Iterable[int] = ()) -> None:
        super().to_copy(relids)


class ExcludedForgotten(Simulation):
    """A table that the first attempt has excluded is not copied when it is included before the end."""

    progress = _ExcludedForgotten


class IncludedAgainForgotten(Simulation):
    """A table that was given up is not copied when it is included again before the snapshot is complete."""

    progress = _GivenUpForgotten


class _FloorsAtOnce(CopyProgress):
    def announce(self, relid: int, topic: str) -> None:
        super().announce(relid, topic)
        self._note_floor(relid)


class FloorBeforeItsTruncateEvent(Simulation):
    """With at_least_once a floor is durable before the truncate event: an excluded table has older rows then."""

    progress = _FloorsAtOnce


class _FloorsOfRanges(CopyProgress):
    def begin(self, relid: int, topic: str) -> None:
        floors = dict(self._floors)
        super().begin(relid, topic)
        self._floors = floors


class FloorWithTheFirstRange(Simulation):
    """A table gets its floor with its first complete range, although rows are written before."""

    progress = _FloorsOfRanges


BUGS: dict[type[Simulation], str] = {
    bug: (bug.__doc__ or "").strip()
    for bug in (
        FloorsMissing, FloorsTooHigh, FloorsOfOtherTables, FloorsForgotten, StreamFromTheLastPoint, RangeSkipped,
        RangeTwice, RangesOfTwoSnapshots, CompleteTooEarly, RangeCompleteTooEarly, NotEmptied,
        BegunForgotten, CompleteCopiedAgain, SkippedCountsAsRead, ContinuedForgotten, FloorGivenUpWithItsTable,
        ExcludedForgotten, IncludedAgainForgotten, FloorBeforeItsTruncateEvent, FloorWithTheFirstRange,
    )
}  # fmt: skip
