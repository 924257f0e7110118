"""The events of one item in order, with a bounded look-ahead.

In: the events of an item, and the items read with it.  Out: one event after the other; the relations of later rows.
Invariant: the look-ahead changes neither the order nor the events. It is bounded in events and bytes.
Must not: wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from cdcd.model import Item
from cdcd.txn.events import Event, Rows
from cdcd.txn.lookahead import MOST_BYTES, MOST_EVENTS, Lookahead, of_events, of_items

__all__ = ["EventQueue"]


class EventQueue:
    """One for the session: call `reads` for each item, and `begin` for an item that is not a transaction batch."""

    def __init__(self) -> None:
        self._items: Sequence[Item] = ()
        self._at = 0
        self._events: Iterator[Event] = iter(())
        self._looked_at: deque[Event] = deque()

    def reads(self, items: Sequence[Item], at: int) -> None:
        """Set the item at this index as the next one; the items after it were read by the same drain."""
        self._items, self._at = items, at

    def begin(self, events: Iterator[Event]) -> None:
        """Take the events of the next item; those of the last one are consumed."""
        self._events = events

    def next(self) -> Event | None:
        """Return the next event, None at the end of the item."""
        return self._looked_at.popleft() if self._looked_at else next(self._events, None)

    def look_ahead(self, relids: Collection[int]) -> Lookahead:
        """Return the relations that have rows in the following events, and these `relids`.

        The look-ahead covers a part of a replay, which is one item of any size, and all items of the same drain.
        """
        left_bytes = MOST_BYTES
        while left_bytes > 0 and len(self._looked_at) < MOST_EVENTS:
            if (event := next(self._events, None)) is None:
                break
            self._looked_at.append(event)
            left_bytes -= len(event.batch.frames) if isinstance(event, Rows) else 0
        found = [of_events(self._looked_at), of_items(self._items[self._at + 1 :])]
        described = found[1].described | found[0].described
        return Lookahead({*relids, *found[0].relids, *found[1].relids}, described)
