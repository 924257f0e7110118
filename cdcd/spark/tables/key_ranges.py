"""Ranges of keys: what one file of a run can have, and what one task of a reader reads. Pure.

In: the files of a table as a version names them.  Out: ranges, and which files have keys of one.
Invariant: the files of a run have ranges that follow each other: each begins where the one before ends, the first
with the lowest key and the last one up to the highest. So each key is in one of them, whichever keys come later.
Must not: open a file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.target.shape import KEY
from cdcd.spark.target.versions import BucketFile, TableEntry

__all__ = [
    "EVERY_KEY",
    "KeyRange",
    "Part",
    "count_runs",
    "is_in_ranges",
    "may_have",
    "parts_of",
    "place_of",
    "ranges_of",
]


class KeyRange(NamedTuple):
    """The keys from `low` on and below `high`, None: all from `low` on. Keys are compared as bytes."""

    low: bytes = b""
    high: bytes | None = None

    def has_between(self, least: bytes, greatest: bytes) -> bool:
        """Return whether the range has keys between these two."""
        return greatest >= self.low and (self.high is None or least < self.high)

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows whose key is in the range."""
        if self.low:
            rows = rows.filter(pc.greater_equal(rows[KEY], pa.scalar(self.low, pa.binary())))
        if self.high is not None:
            rows = rows.filter(pc.less(rows[KEY], pa.scalar(self.high, pa.binary())))
        return rows


EVERY_KEY = KeyRange()


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: a file without the rows that `deltas` replace, and, with `has_changes`, the rows of these.

    `file` None: only the rows of the deltas. `keys`: the range of both.
    """

    file: BucketFile | None
    deltas: tuple[BucketFile, ...] = ()
    has_changes: bool = False
    keys: KeyRange = EVERY_KEY


def parts_of(entry: TableEntry) -> list[Part]:
    """Return the parts of a table, which have each row once."""
    files, deltas = entry.files, entry.deltas
    if not entry.keyed:  # no row of a file replaces another
        return [*(Part(one) for one in files), *(Part(None, (one,), has_changes=True) for one in deltas)]
    if not deltas:
        return [Part(one) for one in files]
    if is_in_ranges(files):
        return [
            Part(file, tuple(may_have(deltas, keys)), has_changes=True, keys=keys)
            for file, keys in zip(files, ranges_of(files), strict=True)
        ]
    return [*(Part(one, deltas) for one in files), Part(None, deltas, has_changes=True)]


def is_in_ranges(files: Sequence[BucketFile]) -> bool:
    """Return whether files are one run."""
    return bool(files) and all(one.from_key is not None for one in files)


def ranges_of(files: Iterable[BucketFile]) -> Iterator[KeyRange]:
    """Yield the range of each file: of one that is in no run, every key."""
    for low, following in pairwise([*(one.from_key or "" for one in files), ""]):
        yield KeyRange(bytes.fromhex(low), bytes.fromhex(following) if following else None)


def may_have(files: Iterable[BucketFile], keys: KeyRange) -> list[BucketFile]:
    """Return the files that may have a key of a range."""
    found = list(files)
    return [one for one, its in zip(found, ranges_of(found), strict=True) if _overlap(its, keys)]


def _overlap(one: KeyRange, other: KeyRange) -> bool:
    return (other.high is None or one.low < other.high) and (one.high is None or other.low < one.high)


def count_runs(files: Iterable[BucketFile]) -> int:
    """Return the number of runs; a file that is in none counts as one."""
    return sum(not one.from_key for one in files)


def place_of(keys: Any, low: bytes) -> int:
    """Return the place of the first of the keys, which are in order, that is not below `low`."""
    return bisect_left(range(len(keys)), low, key=lambda place: keys[place].as_py())
