# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: freethreading_compatible=False
"""The C extension of `cdcd.txn.frames`: counts a batch's rows without an object for each row.

In: a `RowBatch`.  Out: the number of rows by relation and kind.
Invariant: no byte outside the batch is read. For a malformed batch the Python function raises the error.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

include "../big_endian.pxi"
include "../frame_layout.pxi"


def count_operations(batch):
    """Return the number of a batch's rows by (relid, type byte), None if the batch is malformed."""
    cdef bytes data = batch.frames
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(data)
    cdef Py_ssize_t relid_at = RELID_AT if batch.xid is None else STREAMED_RELID_AT
    cdef uint32_t length, relid = 0, last_relid = 0
    cdef uint8_t kind, last_kind = 0
    cdef int64_t count = 0
    cdef dict found = {}
    while at < end:
        if end - at < FRAME_BYTES:
            return None
        length = cdcd_u32(at)
        if length > <uint64_t>(end - at - FRAME_BYTES) or length < relid_at + RELID_BYTES:
            return None
        kind, relid = at[FRAME_BYTES], cdcd_u32(at + FRAME_BYTES + relid_at)
        if count and (relid != last_relid or kind != last_kind):
            found[last_relid, last_kind] = found.get((last_relid, last_kind), 0) + count
            count = 0
        last_relid, last_kind = relid, kind
        count += 1
        at += FRAME_BYTES + length
    if count:
        found[last_relid, last_kind] = found.get((last_relid, last_kind), 0) + count
    return found
