"""Where the contents of a streamed transaction wait for its commit.

In: the items between its Stream Starts and Stops, in order.  Out: the same items, in order, without those of
aborted subtransactions.
Invariant: Relation and Type messages are never dropped, whichever subtransaction they carry: the server
counts them as sent for the whole top-level transaction and does not repeat them after the abort (F26, F29).
Must not: decode more than the type byte and the xid behind it.
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
        """Keep an item at the end."""

    def abort_subtransaction(self, xid: int) -> None:
        """Drop the changes of this subtransaction. A store may have to remember it, so tell it of those with some."""

    def replay(self) -> Iterator[RowBatch | Control | None]:
        """Yield what is kept, in the order of appending; called once, and nothing is appended afterwards.

        None stands for nothing: the search for the next takes long, and others may want a turn (F14).
        """

    def discard(self) -> None:
        """The transaction has ended: give back memory, and whatever else holds it; not used again."""


def abortable_xid(item: RowBatch | Control) -> int | None:
    """Return the (sub)transaction whose abort drops this item, None for one that stays in any case.

    A Message carries the top-level xid even when a subtransaction emitted it, as the server writes it so.
    """
    if isinstance(item, RowBatch):
        return item.xid
    if item.payload[0] in _ABORTABLE_TYPES:
        xid: int = _XID.unpack_from(item.payload, 1)[0]
        return xid
    return None


class MemoryStore:
    """A ChangeStore in memory. An abort costs what the subtransaction has, not what the store has."""

    __slots__ = ("_items", "_places_by_xid")

    def __init__(self) -> None:
        self._items: list[RowBatch | Control | None] = []
        self._places_by_xid: dict[int, list[int]] = {}

    def append(self, item: RowBatch | Control) -> None:
        """Keep an item at the end."""
        xid = abortable_xid(item)
        if xid is not None:
            self._places_by_xid.setdefault(xid, []).append(len(self._items))
        self._items.append(item)

    def abort_subtransaction(self, xid: int) -> None:
        """Drop the changes of this subtransaction and free their memory."""
        for place in self._places_by_xid.pop(xid, ()):
            self._items[place] = None

    def replay(self) -> Iterator[RowBatch | Control | None]:
        """Yield what is kept, in the order of appending."""
        return (item for item in self._items if item is not None)

    def discard(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._places_by_xid.clear()
