def count_operations(run):
    """Return how many rows of each (relid, type byte) a run has, None where it is not well formed."""
    cdef bytes data = run.frames
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(data)
    cdef Py_ssize_t header = 1 if run.xid is None else 5
    cdef uint32_t length, relid = 0, last_relid = 0
    cdef uint8_t kind, last_kind = 0
    cdef int64_t count = 0
    cdef dict found = {}
    while at < end:
        if end - at < FRAME_BYTES:
            return None
        length = cdcd_u32(at)
        if length > <uint64_t>(end - at - FRAME_BYTES) or length < header + 4:
            return None
        kind, relid = at[FRAME_BYTES], cdcd_u32(at + FRAME_BYTES + header)
        if count and (relid != last_relid or kind != last_kind):
            found[last_relid, last_kind] = found.get((last_relid, last_kind), 0) + count
            count = 0
        last_relid, last_kind = relid, kind
        count += 1
        at += FRAME_BYTES + length
    if count:
        found[last_relid, last_kind] = found.get((last_relid, last_kind), 0) + count
    return found
