"""The topics that lack rows of their tables until a copy brings them. Stored with the identities of the topics.

In: what the stream, the comparisons of the publications and the copies find out.  Out: the topics; JSON.
Invariant: a topic is listed before the first record of a table that has joined, and before the truncate event of a
copy that empties it; it is removed when the copy is complete, or when it is certain that there is none to wait for.
The begin and the end of a copy take effect in the Kafka transaction whose position was made after them, so that
neither a reader nor the next session sees one without the other. A position that was made earlier, and is written
later, changes nothing. Tables are known by relid: the topic of a table may change.
Readers treat these topics as those of tables that are being copied.
Must not: do I/O.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["IncompleteTopics"]


@dataclass(slots=True)
class _Event:
    """The begin, or the end, of a table's copy."""

    number: int
    relid: int
    topic: str
    is_end: bool


class IncompleteTopics:
    """The topics of one slot, by relid. `is_changed`: they have to be written.

    `joined`: tables that have joined the publications: their copies wait, or no comparison has decided yet whether
    they need one. `begun`: tables whose topics are complete only with a copy that has begun, also if it was stopped.
    `recorded` is called in the writer's thread, the other methods on the loop.
    """

    def __init__(
        self, joined: Mapping[int, str] | None = None, begun: Mapping[int, str] | None = None
    ) -> None:
        self.joined: dict[int, str] = dict(joined or {})
        self.begun: dict[int, str] = dict(begun or {})
        self.is_changed = False
        self._lock = threading.Lock()
        self._events: deque[_Event] = deque()
        """Those that no progress record has yet."""
        self._number = 0

    def names(self) -> tuple[str, ...]:
        """Return all topics."""
        return tuple(dict.fromkeys((*self.joined.copy().values(), *self.begun.copy().values())))

    def join(self, relid: int, topic: str) -> None:
        """Add a table that has joined."""
        with self._lock:
            if relid not in self.begun and self.joined.get(relid) != topic:
                self.joined[relid] = topic
                self.is_changed = True

    def moves(self, relid: int, topic: str) -> None:
        """Note the topic to which the rows of a table go from now on: no row arrives in another one any more."""
        with self._lock:
            for event in self._events:
                if event.relid == relid:
                    event.topic = topic
            for tables in (self.joined, self.begun):
                if tables.get(relid, topic) != topic:
                    tables[relid] = topic
                    self.is_changed = True

    # --- the copies ---

    @property
    def noted(self) -> int:
        """The number of the last event that no progress record has, 0 if there is none: a position has it."""
        return self._number if self._events else 0

    def begins(self, relid: int, topic: str) -> None:
        """Note that a table is complete only with a copy; the position that has it follows."""
        self._note(relid, topic, is_end=False)

    def completes(self, relid: int, topic: str) -> None:
        """Note that a table is complete; the position that says so follows."""
        self._note(relid, topic, is_end=True)

    def _note(self, relid: int, topic: str, *, is_end: bool) -> None:
        with self._lock:
            self._number += 1
            self._events.append(_Event(self._number, relid, topic, is_end))

    def recorded(self, noted: int) -> None:
        """Apply the events up to this number: `noted` of the position that is being written."""
        with self._lock:
            while self._events and self._events[0].number <= noted:
                event = self._events.popleft()
                if event.is_end:
                    self._complete(event.relid, event.topic)
                else:
                    self._begin(event.relid, event.topic)

    def begin(self, relid: int, topic: str) -> None:
        """Add, at once, a table that is complete only with a copy."""
        with self._lock:
            self._begin(relid, topic)

    def _begin(self, relid: int, topic: str) -> None:
        was_joined = self.joined.pop(relid, None) is not None
        if was_joined or self.begun.get(relid) != topic:
            self.begun[relid] = topic
            self.is_changed = True

    def _complete(self, relid: int, topic: str) -> None:
        """Remove a table, and former tables of the same topic: a new table's copy replaces their rows."""
        former = [other for other, its in self.begun.items() if its == topic]
        self._remove([relid], self.joined)
        self._remove([relid, *former], self.begun)

    # --- what lacks rows no more ---

    def leave(self, relids: Collection[int]) -> None:
        """Remove tables that have joined, and that no copy is to follow."""
        with self._lock:
            self._remove(relids, self.joined)

    def drop(self, relids: Collection[int]) -> bool:
        """Remove tables that do not exist any more: no copy can follow. Return whether there were any."""
        with self._lock:
            is_any = self._remove(relids, self.joined)
            return self._remove(relids, self.begun) or is_any

    def forget(self, topic: str) -> None:
        """Remove a topic that is accepted as it is."""
        with self._lock:
            for tables in (self.joined, self.begun):
                self._remove([relid for relid, its in tables.items() if its == topic], tables)

    def clear(self) -> None:
        """Remove all: every table is copied again."""
        with self._lock:
            if self.joined or self.begun:
                self.is_changed = True
            self.joined, self.begun = {}, {}
            self._events.clear()

    def _remove(self, relids: Collection[int], tables: dict[int, str]) -> bool:
        """Remove tables; return whether there were any. Another thread may have reset `is_changed` meanwhile."""
        found = [relid for relid in relids if tables.pop(relid, None) is not None]
        if found:
            self.is_changed = True
        return bool(found)

    # --- JSON ---

    def dump(self) -> dict[str, Any]:
        """Return the JSON object, empty without topics, and reset `is_changed`."""
        with self._lock:
            self.is_changed = False
            stored = {"joined": sorted(self.joined.items()), "begun": sorted(self.begun.items())}
        return {
            kind: {str(relid): topic for relid, topic in tables} for kind, tables in stored.items() if tables
        }

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> IncompleteTopics:
        """Return the topics that `dump` has written. Raises ValueError, TypeError, AttributeError."""
        return cls(_tables(document.get("joined", {})), _tables(document.get("begun", {})))


def _tables(document: Mapping[str, Any]) -> dict[int, str]:
    return {int(relid): str(topic) for relid, topic in document.items()}
