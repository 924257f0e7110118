"""Read the frames of a batch without their tuples.

In: a `RowBatch`.  Out: the number of rows by relation and kind; the rows as single batches.
Invariant: no byte outside the batch is read; a frame that ends outside the batch is an error.
Wire source: protocol messages Insert, Update, Delete: type byte, in a stream an int32 xid, int32 relid.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping

from cdcd.errors import MessageTruncated
from cdcd.extensions import extension
from cdcd.frame_layout import FRAME_BYTES, relid_at
from cdcd.model import RowBatch

_EXTENSION = extension("cdcd.txn._frames")
_uint32_at = struct.Struct(">I").unpack_from


def first_relid(batch: RowBatch) -> int:
    """Return the relid of a batch's first row. Raises MessageTruncated."""
    try:
        relid: int = _uint32_at(batch.frames, FRAME_BYTES + relid_at(batch.xid))[0]
    except struct.error:
        raise MessageTruncated("a row batch ends inside its first row message") from None
    return relid


def single_rows(batch: RowBatch) -> Iterator[RowBatch]:
    """Yield a batch's rows one by one, as batches. Raises MessageTruncated."""
    data, at = batch.frames, 0
    while at < len(data):
        try:
            end = at + FRAME_BYTES + _uint32_at(data, at)[0]
        except struct.error:
            end = len(data) + 1
        if end > len(data):
            raise MessageTruncated("a row batch ends inside a row message")
        yield RowBatch(data[at:end], 1, batch.xid)
        at = end


def count_operations(batch: RowBatch) -> Mapping[tuple[int, int], int]:
    """Return the number of a batch's rows by (relid, type byte). Raises MessageTruncated."""
    found = None if _EXTENSION is None else _EXTENSION.count_operations(batch)
    return count_operations_in_python(batch) if found is None else found


def count_operations_in_python(batch: RowBatch) -> Counter[tuple[int, int]]:
    """Return the same as `count_operations`: the C extension's specification. Raises MessageTruncated."""
    data, relid_position = batch.frames, relid_at(batch.xid)
    counts: Counter[tuple[int, int]] = Counter()
    at, end = 0, len(data)
    try:
        while at < end:
            start = at + FRAME_BYTES
            counts[_uint32_at(data, start + relid_position)[0], data[start]] += 1
            at = start + _uint32_at(data, at)[0]
    except (struct.error, IndexError):
        raise MessageTruncated("a row batch ends inside a row message") from None
    return counts
