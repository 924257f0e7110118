"""timestamp and timestamptz: ISO text in UTC; send format: microseconds since 2000-01-01."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t

from cdcd.model import POSTGRES_EPOCH_US

cdef int64_t EPOCH_US = POSTGRES_EPOCH_US


cdef int _timestamp_text(Buffer* out, const uint8_t* p, Py_ssize_t size, bint is_zoned) except -1:
    cdef int64_t days = 0, us = 0
    if is_zoned:
        if size < 22 or p[size - 3] != c'+' or p[size - 2] != c'0' or p[size - 1] != c'0':
            return DECLINED
        size -= 3
    if size < 19 or p[10] != c' ' or _day(p, &days) != DONE or _clock(p + 11, size - 11, &us) != DONE:
        return DECLINED
    _put_long(out, days * DAY_US + us)
    return DONE


cdef int _timestamp_binary(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int64_t us
    if size != 8:
        return DECLINED
    us = <int64_t>cdcd_u64(p)
    if us == INT64_MIN or us > INT64_MAX - EPOCH_US:
        return DECLINED
    _put_long(out, us + EPOCH_US)
    return DONE
