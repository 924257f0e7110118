"""Merge the files of a table in the background: deltas into a larger delta, and all deltas into new base files.

In: the entry of a table as a version has it.  Out: the entry's files with fewer of them, and the same rows.
Invariant: a merge writes new files only, and takes effect with a version; it is dropped if the table no longer
has the files that the merge read (TRUNCATE, a new copy). Of a table with N base rows all deltas have less than about
N / 2 rows, and there are at most `FAN` runs of each level, so a row is written a number of times that grows with the
logarithm of the table, and a reader opens few files of each range of keys. A merge has a range in memory at a time.
Of a table without a key each file has rows of its own, so full ones remain as they are.
Must not: read or write the commit log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from cdcd.errors import CdcdError
from cdcd.spark.session import reason_of
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.data_file import FILE_ERRORS
from cdcd.spark.tables.key_ranges import count_runs
from cdcd.spark.tables.merged_ranges import PIECE_BYTES, merged_ranges, rows_in_pieces
from cdcd.spark.tables.table_files import write_bucket, write_delta
from cdcd.spark.target.shape import TableShape
from cdcd.spark.target.unneeded_files import remove_unneeded
from cdcd.spark.target.versions import ALL_BUCKETS, BucketFile, TableEntry

FAN = 8
"""The number of deltas, or runs of deltas, of one level that are merged into one of the next level."""
FULL = 99
"""The level of a file that is not merged with others any more."""
SHARE = 2
"""The base files are written again if the deltas have 1 / `SHARE` of their rows or more, and are many or large."""
LARGE_ROWS = 200_000
"""Deltas with this many rows are large, also if there are fewer than `FAN`."""
PAUSE_S = 60.0
"""The time after a failed merge until the next one of the same table begins."""
log = logging.getLogger("cdcd.spark.mirror")


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of a table that are replaced: `deltas`, adjacent if it has a key, and for new base files all files."""

    topic: str
    files: tuple[BucketFile, ...]
    deltas: tuple[BucketFile, ...]
    is_whole: bool
    history: tuple[BucketFile, ...] = ()
    """Adjacent files of the table's history; then it has no other files."""
    is_cut: bool = False
    """The files are the oldest ones of the history; what has ended before their last line is removed."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge, with the files that it has written."""

    merge: Merge
    files: tuple[BucketFile, ...]
    deltas: tuple[BucketFile, ...]
    history: tuple[BucketFile, ...] = ()
    table_version: int | None = None
    """The version of the Delta or Iceberg table that has these files."""


class Merges(Protocol):
    """How the files of a table are merged."""

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        """Return the files of a table that have to be merged next, None if there are none."""

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult | None:
        """Write the merged files; None if the table does not have the files of the merge any more."""

    def discard(self, result: MergeResult) -> None:
        """Remove what a merge has written that takes no effect."""


class MergeStopped(Exception):
    """A merge was asked to stop."""


class MergeUncertain(Exception):
    """The commit of a merge failed, so the table may have it, or that of another writer. See its cause."""


def next_merge(topic: str, entry: TableEntry) -> Merge | None:
    """Return the files of a table that have to be merged next, None if there are none."""
    deltas = entry.deltas
    if not entry.keyed:
        return _next_merge_of_bag(topic, deltas)
    changed, changed_bytes = _size(deltas)
    rows, rows_bytes = _size(entry.files)
    is_half = changed * SHARE >= rows or changed_bytes * SHARE >= rows_bytes > 0
    is_large = count_runs(deltas) >= FAN or changed >= LARGE_ROWS
    if deltas and is_half and is_large:
        return Merge(topic, entry.files, deltas, is_whole=True)
    for _, adjacent in groupby(deltas, lambda one: one.level):
        same = tuple(adjacent)
        if count_runs(same) >= FAN:
            return Merge(topic, (), same, is_whole=False)
    return None


def _next_merge_of_bag(topic: str, deltas: tuple[BucketFile, ...]) -> Merge | None:
    for level in sorted({one.level for one in deltas} - {FULL}):
        same = tuple(one for one in deltas if one.level == level)
        if len(same) >= FAN:
            return Merge(topic, (), same, is_whole=False)
    return None


def _size(files: Iterable[BucketFile]) -> tuple[int, int]:
    """Return the rows and the bytes of files; those of unknown size count as none."""
    return sum(one.rows for one in files), sum(one.size_bytes for one in files)


def write_merge(target: Storage, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult:
    """Write the merged files. Raises MergeStopped after removing the written files."""
    written: list[BucketFile] = []
    try:
        for one in _merged(target, entry.shape(), merge):
            written.append(one)
            _check(stopping)
    except BaseException:
        remove_unneeded(target, [one.path for one in written])
        raise
    return MergeResult(merge, *((tuple(written), ()) if merge.is_whole else ((), tuple(written))))


def _merged(target: Storage, shape: TableShape, merge: Merge) -> Iterator[BucketFile]:
    """Write the merged files, and yield each one when it is written."""
    level = 1 if merge.is_whole else merge.deltas[0].level + 1
    if not shape.keyed:
        for rows in rows_in_pieces(target, shape, merge.deltas):
            is_full = rows.nbytes * SHARE >= PIECE_BYTES
            yield write_delta(target, shape, rows, level=FULL if is_full else level)
        return
    is_first = True  # also if the first range has no rows: its keys may come later
    for one in merged_ranges(target, shape, merge.files, merge.deltas):
        rows = one.present_rows() if merge.is_whole else one.changed_rows()
        if not rows.num_rows:
            continue
        low = b"" if is_first else one.keys.low
        is_first = False
        if merge.is_whole:
            yield write_bucket(target, shape, ALL_BUCKETS, rows, level=level, from_key=low)
        else:
            yield write_delta(target, shape, rows, level=level, from_key=low)


def _check(stopping: threading.Event) -> None:
    if stopping.is_set():
        raise MergeStopped


def with_merged(entry: TableEntry, result: MergeResult) -> TableEntry | None:
    """Return the entry with the merged files, None if the entry no longer has the merged files."""
    merge, deltas = result.merge, entry.deltas
    if merge.history:
        return _with_merged_history(entry, result)
    if not set(merge.deltas) <= set(deltas) or (merge.is_whole and merge.files != entry.files):
        return None
    first = 0 if merge.is_whole else deltas.index(merge.deltas[0])
    end = first + len(merge.deltas)
    if entry.keyed and deltas[first:end] != merge.deltas:
        return None
    merged = set(merge.deltas)
    later = (one for one in deltas[first:] if one not in merged)
    files = result.files if merge.is_whole else entry.files
    return replace(
        entry,
        files=files,
        deltas=(*deltas[:first], *result.deltas, *later),
        table_version=result.table_version,
    )


def _with_merged_history(entry: TableEntry, result: MergeResult) -> TableEntry | None:
    merged, history = result.merge.history, entry.history
    if merged[0] not in history:
        return None
    first = history.index(merged[0])
    end = first + len(merged)
    if history[first:end] != merged:
        return None
    return replace(entry, history=(*history[:first], *result.history, *history[end:]))


class FileMerges:
    """The merges of tables in Parquet files."""

    def __init__(self, target: Storage) -> None:
        self._target = target

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        """Return what `next_merge` does."""
        return next_merge(topic, entry)

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult:
        """Write the merged files. Raises MergeStopped."""
        return write_merge(self._target, entry, merge, stopping)

    def discard(self, result: MergeResult) -> None:
        """Remove the written files."""
        remove_unneeded(self._target, _paths(result))


class Compactor:
    """Merges files in a thread, one table at a time."""

    def __init__(self, merges: Merges, *, parks: bool = False) -> None:
        """`parks`: a table of which a file is lost is in `take_damaged`, and is not merged again."""
        self._merges, self._parks = merges, parks
        self._pool = ThreadPoolExecutor(1, "cdcd-compaction")
        self._stopping = threading.Event()
        self._running: Future[MergeResult | None] | None = None
        self._changed: dict[str, None] = {}
        self._merge = Merge("", (), (), is_whole=False)
        """The running merge."""
        self._damaged: dict[str, CdcdError] = {}
        self._paused: dict[str, float] = {}
        """By topic, until when no merge of a table begins, because the last one failed."""

    @property
    def has_result(self) -> bool:
        """Whether a merge is complete and waits for a version."""
        return self._running is not None and self._running.done()

    def note(self, topics: Collection[str]) -> None:
        """Note the tables whose files have changed."""
        self._changed |= dict.fromkeys(topics)

    def start(self, tables: Mapping[str, TableEntry]) -> bool:
        """Begin the next merge, if none runs; return whether one runs.

        The files of a parked table may not be readable, and it has no more of them: only its history is cut.
        """
        now_s = time.monotonic()
        self._paused = {topic: until_s for topic, until_s in self._paused.items() if until_s > now_s}
        for topic in [one for one in self._changed if one not in self._paused]:
            if self._running is not None:
                break
            del self._changed[topic]
            entry = tables.get(topic)
            merge = None if entry is None else self._merges.next(topic, entry)
            if entry is not None and merge is not None and (merge.is_cut or entry.parked is None):
                self._merge = merge
                self._running = self._pool.submit(self._merges.write, entry, merge, self._stopping)
        return self._running is not None

    def wait(self) -> None:
        """Wait until the running merge is complete."""
        if self._running is not None:
            self._running.exception()

    def take(self, tables: Mapping[str, TableEntry]) -> dict[str, TableEntry]:
        """Return the entry that a complete merge changes; none if there is no such merge, or it is outdated.

        A merge that failed is logged, and begun again after `PAUSE_S`: the batches do not need it. An error of its
        commit is raised: only another session, which restores the tables, knows what the log of the table has. One
        of a file that has rows of the table is in `take_damaged`.
        """
        if self._running is None or not self._running.done():
            return {}
        running, self._running = self._running, None
        try:
            result = running.result()
        except MergeUncertain as error:
            raise error.__cause__ or error from None
        except Exception as error:  # noqa: BLE001 - whatever it is, no batch needs the merge
            self._failed(error, tables)
            return {}
        if result is None:
            return {}
        topic = result.merge.topic
        self._changed[topic] = None
        entry = tables.get(topic)
        changed = None if entry is None else with_merged(entry, result)
        if changed is None:
            self._merges.discard(result)
            return {}
        log.info("%s: %d files are merged into %d", topic, len(_replaced(result)), len(_paths(result)))
        return {topic: changed}

    def _failed(self, error: Exception, tables: Mapping[str, TableEntry]) -> None:
        topic, entry = self._merge.topic, tables.get(self._merge.topic)
        rows = () if entry is None else (*entry.files, *entry.deltas)
        # A batch may have replaced the file meanwhile. The rows of a table are not in its history.
        paths = {one.path for one in rows}
        if self._parks and isinstance(error, FILE_ERRORS) and error.context.get("file") in paths:
            self._damaged[topic] = error
            return
        log.error("%s: its files could not be merged; this is tried again: %s", topic, reason_of(error))
        self._changed[topic] = None
        self._paused[topic] = time.monotonic() + PAUSE_S

    def take_damaged(self) -> dict[str, CdcdError]:
        """Return by topic the errors of files that have rows of the table, since the last call."""
        damaged, self._damaged = self._damaged, {}
        return damaged

    def close(self) -> None:
        """Stop a merge, and remove its files."""
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._running is not None and not self._running.cancelled() and self._running.exception() is None:
            result = self._running.result()
            if result is not None:
                self._merges.discard(result)
        self._running = None


def _paths(result: MergeResult) -> list[str]:
    return [one.path for one in (*result.files, *result.deltas, *result.history)]


def _replaced(result: MergeResult) -> list[BucketFile]:
    return [*result.merge.files, *result.merge.deltas, *result.merge.history]
