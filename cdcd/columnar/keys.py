"""Operations on the keys of many rows: their CRCs, the last of equal ones, and several sorted parts as one.

In: binary Arrow arrays without nulls.  Out: numbers in numpy arrays.
Invariant: keys are equal if their bytes are, and in the order of their bytes. The C extension `_keys` gives what the
functions in Python give, which are its specification.
Must not: depend on the order of the rows in memory, or on a hash that is known outside: keys come from users.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcd.extensions import extension

__all__ = ["Places", "crc32s", "hashes", "last_places", "merged_places"]

_extension = extension("cdcd.columnar._keys")
_SEED = secrets.randbits(64) | 1
Places = npt.NDArray[np.int64]


def crc32s(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the CRC of each key, as `zlib.crc32` does."""
    if _extension is None:
        return crc32s_in_python(keys)
    found = np.empty(len(keys), np.uint32)
    _extension.crc32s(*_buffers(keys), found)
    return found


def hashes(keys: pa.Array) -> Places:
    """Return a number for each key, the same for equal keys. It is another one in another process."""
    if _extension is None:
        return np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys))
    found = np.empty(len(keys), np.int64)
    _extension.hashes(*_buffers(keys), _SEED, found)
    return found


def last_places(keys: pa.Array) -> Places:
    """Return of equal keys the place of the last one; in the order of the places."""
    if _extension is None:
        return last_places_in_python(keys)
    found = np.empty(len(keys), np.int64)
    return found[: _extension.last_places(*_buffers(keys), _SEED, found)]


def merged_places(parts: Sequence[pa.Array]) -> Places:
    """Return the places of the keys of all parts, in the order of the keys; of equal ones that of the last part.

    `parts`: each with its keys in order. A place is that among the keys of all parts, one after the other.
    """
    if _extension is None:
        return merged_places_in_python(parts)
    found = np.empty(sum(map(len, parts)), np.int64)
    return found[: _extension.merged_places(list(map(_buffers, parts)), found)]


def crc32s_in_python(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return what `crc32s` does."""
    return np.fromiter(map(zlib.crc32, keys.to_pylist()), np.uint32, len(keys))


def last_places_in_python(keys: pa.Array) -> Places:
    """Return what `last_places` does."""
    last = {key: place for place, key in enumerate(keys.to_pylist())}
    return np.sort(np.fromiter(last.values(), np.int64, len(last)))


def merged_places_in_python(parts: Sequence[pa.Array]) -> Places:
    """Return what `merged_places` does."""
    keys = chain.from_iterable(part.to_pylist() for part in parts)
    last = {key: place for place, key in enumerate(keys)}
    return np.fromiter(map(itemgetter(1), sorted(last.items())), np.int64, len(last))


def _buffers(keys: pa.Array) -> tuple[Any, Any]:
    """Return the offsets and the bytes of keys. Raises TypeError for other arrays, ValueError for nulls."""
    if keys.type != pa.binary():
        raise TypeError(f"keys are binary, not {keys.type}")
    if keys.null_count:
        raise ValueError("a key is null")
    if not len(keys):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, offsets, data = keys.buffers()
    places = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    held = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return places, held
