"""One streamed transaction: its older part in segments, its newest in memory.

In: items in order, aborts of subtransactions.  Out: the items in order, once; each is freed when it was read.
Invariant: equal to `txn.store.MemoryStore` at every moment, for items in memory and on disk. Items on disk need no
memory: the segments' headers are their index. An abort stores, for its xid, the position on disk up to which its
changes are dropped: one entry, whose number the assembler limits; nothing is rewritten. Appending and aborting change
memory only, so `txn` does no I/O.
Must not: decide when to write; its pool does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Protocol

from cdcd.model import Control, RowBatch
from cdcd.spill.folder import Segment, failure
from cdcd.spill.pieces import HEADER_BYTES, bytes_of, header_of, read_header, read_item
from cdcd.txn.store import abortable_xid

BLOCK_BYTES = 1 << 20
"""Pieces are written together up to about this size."""

# The memory of CPython for an item, its bytes' header and its list entries; and for the first item of an xid.
_ITEM_BYTES = 220
_XID_BYTES = 260
_DROPPED_BYTES = 8

MAX_SKIPPED_PIECES = 5_000
"""The most dropped pieces that are skipped at a time, which takes some milliseconds."""


class Disk(Protocol):
    """The methods of its pool that a store calls."""

    def held(self, difference_bytes: int) -> None:
        """Add a change of the memory in use."""

    def write(self, segments: list[Segment], data: bytes) -> None:
        """Append to the last of the segments or to a new one."""

    def reader(self, segment: Segment) -> BinaryIO:
        """Open a segment for reading."""

    def remove(self, segment: Segment) -> None:
        """Remove a segment."""

    def forget(self, store: SpillStore) -> None:
        """Remove a store that is empty and will not be used again."""


class SpillStore:
    """A `ChangeStore` that its pool may move to disk, part by part. `memory_bytes`: its memory now."""

    __slots__ = (
        "_disk",
        "_dropped",
        "_items",
        "_places_by_xid",
        "_segments",
        "_written_bytes",
        "memory_bytes",
    )

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._items: list[RowBatch | Control | None] = []
        self._places_by_xid: dict[int, list[int]] = {}
        self._segments: list[Segment] = []
        self._written_bytes = 0
        self._dropped: dict[int, int] = {}
        """By xid: the number of bytes written when the subtransaction was aborted."""
        self.memory_bytes = 0

    @property
    def is_spilled(self) -> bool:
        """Whether a part of the transaction is, or was, on disk."""
        return self._written_bytes > 0

    def append(self, item: RowBatch | Control) -> None:
        """Append an item, in memory."""
        size_bytes = _ITEM_BYTES + len(bytes_of(item))
        xid = abortable_xid(item)
        if xid is not None:
            places = self._places_by_xid.get(xid)
            if places is None:
                places = self._places_by_xid[xid] = []
                size_bytes += _XID_BYTES
            places.append(len(self._items))
        self._items.append(item)
        self._hold(size_bytes)

    def abort_subtransaction(self, xid: int) -> None:
        """Drop the changes of this subtransaction: free those in memory, skip those on disk at the replay."""
        places = self._places_by_xid.pop(xid, None)
        if places is not None:
            for place in places:
                item = self._items[place]
                assert item is not None
                self._items[place] = None
                self._hold(_DROPPED_BYTES - _ITEM_BYTES - len(bytes_of(item)))
            self._hold(-_XID_BYTES)
        if self._written_bytes:
            self._dropped[xid] = self._written_bytes

    def spill(self) -> None:
        """Write all items in memory. Raises SpillFull, SpillError; unwritten items stay in memory for a retry."""
        parts: list[bytes] = []
        size_bytes = written = 0
        try:
            for at, item in enumerate(self._items):
                if item is not None:
                    parts += (header_of(item), bytes_of(item))
                    size_bytes += len(parts[-2]) + len(parts[-1])
                if size_bytes >= BLOCK_BYTES:
                    self._write(parts)
                    size_bytes, written = 0, at + 1
            self._write(parts)
            written = len(self._items)
        finally:
            self._keep_from(written)

    def replay(self) -> Iterator[RowBatch | Control | None]:
        """Yield the stored items in the order of appending, and free each; to be called once, at the end.

        Yields None after many dropped items in a row.
        """
        start = 0
        while self._segments:
            segment = self._segments[0]
            with self._disk.reader(segment) as file:
                yield from self._replay_segment(file, start, segment.size_bytes)
            start += segment.size_bytes
            self._disk.remove(self._segments.pop(0))
        items, self._items = self._items, []
        items.reverse()
        while items:
            item = items.pop()
            if item is not None:
                yield item
        self._hold(-self.memory_bytes)

    def discard(self) -> None:
        """Free all memory and files; the store is not used again."""
        self._keep_from(len(self._items))
        for segment in self._segments:
            self._disk.remove(segment)
        self._segments.clear()
        self._dropped.clear()
        self._disk.forget(self)

    # --- inside --------------------------------------------------------------------------------------------

    def _replay_segment(
        self, file: BinaryIO, start: int, size_bytes: int
    ) -> Iterator[RowBatch | Control | None]:
        at = dropped = 0
        while at < size_bytes:
            length, item = self._next_piece(file, start + at)
            at += length
            dropped = 0 if item is not None else dropped + 1
            if item is not None or dropped % MAX_SKIPPED_PIECES == 0:
                yield item

    def _next_piece(self, file: BinaryIO, at: int) -> tuple[int, RowBatch | Control | None]:
        """Return the next piece's length and its item, None if dropped; `at` is the position over all segments."""
        try:
            header = read_header(file)
            length = HEADER_BYTES + header.length
            if self._is_dropped(header.batch_xid, at):
                file.seek(header.length, 1)
                return length, None
            item = read_item(file, header)
        except OSError as error:
            raise failure(error, "reading a segment back") from error
        return length, None if self._is_dropped(abortable_xid(item), at) else item

    def _is_dropped(self, xid: int | None, at: int) -> bool:
        return xid is not None and at < self._dropped.get(xid, 0)

    def _write(self, parts: list[bytes]) -> None:
        if parts:
            data = b"".join(parts)
            parts.clear()
            self._disk.write(self._segments, data)
            self._written_bytes += len(data)

    def _keep_from(self, place: int) -> None:
        """Remove the items before the index `place`."""
        rest = self._items[place:]
        self._hold(-self.memory_bytes)
        self._items, self._places_by_xid = [], {}
        for item in rest:
            if item is not None:
                self.append(item)

    def _hold(self, difference_bytes: int) -> None:
        self.memory_bytes += difference_bytes
        self._disk.held(difference_bytes)
