"""TupleData -> one value per column, which points into the batch. The C form of `cdcd.avro.tuple_data`."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    KIND_NULL = <int>c'n'
    KIND_TEXT = <int>c't'
    KIND_UNCHANGED = <int>c'u'
    KIND_BINARY = <int>c'b'

cdef struct Value:
    uint8_t kind
    const uint8_t* at
    Py_ssize_t size


cdef const uint8_t* _split(
    Value* row, int width, const uint8_t* at, const uint8_t* end, bint* has_unchanged
) noexcept:
    """Split TupleData into values; NULL where it does not match the relation exactly."""
    cdef int number
    cdef uint8_t kind
    cdef uint32_t size
    has_unchanged[0] = False
    if end - at < 2 or cdcd_u16(at) != width:
        return NULL
    at += 2
    for number in range(width):
        if at >= end:
            return NULL
        kind = at[0]
        row[number].kind = kind
        if kind == KIND_TEXT or kind == KIND_BINARY:
            if end - at < 5:
                return NULL
            size = cdcd_u32(at + 1)
            at += 5
            if size > <uint64_t>(end - at):
                return NULL
            row[number].at = at
            row[number].size = size
            at += size
        elif kind == KIND_NULL:
            row[number].at = NULL
            row[number].size = 0
            at += 1
        elif kind == KIND_UNCHANGED:
            row[number].at = NULL
            row[number].size = 0
            has_unchanged[0] = True
            at += 1
        else:
            return NULL
    return at
