"""Whole transactions, one after another -> their records, without an object for each transaction."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    BEGIN = <int>c'B'
    COMMIT = <int>c'C'

cdef struct Pieces:
    uint8_t ts_ms[10]
    uint8_t commit_lsn_text[40]
    uint8_t times[24]
    uint8_t xid[12]
    uint8_t after_lsn[32]
    uint8_t commit[24]


cdef inline Slice _piece(uint8_t* at, Py_ssize_t size) noexcept:
    cdef Slice found
    found.at = at
    found.size = size
    return found


cdef bint _begin(
    Transaction* tx, Pieces* pieces, const uint8_t* timeline, Py_ssize_t timeline_bytes, uint64_t commit_lsn,
    int64_t commit_us, uint32_t xid,
) noexcept:
    """Set the fields that differ between transactions; False where a time does not fit a long or is before 1970."""
    cdef Py_ssize_t size
    if commit_us < 0 or commit_us > INT64_MAX // 1000 or commit_lsn > <uint64_t>INT64_MAX or timeline_bytes > 10:
        return False
    tx.ts_ms = _piece(pieces.ts_ms, cdcd_put_long(pieces.ts_ms, commit_us // 1000))
    memcpy(pieces.commit_lsn_text, b'["', 2)
    size = 2 + cdcd_put_decimal(pieces.commit_lsn_text + 2, commit_lsn)
    memcpy(pieces.commit_lsn_text + size, b'","', 3)
    tx.commit_lsn_text = _piece(pieces.commit_lsn_text, size + 3)
    pieces.times[0] = SOME_BRANCH
    size = 1 + cdcd_put_long(pieces.times + 1, commit_us)
    pieces.times[size] = SOME_BRANCH
    size += 1
    size += cdcd_put_long(pieces.times + size, commit_us * 1000)
    tx.times = _piece(pieces.times, size)
    size = 0
    if xid:
        pieces.xid[0] = SOME_BRANCH
        size = 1 + cdcd_put_long(pieces.xid + 1, xid)
    else:
        pieces.xid[0] = NULL_BRANCH
        size = 1
    pieces.xid[size] = SOME_BRANCH
    tx.xid = _piece(pieces.xid, size + 1)
    memcpy(pieces.commit, timeline, timeline_bytes)
    size = timeline_bytes + cdcd_put_long(pieces.commit + timeline_bytes, <int64_t>commit_lsn)
    tx.commit = _piece(pieces.commit, size)
    pieces.after_lsn[0] = pieces.after_lsn[1] = pieces.after_lsn[2] = NULL_BRANCH
    memcpy(pieces.after_lsn + 3, pieces.commit, size)
    tx.after_lsn = _piece(pieces.after_lsn, size + 3)
    tx.tx_seq = 0
    return True


def encode_transaction_batch(transactions, plans, new_context, first, uint64_t written_commit_lsn, row_fallback):
    """Return the records of whole transactions with their statistics, or an int, or None.

    `first` is the context of one of them, for the bytes that all share; `new_context(xid, commit_lsn, commit_pg_us)`
    makes the context of a transaction with a row that only `row_fallback` can encode. Transactions that commit up to
    `written_commit_lsn` are dropped (F4). An int: the relid of a row without a plan. None: the fallback has to encode
    them one by one. Else (records, operations by (relid, type byte), commit time of the first transaction that was
    not dropped, Unix epoch, commit time of the last one, its commit LSN, its end LSN, number with rows, number
    without rows, number dropped).
    """
    try:
        return _encode_transaction_batch(transactions, plans, new_context, first, written_commit_lsn, row_fallback)
    except Exception as error:
        _refuse_memory(error)
        return None
    finally:
        _shrink(&_value)
        _shrink(&_key)
        _shrink(&_scratch)


cdef object _encode_transaction_batch(
    object transactions, object plans, object new_context, object first, uint64_t written_commit_lsn,
    object row_fallback,
):
    global _fallback_rows
    cdef bytes data = transactions.frames
    cdef const uint8_t* origin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = origin + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at = origin
    cdef const uint8_t* start
    cdef uint8_t kind
    cdef uint32_t length, relid, xid = 0, last_relid = 0
    cdef uint64_t lsn, commit_lsn = 0, last_commit_lsn = 0, end_lsn = 0
    cdef int64_t commit_us = 0, first_us = 0, last_us = 0
    cdef Py_ssize_t with_rows = 0, empty = 0, dropped = 0, rows = 0
    cdef Py_ssize_t tuples_at = RELID_AT + RELID_BYTES
    cdef bint is_open = False, is_dropped = False
    cdef tuple constants = first.pieces()
    cdef Slice timeline = _slice(first.timeline_bytes)
    cdef Transaction tx
    cdef Pieces pieces
    cdef CompiledPlan plan = None
    cdef dict used = {}
    cdef list records = []
    memset(&tx, 0, sizeof(tx))
    _point_at(&tx, constants, False)
    while at < end:
        if end - at < FRAME_BYTES + 1:
            return None
        length, lsn = cdcd_u32(at), cdcd_u64(at + FRAME_LSN_AT)
        start = at + FRAME_BYTES
        if length > <uint64_t>(end - start) or length < 1 or lsn > <uint64_t>INT64_MAX:
            return None
        at = start + length
        kind = start[0]
        if kind == BEGIN:
            if is_open or length != BEGIN_BYTES:
                return None
            is_open, rows = True, 0
            commit_lsn = cdcd_u64(start + BEGIN_COMMIT_LSN_AT)
            commit_us = <int64_t>cdcd_u64(start + BEGIN_TIME_AT)
            if commit_us > INT64_MAX - EPOCH_US:
                return None
            commit_us += EPOCH_US
            xid = cdcd_u32(start + BEGIN_XID_AT)
            is_dropped = commit_lsn <= written_commit_lsn
            if not _begin(&tx, &pieces, timeline.at, timeline.size, commit_lsn, commit_us, xid):
                return None
        elif kind == COMMIT:
            if not is_open or length != COMMIT_BYTES or start[COMMIT_FLAGS_AT] != 0:
                return None
            if cdcd_u64(start + COMMIT_LSN_AT) != commit_lsn:
                return None
            is_open = False
            if is_dropped:
                dropped += 1
                continue
            if with_rows + empty == 0:
                first_us = commit_us
            with_rows += rows > 0
            empty += rows == 0
            last_us, last_commit_lsn, end_lsn = commit_us, commit_lsn, cdcd_u64(start + COMMIT_END_LSN_AT)
            written_commit_lsn = commit_lsn
        elif not is_open or length < tuples_at + 5:  # shorter than part, column count and a value: use the fallback
            return None
        elif is_dropped:
            if kind != INSERT and kind != UPDATE and kind != DELETE:
                return None
        else:
            relid = cdcd_u32(start + RELID_AT)
            if plan is None or relid != last_relid:
                plan = _plan_of(used, plans, relid, None)
                if plan is None:
                    return relid
                last_relid = relid
            if _change(records, plan, &tx, lsn, kind, start + tuples_at, at) != DONE:
                _fallback_rows += 1
                context = new_context(xid, commit_lsn, commit_us - EPOCH_US)
                context.tx_seq = tx.tx_seq
                row_fallback(plan.plan, context, records, lsn, data, kind, start + tuples_at - origin, at - origin)
                tx.tx_seq = context.tx_seq
            rows += 1
            plan.inserts += kind == INSERT
            plan.updates += kind == UPDATE
            plan.deletes += kind == DELETE
    if is_open:
        return None
    return (
        records, _operations(used), first_us, last_us, last_commit_lsn, end_lsn, with_rows, empty, dropped,
    )


cdef dict _operations(dict used):
    cdef CompiledPlan compiled
    cdef dict found = {}
    for relid, one in used.items():
        compiled = <CompiledPlan>one
        if compiled.inserts:
            found[relid, INSERT] = compiled.inserts
        if compiled.updates:
            found[relid, UPDATE] = compiled.updates
        if compiled.deletes:
            found[relid, DELETE] = compiled.deletes
    return found
