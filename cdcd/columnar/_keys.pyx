# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The C extension of `cdcd.columnar.keys`, whose Python functions are its specification.

In: the offsets and the bytes of the keys of binary Arrow arrays.  Out: numbers, written into arrays of the caller.
Invariant: no byte is read beyond a key, and none is written beyond an array.
Must not: create a Python object for a key, or hold the GIL while it looks at keys.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

include "../hash_bytes.pxi"

cdef enum:
    POLYNOMIAL = 0xEDB88320  # of the CRC of zlib

cdef uint32_t[256] CRC_TABLE

cdef struct Keys:
    const int32_t* offsets
    const uint8_t* data
    int64_t count


cdef struct Part:
    Keys keys
    int64_t first  # the place of its first key among the keys of all parts
    int64_t at


cdef void _fill_table() noexcept:
    cdef uint32_t number, value
    cdef int _
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (<uint32_t>POLYNOMIAL if value & 1 else 0)
        CRC_TABLE[number] = value


_fill_table()


cdef Keys _keys(const int32_t[::1] offsets, const uint8_t[::1] data) except *:
    """Return the keys. Raises ValueError for offsets that are not in the data."""
    cdef Keys found
    cdef Py_ssize_t place
    if offsets.shape[0] < 1 or offsets[0] < 0 or offsets[offsets.shape[0] - 1] > data.shape[0]:
        raise ValueError("the offsets of keys are outside their data")
    for place in range(1, offsets.shape[0]):
        if offsets[place] < offsets[place - 1]:
            raise ValueError("the offsets of keys do not ascend")
    found.offsets = &offsets[0]
    found.data = &data[0] if data.shape[0] else NULL
    found.count = offsets.shape[0] - 1
    return found


cdef inline int32_t _size(const Keys* keys, int64_t place) noexcept nogil:
    return keys.offsets[place + 1] - keys.offsets[place]


cdef inline int _compare(const Keys* one, int64_t a, const Keys* other, int64_t b) noexcept nogil:
    """Return the order of two keys, as that of their bytes."""
    cdef int32_t size = _size(one, a), others = _size(other, b)
    cdef int32_t shared = size if size < others else others
    cdef int found = 0
    if shared:
        found = memcmp(one.data + one.offsets[a], other.data + other.offsets[b], shared)
    if found:
        return found
    return (size > others) - (size < others)


def crc32s(const int32_t[::1] offsets, const uint8_t[::1] data, uint32_t[::1] into):
    """Write the CRC of each key."""
    cdef Keys keys = _keys(offsets, data)
    cdef int64_t place, at
    cdef uint32_t value
    if into.shape[0] != keys.count:
        raise ValueError("each key has a number")
    with nogil:
        for place in range(keys.count):
            value = 0xFFFFFFFF
            for at in range(keys.offsets[place], keys.offsets[place + 1]):
                value = (value >> 8) ^ CRC_TABLE[(value ^ keys.data[at]) & 0xFF]
            into[place] = value ^ <uint32_t>0xFFFFFFFF


def hashes(const int32_t[::1] offsets, const uint8_t[::1] data, uint64_t seed, int64_t[::1] into):
    """Write the hash of each key."""
    cdef Keys keys = _keys(offsets, data)
    cdef int64_t place
    if into.shape[0] != keys.count:
        raise ValueError("each key has a number")
    with nogil:
        for place in range(keys.count):
            into[place] = <int64_t>hash_of(keys.data + keys.offsets[place], _size(&keys, place), seed)


def last_places(const int32_t[::1] offsets, const uint8_t[::1] data, uint64_t seed, int64_t[::1] into):
    """Write the place of the last of equal keys, in the order of the places; return how many there are.

    An open-addressed table has the last place of each key so far, plus 1.
    """
    cdef Keys keys = _keys(offsets, data)
    cdef int64_t size = 16, place, found = 0
    cdef int64_t* table
    if into.shape[0] != keys.count:
        raise ValueError("each key has a number")
    while size < 2 * keys.count:
        size *= 2
    table = <int64_t*>calloc(size, sizeof(int64_t))
    if table == NULL:
        raise MemoryError
    with nogil:
        _note_last(&keys, seed, table, size - 1, &into[0] if keys.count else NULL)
        for place in range(keys.count):
            if into[place]:
                into[found] = place
                found += 1
    free(table)
    return found


cdef void _note_last(const Keys* keys, uint64_t seed, int64_t* table, int64_t mask, int64_t* is_last) noexcept nogil:
    """Note for each key whether no later one is equal."""
    cdef int64_t place, slot, held
    for place in range(keys.count):
        slot = <int64_t>(hash_of(keys.data + keys.offsets[place], _size(keys, place), seed) & <uint64_t>mask)
        while True:
            held = table[slot]
            if held == 0:
                break
            if _compare(keys, held - 1, keys, place) == 0:
                is_last[held - 1] = 0
                break
            slot = (slot + 1) & mask
        table[slot] = place + 1
        is_last[place] = 1


def merged_places(parts, int64_t[::1] into):
    """Write the places of the keys of all parts in their order, of equal keys the last one; return how many."""
    cdef Py_ssize_t count = len(parts), number
    cdef int64_t first = 0, found
    cdef Part* held = <Part*>malloc((count + 1) * sizeof(Part))
    cdef int32_t* heap = <int32_t*>malloc((count + 1) * sizeof(int32_t))
    cdef const int32_t[::1] offsets
    cdef const uint8_t[::1] data
    try:
        if held == NULL or heap == NULL:
            raise MemoryError
        for number, (part_offsets, part_data) in enumerate(parts):
            offsets, data = part_offsets, part_data
            held[number].keys = _keys(offsets, data)
            held[number].first = first
            held[number].at = 0
            first += held[number].keys.count
        if into.shape[0] != first:
            raise ValueError("each key has a number")
        with nogil:
            found = _merge(held, heap, <int32_t>count, &into[0] if first else NULL)
    finally:
        free(held)
        free(heap)
    return found


cdef int64_t _merge(Part* parts, int32_t* heap, int32_t count, int64_t* into) noexcept nogil:
    """Merge the parts. The heap has the parts that have keys left, the one with the lowest key first."""
    cdef int32_t size = 0, number, last = 0
    cdef int64_t found = 0, last_at = 0
    cdef Part* part
    for number in range(count):
        if parts[number].keys.count:
            heap[size] = number
            size += 1
    for number in range(size // 2 - 1, -1, -1):
        _sift(parts, heap, size, number)
    while size:
        part = &parts[heap[0]]
        if found and _compare(&parts[last].keys, last_at, &part.keys, part.at) == 0:
            found -= 1  # of equal keys the parts come in their order
        last, last_at = heap[0], part.at
        into[found] = part.first + part.at
        found += 1
        part.at += 1
        if part.at == part.keys.count:
            size -= 1
            heap[0] = heap[size]
        _sift(parts, heap, size, 0)
    return found


cdef inline bint _is_before(const Part* parts, int32_t one, int32_t other) noexcept nogil:
    cdef int order = _compare(&parts[one].keys, parts[one].at, &parts[other].keys, parts[other].at)
    return order < 0 or (order == 0 and one < other)


cdef void _sift(const Part* parts, int32_t* heap, int32_t size, int32_t at) noexcept nogil:
    cdef int32_t child, moved
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _is_before(parts, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(parts, heap[child], heap[at]):
            return
        moved = heap[at]
        heap[at] = heap[child]
        heap[child] = moved
        at = child
