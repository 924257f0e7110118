"""A bounded mapping: beyond its limit, the least recently used value is removed.

In: keys and values, a limit.  Out: the values that are still stored.
Invariant: there are never more than `limit` values. A caller can recreate a removed value, or works without it.
Threads may share a cache.
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
        self._values: dict[K, V] = {}  # the most recently used value is the last
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used; None if the key is not, or no longer, stored."""
        with self._lock:
            if key not in self._values:
                return None
            value = self._values[key] = self._values.pop(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Store a value as the most recently used."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            while len(self._values) > self._limit:
                del self._values[next(iter(self._values))]

    def newest(self) -> V | None:
        """Return the most recently used value, None if there is none."""
        with self._lock:
            return next(reversed(self._values.values()), None)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)
