"""The buffer for a record's bytes: memory that grows, and is reused for the next record."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

cdef struct Buffer:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity

cdef Py_ssize_t REUSED_BYTES = 1 << 22  # a larger buffer is freed after a batch

cdef Buffer _value, _key, _scratch

cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #define CDCD_IS_CHECKED 1
    #else
    #define CDCD_IS_CHECKED 0
    #endif
    """
    bint IS_CHECKED "CDCD_IS_CHECKED"  # a buffer has exactly the requested size, so that an overrun is detected


cdef int _grow(Buffer* out, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity = out.capacity * 2
    cdef uint8_t* data
    if capacity < out.size + more:
        capacity = out.size + more
    if capacity < 4096:
        capacity = 4096
    if IS_CHECKED:
        capacity = out.size + more
    data = <uint8_t*>PyMem_Realloc(out.data, capacity)
    if data == NULL:
        raise MemoryError
    out.data = data
    out.capacity = capacity
    return 0


cdef inline int _room(Buffer* out, Py_ssize_t more) except -1:
    if out.capacity - out.size < more:
        return _grow(out, more)
    return 0


cdef inline void _shrink(Buffer* out) noexcept:
    """Free the memory of an exceptionally large row; empty the buffer."""
    if out.capacity > REUSED_BYTES or IS_CHECKED:
        PyMem_Free(out.data)
        out.data = NULL
        out.capacity = 0
    out.size = 0


cdef inline int _put(Buffer* out, const uint8_t* data, Py_ssize_t size) except -1:
    if size == 0:
        return 0  # an empty buffer may have no memory to copy to
    _room(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef inline int _put_slice(Buffer* out, Slice piece) except -1:
    return _put(out, piece.at, piece.size)


cdef inline bytes _bytes_of(Buffer* out):
    return PyBytes_FromStringAndSize(<const char*>out.data, out.size)


cdef inline int _put_byte(Buffer* out, uint8_t byte) except -1:
    _room(out, 1)
    out.data[out.size] = byte
    out.size += 1
    return 0


cdef inline int _put_long(Buffer* out, int64_t n) except -1:
    _room(out, 10)
    out.size += cdcd_put_long(out.data + out.size, n)
    return 0


cdef inline int _put_sized(Buffer* out, const uint8_t* data, Py_ssize_t size) except -1:
    _room(out, size + 10)
    out.size += cdcd_put_long(out.data + out.size, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0
