"""Mark the first and the last row of a snapshot, and of each of its tables. Pure.

In: the rows of several tables, as they were read, and the end of each table.  Out: the same rows, each with its
marker, and the completed tables.
Invariant: each row leaves once, in its order within its table. The markers are right in the order in which the rows
leave: a table's last row leaves when the table is complete, the last one of all when every table is.
Must not: hold more than one row of a table.
"""

from __future__ import annotations

from typing import NamedTuple

from cdcd.model import RowBatch, SnapshotMarker
from cdcd.txn.frames import single_rows


class MarkedRows(NamedTuple):
    """Rows of one table with one marker."""

    relid: int
    batch: RowBatch
    marker: SnapshotMarker


class TableComplete(NamedTuple):
    """All rows of this table have left."""

    relid: int


Marked = MarkedRows | TableComplete


class RowMarkers:
    """The rows of one snapshot. `add` and `end` return what may leave, `finish` the rest."""

    def __init__(self) -> None:
        self._latest: dict[int, bytes] = {}
        self._begun: set[int] = set()
        self._final: tuple[int, bytes] | None = None
        self._is_first = True

    def add(self, relid: int, batch: RowBatch, last_at: int) -> list[Marked]:
        """Take rows of a table. `last_at`: the offset of the last row's frame."""
        marked = self._final_of_table()
        before = self._latest.pop(relid, b"")
        frames, count = before + batch.frames[:last_at], batch.count - (not before)
        self._latest[relid] = batch.frames[last_at:]
        if count and relid not in self._begun:
            self._begun.add(relid)
            first = next(single_rows(RowBatch(frames, count)))
            marker = SnapshotMarker.FIRST if self._is_first else SnapshotMarker.FIRST_OF_TABLE
            marked.append(MarkedRows(relid, first, marker))
            self._is_first = False
            frames, count = frames[len(first.frames) :], count - 1
        if count:
            marked.append(MarkedRows(relid, RowBatch(frames, count), SnapshotMarker.INNER))
        return marked

    def end(self, relid: int) -> list[Marked]:
        """Note that all rows of a table were added."""
        latest = self._latest.pop(relid, None)
        if latest is None:
            return [TableComplete(relid)]
        marked = self._final_of_table()
        self._final = relid, latest
        return marked

    def finish(self) -> list[Marked]:
        """Note that all tables have ended."""
        return self._final_of_table(is_last=True)

    def _final_of_table(self, *, is_last: bool = False) -> list[Marked]:
        if self._final is None:
            return []
        (relid, frame), self._final = self._final, None
        marker = SnapshotMarker.FIRST if self._is_first else SnapshotMarker.LAST_OF_TABLE
        marker = SnapshotMarker.LAST if is_last else marker
        self._is_first = False
        return [MarkedRows(relid, RowBatch(frame, 1), marker), TableComplete(relid)]
