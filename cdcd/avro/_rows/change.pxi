"""One Insert, Update or Delete message -> its records: one, or those of two keys, or a delete and a tombstone."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

cdef enum:
    INSERT = <int>c'I'
    UPDATE = <int>c'U'
    DELETE = <int>c'D'
    NEW = <int>c'N'
    KEY = <int>c'K'
    OLD = <int>c'O'


cdef int _delete(list records, CompiledPlan plan, Transaction* tx, uint64_t lsn, Value* old) except -1:
    cdef bytes key = None
    if plan.keys:
        if _key_record(&_key, plan, old) != DONE:
            return DECLINED
        key = _bytes_of(&_key)
    if _value_record(plan, tx, lsn, OP_DELETE, old, NULL) != DONE:
        return DECLINED
    _append(records, plan, key, _bytes_of(&_value))
    if key is not None and plan.tombstones:
        _append(records, plan, key, None)
    return DONE


cdef bint _is_another_key(CompiledPlan plan) noexcept:
    cdef int number, at
    cdef Value* old
    cdef Value* new
    for number in range(plan.keys):
        at = plan.key_indexes[number]
        old, new = &plan.old[at], &plan.new[at]
        if (old.kind == KIND_NULL) != (new.kind == KIND_NULL) or old.size != new.size:
            return True
        if old.size and memcmp(old.at, new.at, old.size) != 0:
            return True
    return False


cdef void _fill_unchanged(CompiledPlan plan) noexcept:
    """F46, F78: an unsent value is stored out of line, so it is not NULL; a null here was not in the WAL."""
    cdef int number
    for number in range(plan.width):
        if plan.new[number].kind == KIND_UNCHANGED and plan.old[number].kind != KIND_NULL:
            plan.new[number] = plan.old[number]


cdef int _change(
    list records, CompiledPlan plan, Transaction* tx, uint64_t lsn, uint8_t kind, const uint8_t* at,
    const uint8_t* end,
) except -1:
    """Append one message's records; `at` is the end of its relid. DECLINED: nothing is done, use the fallback."""
    cdef bint has_old = False, is_whole = False, has_unchanged = False, ignored = False
    cdef bytes key = None
    if kind != INSERT and at < end and (at[0] == KEY or at[0] == OLD):
        has_old, is_whole = True, at[0] == OLD or plan.keys == 0
        at = _split(plan.old, plan.width, at + 1, end, &ignored)
        if at == NULL:
            return DECLINED
    if kind != INSERT and (plan.declines_changes or (plan.declines_whole_rows and is_whole)):
        return DECLINED
    if kind == DELETE:
        if not has_old or at != end:
            return DECLINED
        return _delete(records, plan, tx, lsn, plan.old)
    if at >= end or at[0] != NEW or (kind != INSERT and kind != UPDATE):
        return DECLINED
    at = _split(plan.new, plan.width, at + 1, end, &has_unchanged)
    if at != end:
        return DECLINED
    if has_old and has_unchanged:
        _fill_unchanged(plan)
    if plan.keys:
        if _key_record(&_key, plan, plan.new) != DONE:
            return DECLINED
        key = _bytes_of(&_key)
    if kind == INSERT:
        if _value_record(plan, tx, lsn, OP_READ if tx.is_snapshot else OP_CREATE, NULL, plan.new) != DONE:
            return DECLINED
        return _append(records, plan, key, _bytes_of(&_value))
    return _update(records, plan, tx, lsn, key, has_old)


cdef int _update(
    list records, CompiledPlan plan, Transaction* tx, uint64_t lsn, bytes key, bint has_old
) except -1:
    """Append an update's records. `plan.new` is the new row, `plan.old` the old one where the message has one."""
    cdef Value* before = plan.old if has_old and not plan.is_flat else NULL
    if has_old and plan.keys and _is_another_key(plan):
        return _update_of_key(records, plan, tx, lsn, key)
    if _value_record(plan, tx, lsn, OP_UPDATE, before, plan.new) != DONE:
        return DECLINED
    return _append(records, plan, key, _bytes_of(&_value))


cdef int _update_of_key(list records, CompiledPlan plan, Transaction* tx, uint64_t lsn, bytes key) except -1:
    """F47: a delete of the old key, then a create of the new key, each with its own number."""
    cdef int64_t before_seq = tx.tx_seq, before_order = plan.order
    cdef Py_ssize_t before_records = len(records)
    if (
        _delete(records, plan, tx, lsn, plan.old) == DONE
        and _value_record(plan, tx, lsn, OP_CREATE, NULL, plan.new) == DONE
    ):
        return _append(records, plan, key, _bytes_of(&_value))
    del records[before_records:]
    tx.tx_seq, plan.order = before_seq, before_order
    return DECLINED
