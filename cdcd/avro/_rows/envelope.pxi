"""A change's rows and its transaction's constants -> the record's value, an envelope or flat."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    OP_CREATE = <int>c'c'
    OP_READ = <int>c'r'
    OP_UPDATE = <int>c'u'
    OP_DELETE = <int>c'd'

cdef struct Transaction:
    Slice before_ts_ms
    Slice ts_ms
    Slice after_ts_ms
    Slice commit_lsn_text
    Slice times
    Slice xid
    Slice after_lsn
    Slice commit
    Slice block_head
    Slice tail
    int64_t tx_seq
    bint is_snapshot


cdef int _extras(Buffer* out, CompiledPlan plan, Value* row) except -1:
    """Write `special`, which is null here, and the names of the unchanged columns of `row` (NULL: none)."""
    cdef int at, count = 0
    _put_byte(out, 0)
    if row != NULL:
        for at in range(plan.width):
            count += row[at].kind == KIND_UNCHANGED
    if count:
        _put_long(out, count)
        for at in range(plan.width):
            if row[at].kind == KIND_UNCHANGED:
                _put_slice(out, plan.columns[at].field)
    _put_byte(out, 0)
    return 0


cdef int _source(Buffer* out, CompiledPlan plan, Transaction* tx, uint64_t lsn) except -1:
    """Write the `source` block up to `special`."""
    cdef uint8_t text[24]
    cdef int size = cdcd_put_decimal(text, lsn)
    text[size] = c'"'
    text[size + 1] = c']'
    size += 2
    _put_slice(out, tx.before_ts_ms)
    _put_slice(out, tx.ts_ms)
    _put_slice(out, tx.after_ts_ms)
    _put_long(out, tx.commit_lsn_text.size + size)
    _put_slice(out, tx.commit_lsn_text)
    _put(out, text, size)
    _put_slice(out, tx.times)
    _put_slice(out, plan.schema_and_table)
    _put_slice(out, tx.xid)
    _put_long(out, <int64_t>lsn)
    _put_slice(out, tx.after_lsn)
    _put_long(out, tx.tx_seq)
    return 0


cdef int _block(Buffer* out, CompiledPlan plan, Transaction* tx) except -1:
    if tx.block_head.size == 0:
        _put_byte(out, NULL_BRANCH)
        return 0
    plan.order += 1
    _put_slice(out, tx.block_head)
    _put_long(out, tx.tx_seq)
    _put_long(out, plan.order)
    return 0


cdef int _side(Buffer* out, CompiledPlan plan, Value* row, bint is_after) except -1:
    """Write one of before and after with its branch."""
    if row == NULL:
        _put_byte(out, NULL_BRANCH)
        return DONE
    _put_byte(out, SOME_BRANCH)
    return _row(out, plan, row, is_after)


cdef int _flat_value(
    Buffer* out, CompiledPlan plan, Transaction* tx, uint8_t op, Value* row, Value* after
) except -1:
    """Write a flat value after its header: the row itself, and the fields that an envelope has in `source`."""
    if _row(out, plan, row, after != NULL) != DONE:
        return DECLINED
    tx.tx_seq += 1
    _put_long(out, 1)  # the size of the string op
    _put_byte(out, op)
    _put_byte(out, op == OP_DELETE)
    _put_slice(out, tx.commit)
    _put_long(out, tx.tx_seq)
    _put_slice(out, tx.ts_ms)
    _extras(out, plan, after)
    if tx.block_head.size:
        plan.order += 1
    return DONE


cdef int _value_record(
    CompiledPlan plan, Transaction* tx, uint64_t lsn, uint8_t op, Value* before, Value* after
) except -1:
    """Write the value of the transaction's next change; DECLINED: the change is not counted."""
    cdef Buffer* out = &_value
    out.size = 0
    _put_slice(out, plan.value_header)
    if plan.is_flat:
        return _flat_value(out, plan, tx, op, before if after == NULL else after, after)
    if _side(out, plan, before, False) != DONE or _side(out, plan, after, True) != DONE:
        return DECLINED
    tx.tx_seq += 1
    _source(out, plan, tx, lsn)
    _extras(out, plan, after)
    _block(out, plan, tx)
    _put_long(out, 1)  # the size of the string op
    _put_byte(out, op)
    _put_slice(out, tx.tail)
    return DONE


cdef int _point_at(Transaction* into, tuple pieces, bint is_snapshot) except -1:
    """Point at the pieces of a transaction's constants, which the caller keeps alive."""
    into.before_ts_ms = _slice(pieces[0])
    into.ts_ms = _slice(pieces[1])
    into.after_ts_ms = _slice(pieces[2])
    into.commit_lsn_text = _slice(pieces[3])
    into.times = _slice(pieces[4])
    into.xid = _slice(pieces[5])
    into.after_lsn = _slice(pieces[6])
    into.commit = _slice(pieces[7])
    into.block_head = _slice(pieces[8])
    into.tail = _slice(pieces[9])
    into.is_snapshot = is_snapshot
    return 0
