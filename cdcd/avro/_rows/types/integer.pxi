"""int2, int4, int8, oid and other types that are a long: text of digits, or a send format of `low` bytes."""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t


cdef int _integer_text(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef bint is_negative = size > 0 and p[0] == c'-'
    cdef Py_ssize_t at = 1 if is_negative else 0
    cdef uint64_t n = 0
    cdef int64_t signed_n
    if size == at or size - at > 19:
        return DECLINED
    while at < size:
        if not _is_digit(p[at]):
            return DECLINED
        n = n * 10 + (p[at] - c'0')
        at += 1
    if is_negative:
        if n > <uint64_t>1 << 63:
            return DECLINED
        signed_n = <int64_t>(0 - n)
    else:
        if n > <uint64_t>INT64_MAX:
            return DECLINED
        signed_n = <int64_t>n
    if signed_n < op.low or signed_n > op.high:
        return DECLINED
    _put_long(out, signed_n)
    return DONE


cdef int _integer_binary(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef uint64_t n
    if size != op.low:
        return DECLINED
    if size == 2:
        _put_long(out, <int16_t>cdcd_u16(p))
    elif size == 4:
        _put_long(out, <int64_t>cdcd_u32(p) if op.op == UNSIGNED_BINARY else <int64_t><int32_t>cdcd_u32(p))
    elif size == 8:
        n = cdcd_u64(p)
        if op.op == UNSIGNED_BINARY and n > <uint64_t>INT64_MAX:
            return DECLINED
        _put_long(out, <int64_t>n)
    else:
        return DECLINED
    return DONE
