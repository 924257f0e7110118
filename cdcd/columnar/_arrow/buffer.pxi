"""Memory that grows; at last it belongs to an Arrow buffer."""

from libc.stdlib cimport free, realloc

cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #define CDCD_IS_CHECKED 1
    #else
    #define CDCD_IS_CHECKED 0
    #endif
    """
    bint IS_CHECKED "CDCD_IS_CHECKED"  # a buffer has exactly the requested size, so that an overrun is detected

cdef enum:
    FIRST_BYTES = 1024

cdef struct Buffer:
    uint8_t* data
    int64_t capacity
    int64_t last_size  # of the Arrow buffer before: the next one begins with as much


cdef int _grow(Buffer* buffer, int64_t size) noexcept nogil:
    cdef int64_t capacity = buffer.capacity * 2 if buffer.capacity else buffer.last_size
    cdef uint8_t* data
    if capacity < FIRST_BYTES:
        capacity = FIRST_BYTES
    if capacity < size or IS_CHECKED:
        capacity = size
    data = <uint8_t*>realloc(buffer.data, capacity)
    if data == NULL:
        return NO_MEMORY
    buffer.data = data
    buffer.capacity = capacity
    return OK


cdef inline int _reserve(Buffer* buffer, int64_t size) noexcept nogil:
    """Have room for so many bytes in all."""
    if size > buffer.capacity:
        return _grow(buffer, size)
    return OK


cdef class Memory:
    """Owns the memory of an Arrow buffer."""

    cdef uint8_t* _data

    def __dealloc__(self):
        free(self._data)


cdef object _taken(Buffer* buffer, int64_t size):
    """Return the first bytes as an Arrow buffer, which has the memory from now on."""
    cdef Memory memory
    buffer.last_size = size
    if buffer.data == NULL:
        return pa.py_buffer(b"")
    memory = Memory()
    memory._data = buffer.data
    address = <uintptr_t>buffer.data
    buffer.data = NULL
    buffer.capacity = 0
    return pa.foreign_buffer(address, size, memory)
