"""boolean: text t or f; send format of one byte."""

from libc.stdint cimport uint8_t


cdef int _boolean_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    if size != 1 or (p[0] != c't' and p[0] != c'f'):
        return DECLINED
    _put_byte(out, p[0] == c't')
    return DONE


cdef int _boolean_binary(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    if size != 1 or p[0] > 1:
        return DECLINED
    _put_byte(out, p[0])
    return DONE
