"""Entries in files: sorted, and distributed by the first bits of their keys' hashes."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize

cdef struct Sorted:
    uint64_t first  # the first 8 bytes of the entry as a number
    const uint8_t* at

cdef size_t _entry_bytes = 0  # of the call that sorts; it has the GIL


cdef int _order(const void* one, const void* other) noexcept nogil:
    cdef const Sorted* left = <const Sorted*>one
    cdef const Sorted* right = <const Sorted*>other
    if left.first != right.first:
        return 1 if left.first > right.first else -1
    return memcmp(left.at, right.at, _entry_bytes)


def sorted_entries(bytes data not None, Py_ssize_t size):
    """Return entries of `size` bytes in the order of their bytes."""
    global _entry_bytes
    cdef Py_ssize_t count = PyBytes_GET_SIZE(data) // size, number
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Sorted* places
    if size < 8:
        raise ValueError("an entry has a key")
    places = <Sorted*>malloc((count + 1) * sizeof(Sorted))
    if places == NULL:
        raise MemoryError
    for number in range(count):
        places[number] = Sorted(u64_of(begin + number * size), begin + number * size)
    _entry_bytes = size
    qsort(places, count, sizeof(Sorted), &_order)
    try:
        made = PyBytes_FromStringAndSize(NULL, count * size)
        for number in range(count):
            memcpy(PyBytes_AS_STRING(made) + number * size, places[number].at, size)
    finally:
        free(places)
    return made


def distribute(bytes entries not None, Py_ssize_t size, int bits, dict buffers):
    """Append each entry to the buffer of its file, which is made if there is none."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(entries) // size * size
    cdef Py_ssize_t was
    cdef int number
    if size < 8 or not 0 <= bits <= 16:
        raise ValueError("an entry has a key")
    while at < end:
        number = ((<int>at[0] << 8) | at[1]) >> (16 - bits)
        buffer = buffers.get(number)
        if buffer is None:
            buffer = buffers[number] = bytearray()
        was = PyByteArray_GET_SIZE(buffer)
        PyByteArray_Resize(buffer, was + size)
        memcpy(PyByteArray_AS_STRING(buffer) + was, at, size)
        at += size
