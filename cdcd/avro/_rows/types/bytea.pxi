"""bytea as hexadecimal text (bytea_output = hex). Its send format is the bytes themselves."""

from libc.stdint cimport uint8_t


cdef inline int _nibble(uint8_t c) noexcept:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    if c'A' <= c <= c'F':
        return c - c'A' + 10
    return -1


cdef int _bytes(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    _put_sized(out, p, size)
    return DONE


cdef int _bytea_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at, count
    cdef int high, low
    if size < 2 or p[0] != c'\\' or p[1] != c'x' or size & 1:
        return DECLINED
    count = (size - 2) >> 1
    _room(out, count + 10)
    out.size += cdcd_put_long(out.data + out.size, count)
    for at in range(count):
        high, low = _nibble(p[2 + 2 * at]), _nibble(p[3 + 2 * at])
        if high < 0 or low < 0:
            return DECLINED
        out.data[out.size + at] = <uint8_t>(high << 4 | low)
    out.size += count
    return DONE
