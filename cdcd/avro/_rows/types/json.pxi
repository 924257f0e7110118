"""jsonb's send format: version 1 and the text. json and jsonb are strings."""

from libc.stdint cimport uint8_t


cdef int _jsonb_binary(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    if size < 1 or p[0] != 1:
        return DECLINED
    return _string(out, p + 1, size - 1)
