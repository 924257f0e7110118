"""The values of one column. The kinds are those of `cdcd.columnar.layout`."""

cdef enum:
    BIT = 0
    INT32 = 1
    INT64 = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    BYTES = 6
    LIST = 7
    MAP = 8
    STRUCT = 9

cdef enum:
    DECIMAL_BYTES = 16

cdef struct Store:
    int kind
    int precision
    int first_child  # the place of its children's numbers in Columns._children
    int children
    bint has_nulls  # otherwise `validity` is not written
    int64_t rows
    int64_t nulls
    int64_t size  # of BYTES: the bytes; of LIST and MAP: the items
    Buffer validity
    Buffer data
    Buffer offsets


cdef inline void _set_bit(uint8_t* bits, int64_t place, bint value) noexcept nogil:
    cdef int bit = place & 7  # without a branch: the values of a column may be random
    bits[place >> 3] = <uint8_t>((bits[place >> 3] & ~(1 << bit)) | (value << bit))


cdef int _first_null(Store* store) noexcept nogil:
    """Begin the validity bitmap: all rows up to now are valid."""
    cdef int fault = _reserve(&store.validity, (store.rows >> 3) + 1)
    if fault:
        return fault
    memset(store.validity.data, 0xFF, (store.rows >> 3) + 1)
    store.has_nulls = True
    return OK


cdef inline int _count(Store* store, bint is_valid) noexcept nogil:
    """Append a row, whose value is written already, to the validity bitmap."""
    cdef int fault
    if not is_valid and not store.has_nulls:
        fault = _first_null(store)
        if fault:
            return fault
    if store.has_nulls:
        fault = _reserve(&store.validity, (store.rows >> 3) + 1)
        if fault:
            return fault
        _set_bit(store.validity.data, store.rows, is_valid)
        store.nulls += not is_valid
    store.rows += 1
    return OK


cdef inline int _append_fixed(Store* store, const void* value, int width) noexcept nogil:
    cdef int fault = _reserve(&store.data, (store.rows + 1) * width)
    if fault:
        return fault
    memcpy(store.data.data + store.rows * width, value, width)
    return _count(store, True)


cdef inline int _append_bit(Store* store, bint value) noexcept nogil:
    cdef int fault = _reserve(&store.data, (store.rows >> 3) + 1)
    if fault:
        return fault
    _set_bit(store.data.data, store.rows, value)
    return _count(store, True)


cdef inline int _put_end(Store* store) noexcept nogil:
    """Write the end of the row: the offset after it. The first offset, 0, is written with the first row."""
    cdef int32_t end = <int32_t>store.size
    cdef int fault = _reserve(&store.offsets, (store.rows + 2) * 4)
    if fault:
        return fault
    if store.rows == 0:
        memset(store.offsets.data, 0, 4)
    memcpy(store.offsets.data + (store.rows + 1) * 4, &end, 4)
    return OK


cdef inline int _append_bytes(Store* store, const uint8_t* value, int64_t size) noexcept nogil:
    cdef int fault
    if store.size + size > INT32_MAX:
        return TOO_LARGE
    if size:
        fault = _reserve(&store.data, store.size + size)
        if fault:
            return fault
        memcpy(store.data.data + store.size, value, size)
        store.size += size
    fault = _put_end(store)
    return fault if fault else _count(store, True)


cdef inline int _append_items(Store* store, int64_t items) noexcept nogil:
    cdef int fault
    if store.size + items > INT32_MAX:
        return TOO_LARGE
    store.size += items
    fault = _put_end(store)
    return fault if fault else _count(store, True)


cdef inline int _width_of(int kind) noexcept nogil:
    if kind == INT32 or kind == FLOAT:
        return 4
    if kind == INT64 or kind == DOUBLE:
        return 8
    return DECIMAL_BYTES


cdef int _append_null(Store* stores, const int* children, int column) noexcept nogil:
    cdef Store* store = &stores[column]
    cdef int fault, place, width
    if store.kind == STRUCT:
        for place in range(store.first_child, store.first_child + store.children):
            fault = _append_null(stores, children, children[place])
            if fault:
                return fault
    elif store.kind == BYTES or store.kind == LIST or store.kind == MAP:
        fault = _put_end(store)
        if fault:
            return fault
    elif store.kind == BIT:
        fault = _reserve(&store.data, (store.rows >> 3) + 1)
        if fault:
            return fault
        _set_bit(store.data.data, store.rows, False)
    else:
        width = _width_of(store.kind)
        fault = _reserve(&store.data, (store.rows + 1) * width)
        if fault:
            return fault
        memset(store.data.data + store.rows * width, 0, width)
    return _count(store, False)


cdef void _truncate(Store* stores, const int* children, int column, int64_t rows) noexcept nogil:
    """Remove all rows from `rows` on."""
    cdef Store* store = &stores[column]
    cdef int32_t end = 0
    cdef int64_t row
    cdef int place
    if store.has_nulls:
        for row in range(rows, store.rows):
            store.nulls -= not (store.validity.data[row >> 3] >> (row & 7)) & 1
    if store.kind == BYTES or store.kind == LIST or store.kind == MAP:
        if rows:
            memcpy(&end, store.offsets.data + rows * 4, 4)
        store.size = end
    store.rows = rows
    for place in range(store.first_child, store.first_child + store.children):
        _truncate(stores, children, children[place], rows if store.kind == STRUCT else store.size)


cdef void _free_store(Store* store) noexcept nogil:
    free(store.validity.data)
    free(store.data.data)
    free(store.offsets.data)


cdef void _clear(Store* store) noexcept nogil:
    """Begin with no rows, in the memory that is left."""
    store.has_nulls = False
    store.rows = 0
    store.nulls = 0
    store.size = 0
