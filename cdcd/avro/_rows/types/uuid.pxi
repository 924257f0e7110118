"""uuid: text of 36 lower-case characters; send format of 16 bytes."""

from libc.stdint cimport uint8_t


cdef inline bint _is_dash(Py_ssize_t at) noexcept:
    return at == 8 or at == 13 or at == 18 or at == 23


cdef int _uuid_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    if size != 36:
        return DECLINED
    for at in range(36):
        if _is_dash(at):
            if p[at] != c'-':
                return DECLINED
        elif not (_is_digit(p[at]) or c'a' <= p[at] <= c'f'):
            return DECLINED
    _put_sized(out, p, 36)
    return DONE


cdef int _uuid_binary(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef uint8_t text[36]
    cdef const char* hexadecimal = b"0123456789abcdef"
    cdef Py_ssize_t at = 0, number
    if size != 16:
        return DECLINED
    for number in range(16):
        if _is_dash(at):
            text[at] = c'-'
            at += 1
        text[at] = <uint8_t>hexadecimal[p[number] >> 4]
        text[at + 1] = <uint8_t>hexadecimal[p[number] & 15]
        at += 2
    _put_sized(out, text, 36)
    return DONE
