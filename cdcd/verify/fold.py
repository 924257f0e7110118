"""The rows that the topics have at a snapshot, and their comparison with the source by bucket and by row.

In: entries of some keys (`records`), the source's sums or rows.  Out: sums by bucket; differences.
Invariant: a bucket is equal only if PostgreSQL's and our counts are, and the sums of each column that all of its rows
have; a column that no row has says nothing, and where some rows have it the rows decide.
Must not: do I/O, or have more entries in memory than it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from cdcd.extensions import extension
from cdcd.verify.hashes import MISSING, UNCHANGED
from cdcd.verify.records import (
    COPIED,
    DELETED,
    HEAD_BYTES,
    KEY_BYTES,
    POSITION_END,
    UNKNOWN,
    UPDATED,
    Found,
    Place,
    commit_of,
    kind_of,
    lsn_of,
    place_of,
)
from cdcd.verify.sorting import entries_of
from cdcd.verify.visible import View

BUCKETS = 1 << 12
UNCOPIED = "uncopied"
"""The kind of a row without a record in topics that need not have it; no difference."""
REPEATED = "repeated"
"""The kind of a key that several rows of the source have; no difference."""
_BUCKET_SHIFT = 4
_MODULUS = 1 << 64
_extension: Any = extension("cdcd.verify._entries")


class FoldedRow(NamedTuple):
    """A row of the topics. `hashes`: of its columns; None if the row's state is not known, () if it was deleted."""

    key: bytes
    hashes: tuple[int, ...] | None
    place: Place


@dataclass(slots=True)
class BucketSum:
    """What one side has of a bucket. `lacking`: by column, the rows whose records have no comparable value of it."""

    rows: int = 0
    sums: list[int] = field(default_factory=list)
    lacking: list[int] = field(default_factory=list)
    unknown: int = 0


class Difference(NamedTuple):
    """A row that differs. `kind`: missing, extra, different, UNCOPIED or REPEATED; `columns`: numbers of those."""

    kind: str
    key: bytes
    columns: tuple[int, ...] = ()
    place: Place | None = None


def bucket_of(key: bytes) -> int:
    """Return the bucket of a key: the first 12 bits of its hash."""
    return int.from_bytes(key[:2], "big") >> _BUCKET_SHIFT


@dataclass(frozen=True, slots=True)
class Barriers:
    """The truncates of a table as a snapshot sees them, as positions; b"" for none.

    `emptied`: the last visible one, `emptied_in`: the partitions with one; `hidden`: the first invisible one.
    """

    emptied: bytes
    hidden: bytes
    emptied_in: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, found: Found, view: View) -> Barriers:
        """Return the barriers of the records that were found."""
        seen = {one: view.has(lsn_of(one), xid) for one, (xid, _) in found.truncates.items()}
        visible = [one for one, is_visible in seen.items() if is_visible]
        hidden = [one for one, is_visible in seen.items() if not is_visible]
        places = (found.truncates[one][1] for one in visible)
        return cls(max(visible, default=b""), min(hidden, default=b""), frozenset().union(*places))


class Fold:
    """Folds entries as of a snapshot. `skipped_copies`: rows of a copy that were written after the snapshot.

    `incomplete`: rows with an update that has not all values, and no record before it; their state is not known.
    """

    def __init__(self, barriers: Barriers, view: View) -> None:
        self._barriers, self._view = barriers, view
        self.skipped_copies = self.incomplete = 0

    def sums(self, blocks: Iterable[bytes], width: int) -> dict[int, BucketSum]:
        """Return the sums by bucket of the rows of some keys. `blocks`: all entries of these keys, in order."""
        if _extension is None:
            return self.sums_in_python(blocks, width)
        barriers = self._barriers
        found, skipped, incomplete = _extension.sums(
            blocks, width, self._view, barriers.emptied, barriers.hidden
        )
        self.skipped_copies += skipped
        self.incomplete += incomplete
        return {
            number: BucketSum(rows, sums, lacking, unknown)
            for number, (rows, unknown, sums, lacking) in found.items()
        }

    def sums_in_python(self, blocks: Iterable[bytes], width: int) -> dict[int, BucketSum]:
        """Do the same as `sums`: the C extension's specification, but for sums that it has modulo 2^64."""
        found: dict[int, BucketSum] = {}
        size = HEAD_BYTES + 8 * width
        for row in self.rows(entry for block in blocks for entry in entries_of(block, size)):
            add_row(found, row, width)
        return found

    def rows(self, entries: Iterable[bytes]) -> Iterator[FoldedRow]:
        """Yield the rows of some keys, deleted ones too. `entries`: all entries of these keys, in order."""
        for key, of_key in groupby(entries, key=_key_of):
            yield from self._row(key, of_key)

    def _row(self, key: bytes, entries: Iterable[bytes]) -> Iterator[FoldedRow]:
        state: tuple[int, ...] | None = None
        last: bytes | None = None
        entry = b""
        is_unknown = is_hidden = is_incomplete = False
        for entry in entries:
            kind = kind_of(entry)
            if entry[KEY_BYTES:POSITION_END] <= self._barriers.emptied:
                continue
            if not self._view.has(*commit_of(entry)):
                is_hidden = True
                self.skipped_copies += kind == COPIED
            elif kind == COPIED and (is_hidden or self._is_after_hidden(entry)):
                # The row was read after an invisible change of it. If that was not its first change, the state
                # before the change is known.
                is_unknown = is_unknown or last is None
            elif kind == DELETED:
                state, last, is_unknown, is_incomplete = None, entry, False, False
            elif kind == UNKNOWN:
                last, is_unknown, is_incomplete = entry, True, False
            else:
                is_first = is_incomplete or (state is None and not is_unknown)
                is_incomplete = is_first and kind == UPDATED and UNCHANGED in hashes_of(entry, HEAD_BYTES)
                state, last, is_unknown = _merged(None if is_unknown else state, entry), entry, False
        if is_incomplete:
            self.incomplete += 1
        if is_unknown or is_incomplete:
            yield FoldedRow(key, None, place_of(last or entry))
        elif last is not None:
            yield FoldedRow(key, state or (), place_of(last))

    def _is_after_hidden(self, entry: bytes) -> bool:
        hidden = self._barriers.hidden
        return bool(hidden) and entry[KEY_BYTES:POSITION_END] > hidden


def _key_of(entry: bytes) -> bytes:
    return entry[:KEY_BYTES]


def _merged(state: tuple[int, ...] | None, entry: bytes) -> tuple[int, ...]:
    hashes = hashes_of(entry, HEAD_BYTES)
    if UNCHANGED not in hashes:
        return hashes
    former = state or (MISSING,) * len(hashes)
    return tuple(was if now == UNCHANGED else now for was, now in zip(former, hashes, strict=True))


def hashes_of(data: bytes, at: int) -> tuple[int, ...]:
    """Return the hashes of a row's columns, which are the rest of the bytes."""
    return struct.unpack_from(f">{(len(data) - at) // 8}Q", data, at)


def add_row(buckets: dict[int, BucketSum], row: FoldedRow, width: int) -> None:
    """Add a row of the topics to its bucket, unless it was deleted."""
    if row.hashes == ():
        return
    bucket = buckets.get(number := bucket_of(row.key))
    if bucket is None:
        bucket = buckets[number] = BucketSum(0, [0] * width, [0] * width)
    bucket.rows += 1
    if row.hashes is None:
        bucket.unknown += 1
        return
    for column, value in enumerate(row.hashes):
        if value == MISSING:
            bucket.lacking[column] += 1
        else:
            bucket.sums[column] += value


def question_of(found: Found, barriers: Barriers) -> str:
    """Return why records before the snapshot say less than that both sides are equal, "" if they say so."""
    emptied = barriers.emptied
    if emptied:
        _, places = found.truncates[emptied]
        topics = {topic for topic, _ in places}
        if any(at[0] in topics and at not in places and one < emptied for at, one in found.firsts.items()):
            return "the record of a TRUNCATE is not in all partitions of the topic"
    if found.disordered > emptied:
        return "the topic has records twice or not in the order of their positions"
    if found.former > emptied:
        return "the topic has rows of a former table of this name: copy the table again with --recopy"
    return ""


def is_equal(ours: BucketSum | None, theirs: BucketSum | None) -> bool:
    """Return whether the sums of a bucket show that both sides have the same rows. `theirs`: the source's."""
    if ours is None or theirs is None:
        return (ours is None or ours.rows == 0) and (theirs is None or theirs.rows == 0)
    if ours.rows != theirs.rows or ours.unknown:
        return False
    if all(lacking == ours.rows for lacking in ours.lacking):
        return False  # only the number of rows is the same: their keys decide
    return all(
        lacking == ours.rows or (not lacking and (one - other) % _MODULUS == 0)
        for one, other, lacking in zip(ours.sums, theirs.sums, ours.lacking, strict=True)
    )


def compare_rows(
    ours: Iterable[FoldedRow], theirs: Mapping[bytes, tuple[int, ...]], *, is_copied: bool = True
) -> Iterator[Difference]:
    """Yield the differences of some keys. `theirs`: the source's rows by key, all of the same keys.

    `is_copied`: the topics have all rows from before the stream; otherwise a row without a record is `uncopied`.
    """
    seen: set[bytes] = set()
    for row in ours:
        seen.add(row.key)
        source = theirs.get(row.key)
        if row.hashes is None:
            continue
        if (row.hashes == ()) != (source is None):
            yield Difference("missing" if row.hashes == () else "extra", row.key, (), row.place)
        if row.hashes == () or source is None:
            continue
        columns = tuple(
            number
            for number, (one, other) in enumerate(zip(row.hashes, source, strict=True))
            if one not in (other, MISSING)
        )
        if columns:
            yield Difference("different", row.key, columns, row.place)
    for key in theirs:
        if key not in seen:
            yield Difference("missing" if is_copied else UNCOPIED, key)
