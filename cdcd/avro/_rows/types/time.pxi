"""time: ISO text; send format: microseconds since midnight."""

from libc.stdint cimport int64_t, uint8_t

cdef int64_t DAY_US = 86_400_000_000


cdef int _clock(const uint8_t* p, Py_ssize_t size, int64_t* us) noexcept:
    """Parse HH:MM:SS with up to six fractional digits."""
    cdef int hour, minute, second
    cdef int64_t fraction = 0
    cdef Py_ssize_t at
    if size < 8 or p[2] != c':' or p[5] != c':':
        return DECLINED
    hour, minute, second = _two_digits(p), _two_digits(p + 3), _two_digits(p + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return DECLINED
    if size > 8:
        if p[8] != c'.' or size < 10 or size > 15:
            return DECLINED
        for at in range(9, 15):
            if at >= size:
                fraction *= 10
            elif _is_digit(p[at]):
                fraction = fraction * 10 + (p[at] - c'0')
            else:
                return DECLINED
    us[0] = ((hour * 60 + minute) * 60 + second) * <int64_t>1_000_000 + fraction
    return DONE


cdef int _time_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int64_t us = 0
    if _clock(p, size, &us) != DONE:
        return DECLINED
    _put_long(out, us)
    return DONE


cdef int _time_binary(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int64_t us
    if size != 8:
        return DECLINED
    us = <int64_t>cdcd_u64(p)
    if us < 0 or us >= DAY_US:
        return DECLINED
    _put_long(out, us)
    return DONE
