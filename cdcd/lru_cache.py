"""A mapping of what was used last, bounded: where one more would be too many, the one not used for longest goes.

In: keys and values, a limit.  Out: the values that are still there.
Invariant: never more than `limit` of them. Whoever keeps something here can make it again, or does without it.
Threads may share one.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

__all__ = ["LruCache"]

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `limit` values by key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}  # the one used last at the end
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value, None where there is none (any more); this is a use of it."""
        with self._lock:
            if key not in self._values:
                return None
            value = self._values[key] = self._values.pop(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value; it is the one used last."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            while len(self._values) > self._limit:
                del self._values[next(iter(self._values))]

    def clear(self) -> None:
        """Keep nothing of it."""
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)
