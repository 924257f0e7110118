"""The storage for the contents of a streamed transaction until its commit.

In: the items between its Stream Starts and Stops, in order.  Out: the same items, in order, without those of
aborted subtransactions.
Invariant: Relation and Type messages are never dropped, even if their subtransaction is aborted: for the server they
are sent for the whole top-level transaction, and it does not repeat them after the abort (F26, F29).
Must not: decode more than the type byte and the xid after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from cdcd.model import Control, RowBatch

_XID = struct.Struct(">I")
_ABORTABLE_TYPES = b"TM"


class ChangeStore(Protocol):
    """The contents of one streamed transaction of one session."""

    def append(self, item: RowBatch | Control) -> None:
        """Append an item."""

    def abort_subtransaction(self, xid: int) -> None:
        """Drop the changes of this subtransaction, which must have some: a store may remember the xid."""

    def replay(self) -> Iterator[RowBatch | Control | None]:
        """Yield the stored items in the order of appending; to be called once, with no append afterwards.

        Yields None while the search for the next item takes long, so that other tasks can run (F14).
        """

    def discard(self) -> None:
        """Free the memory and files of a transaction that has ended; the store is not used again."""


def abortable_xid(item: RowBatch | Control) -> int | None:
    """Return the (sub)transaction whose abort drops this item, None if no abort drops it.

    The server sends a Message with the top-level xid even if a subtransaction emitted it.
    """
    if isinstance(item, RowBatch):
        return item.xid
    if item.payload[0] in _ABORTABLE_TYPES:
        xid: int = _XID.unpack_from(item.payload, 1)[0]
        return xid
    return None


class MemoryStore:
    """A ChangeStore in memory. The cost of an abort depends on the subtransaction's size, not on the store's."""

    __slots__ = ("_items", "_places_by_xid")

    def __init__(self) -> None:
        self._items: list[RowBatch | Control | None] = []
        self._places_by_xid: dict[int, list[int]] = {}

    def append(self, item: RowBatch | Control) -> None:
        """Append an item."""
        xid = abortable_xid(item)
        if xid is not None:
            self._places_by_xid.setdefault(xid, []).append(len(self._items))
        self._items.append(item)

    def abort_subtransaction(self, xid: int) -> None:
        """Drop the changes of this subtransaction and free their memory."""
        for place in self._places_by_xid.pop(xid, ()):
            self._items[place] = None

    def replay(self) -> Iterator[RowBatch | Control | None]:
        """Yield the stored items in the order of appending."""
        return (item for item in self._items if item is not None)

    def discard(self) -> None:
        """Remove all items."""
        self._items.clear()
        self._places_by_xid.clear()
