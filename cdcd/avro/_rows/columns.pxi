"""A row's values -> the bytes of its Value record and of its Key record. The C form of `cdcd.avro.columns`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t

cdef int64_t _called_columns = 0
cdef int64_t _fallback_rows = 0


def take_fallback_counts():
    """Return how many columns called their encoder and how many rows went to the fallback since the last call."""
    global _called_columns, _fallback_rows
    found = (_called_columns, _fallback_rows)
    _called_columns = _fallback_rows = 0
    return found


cdef int _column(Buffer* out, Column* column, Value* value, bint is_required) except -1:
    """Write one column with its branch; DECLINED where the fallback has to encode it."""
    global _called_columns
    cdef Py_ssize_t begin = out.size
    cdef Operation* op
    cdef PyObject* encoder
    if value.kind == KIND_NULL:
        if is_required:
            return DECLINED
        _put_byte(out, NULL_BRANCH)
        return DONE
    if not is_required:
        _put_byte(out, SOME_BRANCH)
    if value.kind == KIND_TEXT:
        op = &column.text
        encoder = column.text_encoder
    elif value.kind == KIND_BINARY:
        op = &column.binary
        encoder = column.binary_encoder
    else:
        return DECLINED
    if op.op != CALL:
        if _encode(out, op, value.at, value.size) == DONE:
            return DONE
        out.size = begin
        return DECLINED
    if encoder == <PyObject*>None:
        return DECLINED
    _called_columns += 1
    raw = PyBytes_FromStringAndSize(<const char*>value.at, value.size)
    try:
        encoded = (<object>encoder)(raw)
    except Exception:
        return DECLINED
    if type(encoded) is not bytes:
        return DECLINED
    _put(out, <const uint8_t*>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
    return DONE


cdef int _row(Buffer* out, CompiledPlan plan, Value* row, bint is_after) except -1:
    """Write a Value record."""
    cdef int at
    cdef Column* column
    for at in range(plan.width):
        column = &plan.columns[at]
        if row[at].kind == KIND_UNCHANGED:
            if not is_after or column.is_required:
                return DECLINED
            _put_slice(out, column.unchanged)
        elif _column(out, column, &row[at], column.is_required) != DONE:
            return DECLINED
    return DONE


cdef int _key_record(Buffer* out, CompiledPlan plan, Value* row) except -1:
    cdef int number, at
    out.size = 0
    _put_slice(out, plan.key_header)
    for number in range(plan.keys):
        at = plan.key_indexes[number]
        if _column(out, &plan.columns[at], &row[at], plan.is_key_required) != DONE:
            return DECLINED
    return DONE
