"""Row messages of one transaction -> its records. The C form of `cdcd.avro.encode.encode_batch`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset


cdef CompiledPlan _compiled(object plan):
    found = plan.compiled
    return found if type(found) is CompiledPlan else CompiledPlan(plan)


cdef inline CompiledPlan _plan_of(dict used, object plans, uint32_t relid, object counts):
    """Return the compiled plan of a relid for this call, None where there is none or the fallback has to encode.

    `used` has the returned plans, by relid and, where tables are counted, by the table's name too.
    """
    cdef CompiledPlan compiled
    found = used.get(relid)
    if found is not None:
        return <CompiledPlan>found
    plan = plans.get(relid)
    if plan is None:
        return None
    compiled = _compiled(plan)
    compiled.inserts = compiled.updates = compiled.deletes = 0
    compiled.order = 0
    if counts is not None:
        if plan.table in used:
            return None  # only the fallback counts two relations of one name together
        used[plan.table] = compiled
        compiled.order = counts.get(plan.table, 0)
    used[relid] = compiled
    return compiled


cdef int _store_counts(dict used, object counts) except -1:
    cdef CompiledPlan compiled
    if counts is not None:
        for found in used.values():
            compiled = <CompiledPlan>found
            if compiled.order:
                counts[compiled.plan.table] = compiled.order
    return 0


def encode_batch(batch, plans, tx, batch_fallback, row_fallback):
    """Return the records of a batch and increase `tx.tx_seq`, as `batch_fallback` does.

    `batch_fallback(batch, plans, tx)` is called for a batch with an error, `row_fallback(plan, tx, records, lsn,
    data, kind, at, end)` for a row that only it can encode. Raises their errors.
    """
    cdef int64_t first_seq = tx.tx_seq
    counts = tx.counts
    first_counts = None if counts is None else dict(counts)
    try:
        records = _encode_batch(batch, plans, tx, row_fallback)
        if records is not None:
            return records
    except Exception as error:
        _refuse_memory(error)
    finally:
        _shrink(&_value)
        _shrink(&_key)
        _shrink(&_scratch)
    tx.tx_seq = first_seq
    if counts is not None:
        counts.clear()
        counts.update(first_counts)
    return batch_fallback(batch, plans, tx)


cdef int _refuse_memory(object error) except -1:
    if isinstance(error, MemoryError):
        raise error
    return 0


cdef list _encode_batch(object batch, object plans, object tx, object row_fallback):
    global _fallback_rows
    cdef bytes data = batch.frames
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = begin + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at = begin
    cdef const uint8_t* start
    cdef object xid = batch.xid
    cdef bint has_xid = xid is not None
    cdef uint32_t wanted_xid = <uint32_t>xid if has_xid else 0
    cdef Py_ssize_t relid_at = STREAMED_RELID_AT if has_xid else RELID_AT
    cdef Py_ssize_t tuples_at = relid_at + RELID_BYTES
    cdef uint32_t length, relid, last_relid = 0
    cdef uint64_t lsn
    cdef Py_ssize_t count = 0
    cdef tuple pieces = tx.pieces()
    cdef object counts = tx.counts
    cdef Transaction constants
    cdef CompiledPlan plan = None
    cdef dict used = {}
    cdef list records = []
    memset(&constants, 0, sizeof(constants))
    _point_at(&constants, pieces, tx.info.snapshot)
    constants.tx_seq = tx.tx_seq
    while at < end:
        if end - at < FRAME_BYTES:
            return None
        length, lsn = cdcd_u32(at), cdcd_u64(at + FRAME_LSN_AT)
        start = at + FRAME_BYTES
        if length > <uint64_t>(end - start) or length < tuples_at + 1 or lsn > <uint64_t>INT64_MAX:
            return None
        at = start + length
        if has_xid and cdcd_u32(start + XID_AT) != wanted_xid:
            return None
        relid = cdcd_u32(start + relid_at)
        if plan is None or relid != last_relid:
            plan = _plan_of(used, plans, relid, counts)
            if plan is None:
                return None
            last_relid = relid
        if _change(records, plan, &constants, lsn, start[0], start + tuples_at, at) != DONE:
            _fallback_rows += 1
            tx.tx_seq = constants.tx_seq
            _store_counts(used, counts)
            row_fallback(plan.plan, tx, records, lsn, data, start[0], start + tuples_at - begin, at - begin)
            constants.tx_seq = tx.tx_seq
            if counts is not None:
                plan.order = counts.get(plan.plan.table, 0)
        count += 1
    if count != batch.count:
        return None
    tx.tx_seq = constants.tx_seq
    _store_counts(used, counts)
    return records
