"""The rows of several files of a table, a range of keys at a time: what a merge has in memory.

In: base files and deltas, in their order.
Out: for each range its rows of both, in the order of their keys, of a key the newest one.
Invariant: the ranges follow each other from the lowest key to the highest. Of each file one row group more than the
range has is in memory, and the bytes of a file (compressed) from its first row group until its last one. Files that
are not in the order of their keys, as deltas of earlier versions of cdcd, give the same rows, with more memory.
Must not: write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from os.path import commonprefix
from typing import NamedTuple

import pyarrow as pa

from cdcd.columnar.keys import merged_places
from cdcd.spark.storage.uri import Target
from cdcd.spark.tables.data_file import DataFile, opened, opened_in_parts
from cdcd.spark.tables.key_ranges import KeyRange, place_of
from cdcd.spark.tables.table_files import (
    added_rows,
    delta_rows,
    groups_of,
    in_order,
    with_current_columns,
    without_deleted,
)
from cdcd.spark.target.large_columns import taken
from cdcd.spark.target.shape import KEY, TableShape, arrow_schema
from cdcd.spark.target.versions import BucketFile

__all__ = ["PIECE_BYTES", "MergedRange", "merged_ranges", "rows_in_pieces"]

PIECE_BYTES = 128 << 20
"""About the most bytes in memory of the rows of a range, and of a file that a merge writes."""


class MergedRange(NamedTuple):
    """The rows of a range, each part in the order of its keys: of base files, and of deltas. All have `DELETED`."""

    keys: KeyRange
    base: Sequence[pa.Table]
    changed: Sequence[pa.Table]

    def changed_rows(self) -> pa.Table:
        """Return the newest row of each key in a delta, with `DELETED`."""
        return _newest_in_order(self.changed)

    def present_rows(self) -> pa.Table:
        """Return the newest row of each key, without those that are deleted."""
        return without_deleted(_newest_in_order([*self.base, *self.changed]))


def _newest_in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """Return of each key the row of the last part that has it, in the order of the keys."""
    rows = pa.concat_tables(parts)
    places = merged_places([keys for part in parts for keys in part[KEY].chunks])
    if len(places) == rows.num_rows and (places[1:] > places[:-1]).all():
        return rows
    return taken(rows, pa.array(places))


@dataclass(slots=True)
class _File:
    """A file of a merge. `place`: a later one replaces an earlier one. `left`: its row groups that are not read."""

    place: int
    target: Target
    file: BucketFile
    current: Callable[[pa.Table, BucketFile], pa.Table]
    left: int = 0
    source: DataFile | None = None

    def read(self, group: int | None) -> pa.Table:
        """Return the rows of a row group, None: of all, in the order of their keys."""
        source = self.source = self.source or opened(self.target, self.file.path)
        rows = in_order(source.read() if group is None else source.read_row_groups([group]))
        self.left -= 1
        if not self.left:
            self.source = None
        return self.current(rows, self.file)


@dataclass(slots=True)
class _Group:
    """A row group, None: all of them. `low`: the lowest key, or a lower one."""

    file: _File
    number: int | None
    low: bytes
    size_bytes: int


@dataclass(slots=True)
class _Open:
    """Rows of a file that are read and not in a range yet, in the order of their keys."""

    file: _File
    rows: pa.Table

    def below(self, high: bytes | None) -> pa.Table:
        """Remove and return the rows below a key."""
        count = self.rows.num_rows if high is None else place_of(self.rows[KEY], high)
        found, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return found


@dataclass(slots=True)
class _Merging:
    groups: list[_Group]
    """In the order of their lowest keys."""
    open: list[_Open] = field(default_factory=list)
    begun: int = 0

    def below(self, high: bytes | None) -> Iterator[tuple[_File, pa.Table]]:
        """Yield the rows below a key that were not yielded yet, in the order of their files."""
        while self.begun < len(self.groups) and (high is None or self.groups[self.begun].low < high):
            group = self.groups[self.begun]
            self.open.append(_Open(group.file, group.file.read(group.number)))
            self.begun += 1
        self.open.sort(key=lambda one: one.file.place)
        found = [(one.file, one.below(high)) for one in self.open]
        self.open = [one for one in self.open if one.rows.num_rows]
        yield from found


def merged_ranges(
    target: Target, shape: TableShape, base: Sequence[BucketFile], deltas: Sequence[BucketFile]
) -> Iterator[MergedRange]:
    """Yield the ranges of the files of a table with a key. Raises StorageError, MirrorInconsistent."""
    files = [
        *(
            _File(place, target, one, lambda rows, file: added_rows(with_current_columns(rows, file, shape)))
            for place, one in enumerate(base)
        ),
        *(
            _File(place, target, one, lambda rows, file: delta_rows(rows, file, shape))
            for place, one in enumerate(deltas, len(base))
        ),
    ]
    sizes = [one.size_bytes for one in (*base, *deltas)]
    is_one_range = all(sizes) and sum(sizes) <= PIECE_BYTES  # without a look at the row groups
    found = [group for one in files for group in (_whole(one) if is_one_range else _groups(one))]
    groups = sorted(found, key=attrgetter("low"))
    nothing = added_rows(arrow_schema(shape.fields).empty_table())
    merging, low = _Merging(groups), b""
    for high in [*_bounds(groups), None]:
        parts = list(merging.below(high))
        held = [rows for file, rows in parts if file.place < len(base)]
        changed = [rows for file, rows in parts if file.place >= len(base)]
        yield MergedRange(KeyRange(low, high), held, [nothing, *changed])
        low = high or b""


def _whole(one: _File) -> list[_Group]:
    one.left = 1
    return [_Group(one, None, b"", one.file.size_bytes)]


def _groups(one: _File) -> list[_Group]:
    file = one.file
    with opened_in_parts(one.target, file.path) as source:
        found = [
            # Nulls have hardly a byte in the file, but some in memory.
            _Group(one, number, low, max(size_bytes, file.size_bytes * rows // max(1, file.rows)))
            for number, low, rows, size_bytes in groups_of(source)
        ]
    one.left = len(found)
    return found


def _bounds(groups: Sequence[_Group]) -> list[bytes]:
    """Return where ranges begin, except the first, so that each has about `PIECE_BYTES` of rows.

    A range begins above the lowest key of the group before: the keys of a table may all begin with the same bytes.
    """
    bounds: list[bytes] = []
    size_bytes, before = 0, b""
    for group in groups:
        if size_bytes >= PIECE_BYTES and group.low > before:
            bounds.append(group.low[: len(commonprefix([before, group.low])) + 1])
            size_bytes = 0
        size_bytes += group.size_bytes
        before = group.low
    return bounds


def rows_in_pieces(target: Target, shape: TableShape, deltas: Sequence[BucketFile]) -> Iterator[pa.Table]:
    """Yield the rows of deltas of a table without a key, with `DELETED`, in pieces of about `PIECE_BYTES`."""
    rows: list[pa.Table] = []
    for file in deltas:
        source = opened(target, file.path)
        for group in range(source.metadata.num_row_groups):
            rows.append(delta_rows(source.read_row_groups([group]), file, shape))
            if sum(one.nbytes for one in rows) >= PIECE_BYTES:
                yield pa.concat_tables(rows)
                rows = []
    if rows:
        yield pa.concat_tables(rows)
