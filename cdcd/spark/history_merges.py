"""Merge small files of a table's history in the background into larger ones.

In: the entry of a table as a version has it.  Out: the entry's history in fewer files, with the same lines.
Invariant: as in `compaction`; a line is written again a number of times that grows with the logarithm of the history,
and files that are full are not read again, so a merge has less than `FAN` times as much in memory however long the
history is.
Must not: read or write the commit log; change the other files of a table.
"""

from __future__ import annotations

import threading
from itertools import groupby

import pyarrow as pa

from cdcd.spark import compaction
from cdcd.spark.commit_log import remove_files
from cdcd.spark.compaction import Merge, MergeResult, Merges
from cdcd.spark.storage import Storage
from cdcd.spark.table_files import read_history, write_history
from cdcd.spark.versions import BucketFile, TableEntry

FULL_ROWS = 125_000
FULL_BYTES = 32 << 20
"""A file with so many lines, or so many bytes in memory, is not merged any more."""


class HistoryMerges:
    """The merges of tables that have a history: those of their rows first."""

    def __init__(self, target: Storage, rows: Merges) -> None:
        """`rows`: how the files of the tables' rows are merged."""
        self._target, self._rows = target, rows

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        """Return the files that have to be merged next."""
        return self._rows.next(topic, entry) or next_history_merge(topic, entry)

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult | None:
        """Write the merged files."""
        if not merge.history:
            return self._rows.write(entry, merge, stopping)
        lines = pa.concat_tables([read_history(self._target, entry.shape(), one) for one in merge.history])
        level = max(one.level for one in merge.history) + 1
        return MergeResult(merge, (), (), (write_history(self._target, entry.shape(), lines, level=level),))

    def discard(self, result: MergeResult) -> None:
        """Remove what a merge has written that takes no effect."""
        if not result.merge.history:
            self._rows.discard(result)
            return
        remove_files(self._target, [one.path for one in result.history])


def next_history_merge(topic: str, entry: TableEntry) -> Merge | None:
    """Return adjacent files of one level that have to become one, None if there are few."""
    for is_open, adjacent in groupby(entry.history, _open_level):
        files = tuple(adjacent)
        if is_open is not None and len(files) >= compaction.FAN:
            return Merge(topic, (), (), is_whole=False, history=files)
    return None


def _open_level(file: BucketFile) -> int | None:
    """Return the level of a file that can be merged, None of a full one."""
    return None if file.rows >= FULL_ROWS or file.size_bytes >= FULL_BYTES else file.level
