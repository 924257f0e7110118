"""Which files of the Delta or Iceberg tables of a target may have a key, as far as the driver knows it.

In: the keys of files that were written or read.  Out: of the keys of a batch, those that a file may have.
Invariant: a key that a file has is among them. The memory is bounded: a file without room is one of which nothing is
known, so each batch reads its keys.
Must not: read or write a file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcd.columnar.keys import hashes

__all__ = ["FileKeys", "HashedKeys", "hashed"]

MOST_BYTES = 256 << 20
"""The most memory for the keys of all files."""
HASH_BYTES = 8
Hashes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """Keys in the order of their hashes."""

    keys: pa.Array
    hashes: Hashes


def hashed(keys: pa.Array) -> HashedKeys:
    """Return the keys in the order of their hashes."""
    found = _hashes_of(keys)
    order = np.argsort(found)
    return HashedKeys(keys.take(pa.array(order)), found[order])


class FileKeys:
    """The hashes of the keys of files, by the files' paths. Threads may use it at the same time."""

    def __init__(self) -> None:
        self._hashes: dict[str, Hashes] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def add(self, path: str, keys: pa.Array | pa.ChunkedArray) -> None:
        """Note all keys of a file, if there is room for them."""
        if not self.lacks(path, len(keys)):
            return
        found = np.sort(_hashes_of(keys))
        with self._lock:
            if self.lacks(path, len(keys)):
                self._hashes[path] = found
                self._size_bytes += found.nbytes

    def remove(self, paths: Iterable[str]) -> None:
        """Make room: these files are no longer those of a table."""
        with self._lock:
            for path in paths:
                if (gone := self._hashes.pop(path, None)) is not None:
                    self._size_bytes -= gone.nbytes

    def lacks(self, path: str, rows: int) -> bool:
        """Return whether the keys of a file are not known, and there is room for them."""
        return path not in self._hashes and self._size_bytes + HASH_BYTES * rows <= MOST_BYTES

    def asked(self, path: str, keys: HashedKeys) -> pa.Array:
        """Return the keys that a file may have: all of them if nothing is known of it."""
        held = self._hashes.get(path)
        if held is None:
            return keys.keys
        if not len(held):
            return keys.keys[:0]
        places = np.searchsorted(held, keys.hashes)
        places[places == len(held)] = 0
        return keys.keys.filter(pa.array(held[places] == keys.hashes))


def _hashes_of(keys: pa.Array | pa.ChunkedArray) -> Hashes:
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    return np.concatenate([np.empty(0, np.int64), *map(hashes, chunks)])
