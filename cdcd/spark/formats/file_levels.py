"""How large the files of a Delta or Iceberg table are, and which of them are merged.

In: rows, the files of a table.  Out: the most rows of a file, its level, the files that have to become fewer.
Invariant: new rows come into large files, by merges of small ones; a large file whose rows change is divided into
smaller ones, once. A file of level FULL had at least half of its rows when it was written, and one of level N has
`FAN` ** N rows or more. So a table has fewer than `FAN` files of each level that are not full, also after most of its
rows were deleted, and there are few levels. A merge makes fewer files that are not full, so merges end.
Must not: read or write a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa

from cdcd.spark.tables.compaction import FAN, FULL
from cdcd.spark.target.versions import BucketFile

__all__ = ["FAN", "FULL", "FileSize", "size_of_changed", "size_of_new", "size_of_same", "small_files"]

FILE_ROWS = 100_000
"""The most rows of a file that has changed: a changed row costs the writing of all rows of its file."""
FILE_BYTES = 64 << 20
"""The most bytes of a file that has changed, in memory."""
NEW_FILE_BYTES = 128 << 20
"""The most bytes of a file of rows that have not changed since they were inserted or copied, in memory."""
MERGED_BYTES = 512 << 20
"""The bytes in memory that a merge reads, unless `FAN` files have more."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """How many rows a file has at most, and from how many on it is full."""

    most_rows: int
    full_rows: int

    def level_of(self, rows: int, level: int) -> int:
        """Return the level of a new file, whose rows were at a level before.

        Rows that remain of a full file after most of its rows were deleted are those of a small file.
        """
        if rows >= self.full_rows or (level == FULL and rows * 2 >= self.full_rows):
            return FULL
        return min(level, next(one for one in count() if FAN ** (one + 1) > rows))


def size_of_changed(rows: pa.Table) -> FileSize:
    """Return the size of the files of rows some of which have changed."""
    most = min(FILE_ROWS, _rows_of(FILE_BYTES, rows))
    return FileSize(most, most)


def size_of_new(rows: pa.Table) -> FileSize:
    """Return the size of the files of rows that are new."""
    most = max(size_of_changed(rows).most_rows, _rows_of(NEW_FILE_BYTES, rows))
    return FileSize(most, (most + 1) // 2)


def size_of_same(rows: pa.Table) -> FileSize:
    """Return the size of a file of the rows of another one, of which only the columns have changed."""
    full = size_of_changed(rows).full_rows
    return FileSize(max(full, rows.num_rows), full)


def _rows_of(size_bytes: int, rows: pa.Table) -> int:
    most: int = max(1, size_bytes * rows.num_rows // max(1, rows.nbytes))
    return most


def small_files(files: Sequence[BucketFile]) -> tuple[BucketFile, ...]:
    """Return files that have to become fewer, first those of one level; none if there are few of each level."""
    for level in sorted({one.level for one in files} - {FULL}):
        same = [one for one in files if one.level == level]
        if len(same) >= FAN:
            return (*_readable_at_once(same), *_left_full(files))
    return ()


def _readable_at_once(files: Sequence[BucketFile]) -> Iterator[BucketFile]:
    size_bytes = 0
    for number, one in enumerate(files):
        size_bytes += one.size_bytes
        if number >= FAN and size_bytes > MERGED_BYTES:
            return
        yield one


def _left_full(files: Sequence[BucketFile]) -> list[BucketFile]:
    """Return files with few rows that an earlier version of cdcd has left at the level of a full one.

    The size of such a file is unknown, and a large row may fill it. So it causes no merge, and is merged only once.
    """
    few = [one for one in files if one.level == FULL and not one.size_bytes and one.rows * FAN**2 < FILE_ROWS]
    return few[:FAN]
