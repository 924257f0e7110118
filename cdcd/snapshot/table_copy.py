"""Decide what is read next while one table is copied chunk by chunk, and what a chunk's end makes of it.

In: the state of the last progress record, the stream's changes of the table, chunks that were read.
Out: the next chunk, the records to emit, the state for the progress record that is committed with them.
Invariant: readers have every row of the ranges up to `after`, with all its values, unless `read_again` has its key.
Unchanged values that PostgreSQL did not send (F46) are only complete if readers have the row from before. They do not
have it if a row moved out of the part that is still to be read: by a change of its key, or, in a copy by blocks, by
any update. Such a key is read again.
Must not: do I/O, or decide when a chunk may be emitted (see `ChangedKeys.filter`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cdcd.lsn import Lsn
from cdcd.model import KeyValues, Record, TableCopyState
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.visibility import Snapshot

MAX_BYTES_TO_READ_AGAIN = 64 * 1024
"""The progress record has the keys to read again, and has to fit into one record of Kafka."""


class RangeChunk(NamedTuple):
    """The next rows after a key, or after a block; None: from the first on."""

    after: KeyValues | None


class KeysChunk(NamedTuple):
    """The rows of these keys."""

    keys: dict[bytes, KeyValues]


Chunk = RangeChunk | KeysChunk


class TableDifference(NamedTuple):
    """Keys whose rows the table does not have, and records of rows that readers may not have."""

    gone: list[bytes]
    rows: list[Record]


class ChunkPosition(NamedTuple):
    """The sequence of a chunk's last record. The next chunk at the same LSN continues its numbers, in any session."""

    commit_lsn: Lsn
    tx_seq: int


def chunk_position(last: ChunkPosition | None, covered_lsn: Lsn) -> ChunkPosition:
    """Return the commit LSN of a chunk emitted at `covered_lsn`, and the number before its first record.

    `covered_lsn`: everything committed before it was received (F33: not the confirmable LSN). One byte less is above
    every commit before, and below every commit that follows, which may begin exactly there (F1).
    """
    commit_lsn = covered_lsn - 1
    is_same = last is not None and last.commit_lsn == commit_lsn
    return ChunkPosition(commit_lsn, last.tx_seq if last is not None and is_same else 0)


class TableCopy:
    """The copy of one table in one session. `changed` is its tracker; `max_keys` bounds the keys to read again."""

    def __init__(
        self, state: TableCopyState, changed: ChangedKeys, *, max_keys: int, keys_per_chunk: int
    ) -> None:
        self.state = state
        self.changed = changed
        self._max_keys = max_keys
        self.keys_per_chunk = keys_per_chunk
        self._reading: Chunk | None = None

    def note(
        self,
        xid: int,
        keys: Collection[bytes],
        incomplete: Mapping[bytes, KeyValues] | None = None,
        moved: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Note the keys that a transaction has written, as `ChangedKeys.note`.

        `moved`: the old key of each incomplete key that a change of a key has written.
        """
        self.changed.note(xid, keys, incomplete)
        if incomplete:
            again = self.state.read_again
            added = {
                key: values
                for key, values in incomplete.items()
                if key not in again and self._is_without_its_row(key, moved or {})
            }
            self._read_again({**again, **added})

    def _is_without_its_row(self, key: bytes, moved: Mapping[bytes, bytes]) -> bool:
        """Return whether readers may not have the row from before an incomplete record.

        A row may move twice in a transaction: then its old key is a new key of the same transaction.
        """
        if not self.state.is_scanned:
            return key in moved or self.state.is_by_blocks
        old = moved.get(key)
        return old in self.state.read_again or old in moved

    def next_chunk(self) -> Chunk | None:
        """Return the chunk to read, None if the copy is complete.

        Ranges come first, as long as few keys are to be read again: a range may read them, too.
        """
        is_many = len(self.state.read_again) >= self.keys_per_chunk
        if not self.state.is_scanned and not is_many:
            self._reading = RangeChunk(self.state.after)
        elif self.state.read_again:
            keys = list(self.state.read_again.items())[: self.keys_per_chunk]
            self._reading = KeysChunk(dict(keys))
        else:
            self._reading = None
        return self._reading

    def next_in_range(self, after: KeyValues) -> RangeChunk | None:
        """Return the chunk of further rows that were read together with those up to `after`.

        None if the copy has begun again since.
        """
        if self.state.is_scanned or self.state.after != after:
            return None
        self._reading = RangeChunk(after)
        return self._reading

    def may_read(self, snapshot: Snapshot) -> bool:
        """Return whether the next chunk may be read in this snapshot; no earlier snapshot is used any more.

        If not, transactions that may have committed before the tracking began are not visible yet.
        """
        self.changed.forget(snapshot)
        return self.changed.may_use(snapshot)

    def emit(
        self, chunk: Chunk, snapshot: Snapshot, records: Sequence[Record], after: KeyValues | None
    ) -> list[Record] | None:
        """Return the records of a chunk to emit; None: the chunk has to be read again, in a later snapshot.

        `after`: the end of a range, None if it was the last one; of a chunk by keys, None if all its rows were read.
        To be called when everything committed before the chunk's end was received. From then on `state` belongs to
        the records: both are committed together.
        """
        requested = chunk.keys if isinstance(chunk, KeysChunk) else {}
        if requested and after is not None:
            read = {record.key for record in records}
            requested = {key: values for key, values in requested.items() if key in read}
        found = self.changed.filter(snapshot, records, requested)
        if found is None or chunk is not self._reading:
            return None
        self._reading = None
        if isinstance(chunk, RangeChunk):
            end = self.state.after if after is None else after
            self.state = replace(self.state, after=end, is_scanned=after is None)
        rest = {key: values for key, values in self.state.read_again.items() if key not in requested}
        self._read_again(rest | found.read_again)
        self.changed.forget(snapshot)
        return found.records

    def compare(
        self, snapshot: Snapshot, keys: Collection[bytes], rows: Sequence[Record]
    ) -> TableDifference | None:
        """Return what to write of a chunk that looks up keys which only readers may have; None: look them up again.

        `rows`: the records of all rows of these keys. To be called as `emit`, after the last range. A key without a
        row, which no later change has written, is gone: its newest record can be followed by a delete.
        """
        if not self.state.is_scanned or self.state.read_again:
            return None  # the copy has begun again, or the stream has left a row incomplete
        found = {record.key for record in rows}
        gone = self.changed.unchanged(snapshot, (key for key in keys if key not in found))
        left = self.changed.filter(snapshot, rows, keys)
        if gone is None or left is None:
            return None
        if not found.issubset(keys) and len(left.records) < len(rows):
            # A later change of a row whose key is equal, with other bytes, is written already: a delete after it
            # would remove the row from readers that take both for one key.
            return None
        self._read_again(left.read_again)
        self.changed.forget(snapshot)
        return TableDifference(gone, left.records)

    def written(self, rows: int, began_lsn: Lsn = 0, began_as: str = "") -> None:
        """Count rows that were emitted. `began_lsn`: a BEGIN with this commit LSN and id precedes them."""
        if began_lsn:
            self.state = replace(self.state, began_lsn=began_lsn, began_as=began_as, rows=rows, rows_before=0)
        elif rows:
            self.state = replace(self.state, rows=self.state.rows + rows)

    def restart(self) -> None:
        """Read all rows again, by key.

        Rows that are not visible yet may have been in the list of those to read again: no chunk is emitted before a
        snapshot sees them.
        """
        self.state = self.state.from_the_first_row()
        self.changed.lose_track()
        self._reading = None

    def _read_again(self, keys: Mapping[bytes, KeyValues]) -> None:
        if len(keys) > self._max_keys or sum(map(len, keys)) > MAX_BYTES_TO_READ_AGAIN:
            self.restart()
        else:
            self.state = replace(self.state, read_again=dict(keys))
