"""Look over the frames of a run without reading their tuples.

In: a `Run`.  Out: how many rows of which relation and kind it has; its rows apart.
Invariant: bounds are those of the run; a frame that ends outside it is an error, like everywhere.
Wire source: protocol messages Insert, Update, Delete: type byte, in a stream an int32 xid, int32 relid.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping

from cdcd.errors import MessageTruncated
from cdcd.extensions import extension
from cdcd.frame_layout import FRAME_BYTES, relid_at
from cdcd.model import Run

_EXTENSION = extension("cdcd.txn._frames")
_uint32_at = struct.Struct(">I").unpack_from


def first_relid(run: Run) -> int:
    """Return the relid that a run's first row names. Raises MessageTruncated."""
    try:
        relid: int = _uint32_at(run.frames, FRAME_BYTES + relid_at(run.xid))[0]
    except struct.error:
        raise MessageTruncated("a run ends inside its first row message") from None
    return relid


def single_rows(run: Run) -> Iterator[Run]:
    """Yield a run's rows one by one, as runs. Raises MessageTruncated."""
    data, at = run.frames, 0
    while at < len(data):
        try:
            end = at + FRAME_BYTES + _uint32_at(data, at)[0]
        except struct.error:
            end = len(data) + 1
        if end > len(data):
            raise MessageTruncated("a run ends inside a row message")
        yield Run(data[at:end], 1, run.xid)
        at = end


def count_operations(run: Run) -> Mapping[tuple[int, int], int]:
    """Return how many rows of each (relid, type byte) a run has. Raises MessageTruncated."""
    found = None if _EXTENSION is None else _EXTENSION.count_operations(run)
    return count_operations_in_python(run) if found is None else found


def count_operations_in_python(run: Run) -> Counter[tuple[int, int]]:
    """Do what `count_operations` says: the C extension's specification."""
    data, relid_position = run.frames, relid_at(run.xid)
    counts: Counter[tuple[int, int]] = Counter()
    at, end = 0, len(data)
    try:
        while at < end:
            start = at + FRAME_BYTES
            counts[_uint32_at(data, start + relid_position)[0], data[start]] += 1
            at = start + _uint32_at(data, at)[0]
    except (struct.error, IndexError):
        raise MessageTruncated("a run ends inside a row message") from None
    return counts
