"""Merge small files of a table's history in the background into larger ones, and cut off what is not retained.

In: the entry of a table as a version has it.  Out: the entry's history in fewer files, with the same lines; or
without those of versions that have ended before the retention (`history_retention`).
Invariant: as in `compaction`; a line is written again a number of times that grows with the logarithm of the history,
and files that are full are not read again, so a merge has less than `FAN` times as much in memory however long the
history is. A cut reads the oldest files as a whole, once they have as many new lines as half of those that an earlier
cut has left, or are overdue; it has `PART_BYTES` of them in memory, and the others in the temporary folder.
Must not: read or write the commit log; change the other files of a table.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding.events import ENDS, Sequence
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables import compaction
from cdcd.spark.tables.compaction import Merge, MergeResult, Merges, MergeStopped
from cdcd.spark.tables.history_retention import (
    End,
    counted_ends,
    ends_of,
    first_of,
    retained_ends,
    retained_rows,
)
from cdcd.spark.tables.table_files import read_history, read_history_changes, read_history_keys, write_history
from cdcd.spark.tables.tasks import by_bucket
from cdcd.spark.target.large_columns import in_few_chunks
from cdcd.spark.target.shape import CHANGE, KEY, history_schema
from cdcd.spark.target.unneeded_files import remove_unneeded
from cdcd.spark.target.versions import BucketFile, TableEntry

FULL_ROWS = 125_000
FULL_BYTES = 32 << 20
"""The numbers of lines, and of bytes in memory, from which on a file is not merged any more."""
PART_BYTES = 64 << 20
"""About the most bytes of lines that a cut has in memory."""
CUT = 100
"""The level of a file that a cut has left."""
SHARE = 2
"""A cut is due when the new lines are 1 / `SHARE` of those that it would read again."""
OVERDUE = 0.1
"""It is due in any case when lines could have been cut off for this part of the retention."""


class HistoryMerges:
    """The merges of tables that have a history: those of their rows first."""

    def __init__(
        self,
        target: Storage,
        rows: Merges,
        retain_s: float | None = None,
        is_loading: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`rows`: how the files of the tables' rows are merged. `retain_s`: of ended versions, None: for ever.

        `is_loading`: whether cdcd copies a table, so that rows of it come that continue their versions.
        """
        self._target, self._rows, self._is_loading = target, rows, is_loading
        self._retain_s, self._clock = retain_s, clock

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        """Return the files that have to be merged next; of a parked table only the lines of its history are cut."""
        if entry.parked is not None:
            return self._next_cut(topic, entry)
        return (
            self._rows.next(topic, entry) or self._next_cut(topic, entry) or next_history_merge(topic, entry)
        )

    def _next_cut(self, topic: str, entry: TableEntry) -> Merge | None:
        if self._retain_s is None or self._is_loading(topic) or entry.copying:
            return None
        now_us, retain_us = int(self._clock() * 1e6), int(self._retain_s * 1e6)
        return next_cut(topic, entry, now_us - retain_us, now_us - int(retain_us * (1 + OVERDUE)))

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult | None:
        """Write the merged files."""
        if not merge.history:
            return self._rows.write(entry, merge, stopping)
        if merge.is_cut:
            return MergeResult(merge, (), (), tuple(_cut(self._target, entry, merge, stopping)))
        lines = pa.concat_tables([read_history(self._target, entry.shape(), one) for one in merge.history])
        level = max(one.level for one in merge.history) + 1
        return MergeResult(merge, (), (), (write_history(self._target, entry.shape(), lines, level=level),))

    def discard(self, result: MergeResult) -> None:
        """Remove what a merge has written that takes no effect."""
        if not result.merge.history:
            self._rows.discard(result)
            return
        remove_unneeded(self._target, [one.path for one in result.history])


def next_history_merge(topic: str, entry: TableEntry) -> Merge | None:
    """Return adjacent files of one level that have to become one, None if there are few."""
    for is_open, adjacent in groupby(entry.history, _open_level):
        files = tuple(adjacent)
        if is_open is not None and len(files) >= compaction.FAN:
            return Merge(topic, (), (), is_whole=False, history=files)
    return None


def _open_level(file: BucketFile) -> int | None:
    """Return the level of a file that can be merged, None of a full one, and of what a cut has left."""
    is_full = file.rows >= FULL_ROWS or file.size_bytes >= FULL_BYTES
    return None if is_full or file.level == CUT else file.level


# --- the retention -------------------------------------------------------------------------------------------


def next_cut(topic: str, entry: TableEntry, until_us: int, overdue_us: int) -> Merge | None:
    """Return the oldest files, whose last commit is not after a time, if it is worth to cut them; None otherwise.

    A file without a time is as old as the next one that has one. `overdue_us`: an earlier time, up to which no new
    line may be left.
    """
    count = 0
    for place, file in enumerate(entry.history, 1):
        if file.last_us > until_us:
            break
        count = place if file.last_us else count
    oldest = entry.history[:count]
    new = [one for one in oldest if one.level != CUT]
    left = sum(one.rows for one in oldest if one.level == CUT)
    is_overdue = any(0 < one.last_us <= overdue_us for one in new)
    if not new or (sum(one.rows for one in new) * SHARE < left and not is_overdue):
        return None
    return Merge(topic, (), (), is_whole=False, history=oldest, is_cut=True)


def _cut(target: Storage, entry: TableEntry, merge: Merge, stopping: threading.Event) -> list[BucketFile]:
    """Write the lines of the oldest files that remain. Raises MergeStopped after removing the written files."""
    written: list[BucketFile] = []
    parts = -(-sum(one.size_bytes for one in merge.history) // PART_BYTES) or 1
    shape = entry.shape()
    try:
        with tempfile.TemporaryDirectory(prefix="cdcd-history-") as folder:
            ends = _split(target, entry, merge.history, Path(folder), parts, stopping)
            counted, firsts, later = _among_later(target, entry.history[len(merge.history) :], ends)
            for number in range(parts):
                _check(stopping)
                rows = retained_rows(_part(folder, number, entry), counted, shape, later)
                written += _written(target, entry, rows)
                firsts.append(first_of(rows))
            retained = retained_ends(ends, [one for one in firsts if one is not None])
            return [*written, *_written(target, entry, retained)]
    except BaseException:
        remove_unneeded(target, [one.path for one in written])
        raise


def _split(
    target: Storage,
    entry: TableEntry,
    files: Iterable[BucketFile],
    folder: Path,
    parts: int,
    stopping: threading.Event,
) -> pa.Table:
    """Write the lines of rows into a file for each part of the keys; return the lines that end all rows."""
    schema = history_schema(entry.fields)
    ends = [schema.empty_table()]
    with ExitStack() as opened:
        sinks = [
            opened.enter_context(pa.ipc.new_file(folder / str(number), schema)) for number in range(parts)
        ]
        for file in files:
            _check(stopping)
            lines = read_history(target, entry.shape(), file)
            is_end = pc.is_in(pc.struct_field(lines[CHANGE], "op"), pa.array(ENDS))
            ends.append(lines.filter(is_end))
            for sink, rows in zip(sinks, by_bucket(lines.filter(pc.invert(is_end)), parts), strict=True):
                sink.write_table(rows)
    return pa.concat_tables(ends)


def _part(folder: str, number: int, entry: TableEntry) -> pa.Table:
    with pa.OSFile(f"{folder}/{number}") as source:
        return pa.ipc.open_file(source).read_all().cast(history_schema(entry.fields))


def _among_later(
    target: Storage, files: Iterable[BucketFile], ends: pa.Table
) -> tuple[list[End], list[Sequence | None], pa.ChunkedArray]:
    """Return the ends that count; of later files the first positions, and the keys, if a copy is among the ends.

    A later file of the same batch may have lines before one of these ends: the batch has several files.
    """
    if not ends.num_rows:
        return [], [], pa.chunked_array([], pa.binary())
    later: list[End] = []
    firsts = []
    for file in files:
        lines = read_history_changes(target, file)
        is_end = pc.is_in(pc.struct_field(lines[CHANGE], "op"), pa.array(ENDS))
        later += ends_of(lines.filter(is_end))
        firsts.append(first_of(lines.filter(pc.invert(is_end))))
    counted = counted_ends(ends_of(ends), later)
    has_copy = any(one.is_copy for one in counted)
    return counted, firsts, _keys_of(target, files if has_copy else [])


def _keys_of(target: Storage, files: Iterable[BucketFile]) -> pa.ChunkedArray:
    """Return the keys in files, each mostly once."""
    keys = pa.chunked_array([read_history_keys(target, one) for one in files], pa.binary())
    some = in_few_chunks(pa.table({KEY: keys}))[KEY].chunks
    return pa.chunked_array([pc.unique(one) for one in some], pa.binary())


def _written(target: Storage, entry: TableEntry, lines: pa.Table) -> Iterator[BucketFile]:
    for start in range(0, lines.num_rows, FULL_ROWS):
        yield write_history(target, entry.shape(), lines.slice(start, FULL_ROWS), level=CUT)


def _check(stopping: threading.Event) -> None:
    if stopping.is_set():
        raise MergeStopped
