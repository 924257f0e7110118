"""A column's operation -> the function that writes its value."""

from libc.stdint cimport uint8_t


cdef int _encode(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    """Write one value; DECLINED where only its encoder can, and then `out` may already have part of the value."""
    if op.max_bytes and size > op.max_bytes:
        return DECLINED
    if op.op == STRING:
        return _string(out, p, size)
    if op.op == INTEGER_TEXT:
        return _integer_text(out, op, p, size)
    if op.op == INTEGER_BINARY or op.op == UNSIGNED_BINARY:
        return _integer_binary(out, op, p, size)
    if op.op == TIMESTAMPTZ_TEXT or op.op == TIMESTAMP_TEXT:
        return _timestamp_text(out, p, size, op.op == TIMESTAMPTZ_TEXT)
    if op.op == TIMESTAMP_BINARY:
        return _timestamp_binary(out, p, size)
    if op.op == TIME_BINARY:
        return _time_binary(out, p, size)
    if op.op == DECIMAL_TEXT:
        return _decimal_text(out, op.low, op.high, p, size)
    if op.op == NUMERIC_TEXT:
        return _numeric_text(out, p, size)
    if op.op == DECIMAL_BINARY or op.op == NUMERIC_BINARY:
        return _numeric_binary(out, op, p, size)
    if op.op == BOOLEAN_TEXT:
        return _boolean_text(out, p, size)
    if op.op == BOOLEAN_BINARY:
        return _boolean_binary(out, p, size)
    if op.op == JSONB_BINARY:
        return _jsonb_binary(out, p, size)
    if op.op == BYTES:
        return _bytes(out, p, size)
    if op.op == BYTEA_TEXT:
        return _bytea_text(out, p, size)
    if op.op == DOUBLE_TEXT:
        return _double_text(out, p, size)
    if op.op == REAL_TEXT:
        return _real_text(out, p, size)
    if op.op == DOUBLE_BINARY:
        return _float_binary(out, p, size, 8)
    if op.op == REAL_BINARY:
        return _float_binary(out, p, size, 4)
    if op.op == DATE_TEXT:
        return _date_text(out, p, size)
    if op.op == DATE_BINARY:
        return _date_binary(out, p, size)
    if op.op == TIME_TEXT:
        return _time_text(out, p, size)
    if op.op == UUID_TEXT:
        return _uuid_text(out, p, size)
    if op.op == UUID_BINARY:
        return _uuid_binary(out, p, size)
    if op.op == ARRAY_TEXT:
        return _array_text(out, op, p, size)
    return DECLINED
