"""The plan's set of existing rows of one table, with a rollback.

In: keys added and removed, in the order of the statements.  Out: some live key, chosen by a seeded generator.
Invariant: after `rollback(mark)` the set of keys is the same as at the call of `mark()`.
Must not: query a database.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from random import Random
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class LiveKeys(Generic[KeyT]):
    """The keys that exist now, with a journal so that a rollback can undo changes."""

    def __init__(self, keys: Iterator[KeyT]) -> None:
        self._keys: list[KeyT] = list(keys)
        self._place = {key: place for place, key in enumerate(self._keys)}
        self._journal: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def pick(self, random: Random) -> KeyT:
        """Return some live key."""
        return self._keys[random.randrange(len(self._keys))]

    def add(self, key: KeyT) -> None:
        """Note that a row with this key exists."""
        self._put(key)
        self._journal.append(lambda: self._take(key))

    def remove(self, key: KeyT) -> None:
        """Note that the row with this key is gone."""
        self._take(key)
        self._journal.append(lambda: self._put(key))

    def clear(self) -> None:
        """Note that all rows are gone."""
        before = self._keys
        self._keys, self._place = [], {}

        def restore() -> None:
            self._keys = before
            self._place = {key: place for place, key in enumerate(before)}

        self._journal.append(restore)

    def mark(self) -> int:
        """Return a position for `rollback`."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo all changes since `mark`."""
        while len(self._journal) > mark:
            self._journal.pop()()

    def forget(self) -> None:
        """Drop the journal, so that the changes are final."""
        self._journal.clear()

    def _put(self, key: KeyT) -> None:
        self._place[key] = len(self._keys)
        self._keys.append(key)

    def _take(self, key: KeyT) -> None:
        place = self._place.pop(key)
        last = self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._place[last] = place
