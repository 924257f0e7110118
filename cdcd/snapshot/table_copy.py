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
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cdcd.lsn import Lsn
from cdcd.model import Record
from cdcd.snapshot.changed_keys import ChangedKeys, KeyValues
from cdcd.snapshot.visibility import Snapshot


@dataclass(frozen=True, slots=True)
class CopyState:
    """The state of one table's copy, as the progress record has it.

    `after`: the key of the last row read, or the end of the last range of blocks; None before the first chunk.
    `is_by_blocks`: the rows are read in the order of the file. `is_scanned`: the last range was read. `read_again`:
    the keys of rows that readers have incompletely.
    """

    after: KeyValues | None = None
    is_by_blocks: bool = False
    is_scanned: bool = False
    read_again: Mapping[bytes, KeyValues] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether readers have every row."""
        return self.is_scanned and not self.read_again


class RangeChunk(NamedTuple):
    """The next rows after a key, or after a block; None: from the first on."""

    after: KeyValues | None


class KeysChunk(NamedTuple):
    """The rows of these keys."""

    keys: dict[bytes, KeyValues]


Chunk = RangeChunk | KeysChunk


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

    def __init__(self, state: CopyState, changed: ChangedKeys, *, max_keys: int, keys_per_chunk: int) -> None:
        self.state = state
        self.changed = changed
        self._max_keys = max_keys
        self._keys_per_chunk = keys_per_chunk
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
        """Return whether readers may not have the row from before an incomplete record."""
        if not self.state.is_scanned:
            return key in moved or self.state.is_by_blocks
        return moved.get(key) in self.state.read_again

    def next_chunk(self) -> Chunk | None:
        """Return the chunk to read, None if the copy is complete. Ranges come first: they may read keys again."""
        if not self.state.is_scanned:
            self._reading = RangeChunk(self.state.after)
        elif self.state.read_again:
            keys = list(self.state.read_again.items())[: self._keys_per_chunk]
            self._reading = KeysChunk(dict(keys))
        else:
            self._reading = None
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

        `after`: the end of a range, None if it was the last one. To be called when everything committed before the
        chunk's end was received. From then on `state` belongs to the records: both are committed together.
        """
        requested = chunk.keys if isinstance(chunk, KeysChunk) else {}
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

    def _read_again(self, keys: Mapping[bytes, KeyValues]) -> None:
        if len(keys) > self._max_keys:
            # All rows are read again, by key. Rows that are not visible yet were in the list too: no chunk is
            # emitted before a snapshot sees them.
            self.state = CopyState()
            self.changed.lose_track()
            self._reading = None
        else:
            self.state = replace(self.state, read_again=dict(keys))
