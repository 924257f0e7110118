"""cdcd with a planted bug that the oracle has to find in a real process: `python -m tests.faults.planted BUG ...`.

In: the bug's name, then cdcd's own arguments.  Out: cdcd, with one function replaced.
Must not: need any support in cdcd itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from cdcd.ack.group import RecordChunk
from cdcd.avro.plan import RelationPlan
from cdcd.cli import main
from cdcd.lsn import Lsn
from cdcd.model import CopyState, RowBatch
from cdcd.monitoring.lag import LagTracker
from cdcd.pipeline import event_encoder
from cdcd.pipeline.floors import Floors
from cdcd.pipeline.writer import Writer
from cdcd.session.copy_workers import CopyWorkers, Piece
from cdcd.session.snapshot_copy import Snapshotter
from cdcd.session.snapshot_handover import SnapshotHandover
from cdcd.snapshot.markers import Marked, RowMarkers, TableComplete
from cdcd.snapshot.table import CopiedRows, SnapshotReader
from cdcd.snapshot.units import CopyUnit
from tests.support.small_units import divide_small


def confirmed_early() -> None:
    """Received transactions are confirmed before Kafka has them."""
    add = Writer.add

    async def add_and_confirm(self: Writer, chunk: RecordChunk) -> None:
        if chunk.commit_position is not None and chunk.commit_position.phase == "streaming":
            self._confirm(chunk.commit_position.end_lsn)
        await add(self, chunk)

    Writer.add = add_and_confirm  # type: ignore[method-assign]


def truncate_lost() -> None:
    """A TRUNCATE leaves no event."""
    event_encoder.encode_truncate = lambda *args, **options: []  # type: ignore[attr-defined]


def row_lost() -> None:
    """The last record of every tenth row batch is lost."""
    encode = event_encoder.encode_batch  # type: ignore[attr-defined]
    batches = [0]

    def encode_all_but_one(*args: Any) -> list[Any]:
        records = encode(*args)
        batches[0] += 1
        return records[:-1] if batches[0] % 10 == 0 else records

    event_encoder.encode_batch = encode_all_but_one  # type: ignore[attr-defined]


def lag_never_reported() -> None:
    """Received changes that are not durable do not count in the lag."""
    LagTracker.began = lambda *args: None  # type: ignore[assignment,method-assign]


def floor_missing() -> None:
    """The stream repeats the changes that a later copy of their table contains."""
    Floors.concern = lambda *_: False  # type: ignore[method-assign]
    Floors.dropped = lambda *_: set()  # type: ignore[method-assign]


def floor_too_high() -> None:
    """The stream also drops changes that committed shortly after the later copy."""
    begin = Floors.__init__

    def begin_higher(self: Floors, copy: CopyState | None = None) -> None:
        if copy is not None:
            copy = replace(copy, floors={relid: lsn + BEYOND_BYTES for relid, lsn in copy.floors.items()})
        begin(self, copy)

    Floors.__init__ = begin_higher  # type: ignore[method-assign]


def unit_skipped() -> None:
    """The second unit of each table counts as copied."""
    divide_small()
    copy = CopyWorkers._copy

    def copy_others(
        self: CopyWorkers, reader: SnapshotReader, unit: CopyUnit, lock_timeout_ms: int
    ) -> SnapshotReader | None:
        if unit.number != 1:
            return copy(self, reader, unit, lock_timeout_ms)
        self._put(Piece(unit, None))
        return reader

    CopyWorkers._copy = copy_others  # type: ignore[method-assign]


def unit_twice() -> None:
    """The second unit of each table is copied twice."""
    divide_small()
    copy = SnapshotReader.copy

    def copy_again(
        self: SnapshotReader, unit: CopyUnit, lsn: Lsn, lock_timeout_ms: int
    ) -> Iterator[CopiedRows]:
        yield from copy(self, unit, lsn, lock_timeout_ms)
        if unit.number == 1:
            yield from copy(self, unit, lsn, lock_timeout_ms)

    SnapshotReader.copy = copy_again  # type: ignore[assignment,method-assign]


def complete_too_early() -> None:
    """A table counts as complete with its first rows."""
    add = RowMarkers.add

    def add_and_complete(self: RowMarkers, relid: int, batch: RowBatch, last_at: int) -> list[Marked]:
        return [*add(self, relid, batch, last_at), TableComplete(relid)]

    RowMarkers.add = add_and_complete  # type: ignore[method-assign]


def not_emptied() -> None:
    """The rows of an interrupted copy remain in the topic of a table that is copied again."""

    async def clear(_self: Snapshotter, _plans: list[RelationPlan]) -> None:
        return

    Snapshotter._clear = clear  # type: ignore[assignment,method-assign]


def complete_copied_again() -> None:
    """After an interruption all tables are copied."""
    copy = SnapshotHandover._copy

    async def copy_all(self: SnapshotHandover, *arguments: Any) -> None:
        await copy(self, *arguments[:-1], None)

    SnapshotHandover._copy = copy_all  # type: ignore[assignment,method-assign]


BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "confirmed_early": (confirmed_early, "i"),
    "truncate_lost": (truncate_lost, "a"),
    "row_lost": (row_lost, "a"),
    "lag_never_reported": (lag_never_reported, "k"),
}
"""Each bug with the letter of the assertion that has to find it."""

SNAPSHOT_BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "floor_missing": (floor_missing, "j"),
    "floor_too_high": (floor_too_high, "a"),
    "unit_skipped": (unit_skipped, "j"),
    "unit_twice": (unit_twice, "j"),
    "complete_too_early": (complete_too_early, "j"),
    "not_emptied": (not_emptied, "f"),
    "complete_copied_again": (complete_copied_again, "c"),
}
"""Bugs of a snapshot that is interrupted in the middle."""
BEYOND_BYTES = 1 << 20
"""More WAL than a few writes have, with the full pages after a checkpoint."""

if __name__ == "__main__":
    (BUGS | SNAPSHOT_BUGS)[sys.argv.pop(1)][0]()
    sys.exit(main())
