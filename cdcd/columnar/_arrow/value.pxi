"""Avro values into stores. A function returns a fault, 0 if there is none."""

cdef extern from *:
    """
    typedef struct { uint64_t low, high; } cdcd_uint128;
    """
    ctypedef struct uint128_t "cdcd_uint128":
        uint64_t low
        uint64_t high

cdef struct Target:
    Store* stores
    const int* children

cdef uint128_t _POWERS[39]  # of ten


cdef int _set_powers() except -1:
    for digits in range(39):
        _POWERS[digits].low = (10 ** digits) & 0xFFFFFFFFFFFFFFFF
        _POWERS[digits].high = (10 ** digits) >> 64
    return 0


_set_powers()


cdef inline int _is_null(const Node* node, Input* data, bint* is_null) noexcept nogil:
    cdef int branch
    cdef int fault
    is_null[0] = False
    if node.null_branch == NO_UNION:
        return OK
    fault = _branch(data, &branch)
    if fault:
        return fault
    is_null[0] = branch == node.null_branch
    return OK


cdef int _skip_items(const Node* node, Input* data) noexcept nogil:
    cdef const uint8_t* key
    cdef int64_t items, size
    cdef int fault
    while True:
        fault = _block(data, &items)
        if fault or items == 0:
            return fault
        while items:
            items -= 1
            if node.op == OP_MAP:
                fault = _bytes(data, &key, &size)
                if fault:
                    return fault
            fault = _skip(node.child[0], data)
            if fault:
                return fault


cdef int _skip_union(const Node* node, Input* data) noexcept nogil:
    cdef int64_t number
    cdef int fault = _long(data, &number)
    if fault:
        return fault
    if number < 0 or number >= node.children:
        return BRANCH
    return _skip(node.child[number], data)


cdef int _skip_record(const Node* node, Input* data) noexcept nogil:
    cdef int fault, place
    for place in range(node.children):
        fault = _skip(node.child[place], data)
        if fault:
            return fault
    return OK


cdef int _skip(const Node* node, Input* data) noexcept nogil:
    """Go to the end of a value. Only its structure is checked."""
    cdef const uint8_t* value
    cdef int64_t number
    cdef bint is_null
    cdef int fault = _is_null(node, data, &is_null)
    if fault or is_null:
        return fault
    if node.op == OP_RUN:
        return _skip_run(data, node.steps, node.children, node.layout)
    elif node.op == OP_STRING or node.op == OP_BYTES or node.op == OP_DECIMAL:
        return _bytes(data, &value, &number)
    elif node.op == OP_INT or node.op == OP_LONG:
        return _long(data, &number)
    elif node.op == OP_BOOLEAN:
        return _skip_bytes(data, 1)
    elif node.op == OP_FLOAT:
        return _skip_bytes(data, 4)
    elif node.op == OP_DOUBLE:
        return _skip_bytes(data, 8)
    elif node.op == OP_RECORD:
        return _skip_record(node, data)
    elif node.op == OP_UNION:
        return _skip_union(node, data)
    elif node.op == OP_NULL:
        return OK
    return _skip_items(node, data)


cdef inline int _put_integer(Store* store, int64_t number) noexcept nogil:
    cdef int32_t small = <int32_t>number
    cdef double double_ = <double>number
    cdef float single = <float>double_
    if store.kind == INT64:
        return _append_fixed(store, &number, 8)
    if store.kind == INT32:
        return _append_fixed(store, &small, 4)
    if store.kind == DOUBLE:
        return _append_fixed(store, &double_, 8)
    return _append_fixed(store, &single, 4)


cdef inline int _put_float(Store* store, Input* data) noexcept nogil:
    cdef float single
    cdef double double_
    if data.end - data.at < 4:
        return TRUNCATED
    data.at += 4
    if store.kind == FLOAT:
        return _append_fixed(store, data.at - 4, 4)
    memcpy(&single, data.at - 4, 4)
    double_ = single
    return _append_fixed(store, &double_, 8)


cdef inline int _put_double(Store* store, Input* data) noexcept nogil:
    if data.end - data.at < 8:
        return TRUNCATED
    data.at += 8
    return _append_fixed(store, data.at - 8, 8)


cdef inline int _put_boolean(Store* store, Input* data) noexcept nogil:
    if data.at == data.end:
        return TRUNCATED
    if data.at[0] > 1:
        return BOOLEAN
    data.at += 1
    return _append_bit(store, (data.at - 1)[0])


cdef inline int _put_short_decimal(Store* store, const uint8_t* value, int64_t size, uint8_t fill) noexcept nogil:
    """Append a decimal of up to 8 bytes. `fill`: the byte that extends its sign."""
    cdef uint128_t number
    cdef uint64_t magnitude
    cdef int64_t place
    number.high = number.low = 0 - <uint64_t>(fill & 1)
    for place in range(size):
        number.low = number.low << 8 | value[place]
    magnitude = 0 - number.low if fill else number.low
    if _POWERS[store.precision].high == 0 and magnitude >= _POWERS[store.precision].low:
        return DECIMAL_DIGITS
    return _append_fixed(store, &number, DECIMAL_BYTES)


cdef int _put_decimal(Store* store, const uint8_t* value, int64_t size) noexcept nogil:
    """Append a big-endian number of any length as 16 bytes, little-endian, if it has no more digits than the type."""
    cdef uint8_t fill = 0xFF if size and value[0] & 0x80 else 0
    cdef uint8_t[16] number
    cdef uint128_t magnitude
    cdef int64_t place
    if size <= 8:
        return _put_short_decimal(store, value, size, fill)
    while size > DECIMAL_BYTES:
        if value[0] != fill:
            return DECIMAL_DIGITS
        value += 1
        size -= 1
    memset(number, fill, 16)
    for place in range(size):
        number[size - 1 - place] = value[place]
    if (number[15] ^ fill) & 0x80:
        return DECIMAL_DIGITS  # it had more than 128 bits
    memcpy(&magnitude.low, number, 8)
    memcpy(&magnitude.high, number + 8, 8)
    if fill:
        magnitude.low = ~magnitude.low + 1
        magnitude.high = ~magnitude.high + (magnitude.low == 0)
    if magnitude.high > _POWERS[store.precision].high or (
        magnitude.high == _POWERS[store.precision].high and magnitude.low >= _POWERS[store.precision].low
    ):
        return DECIMAL_DIGITS
    return _append_fixed(store, number, DECIMAL_BYTES)


cdef int _put_items(const Node* node, Input* data, const Target* out) noexcept nogil:
    cdef Store* store = node.store
    cdef Store* keys = &out.stores[out.children[store.first_child]]
    cdef const uint8_t* key
    cdef int64_t items, left, size, total = 0
    cdef int fault
    while True:
        fault = _block(data, &items)
        if fault:
            return fault
        if items == 0:
            return _append_items(store, total)
        total += items
        left = items
        while left:
            left -= 1
            if node.op == OP_MAP:
                fault = _bytes(data, &key, &size)
                if fault:
                    return fault
                fault = _append_bytes(keys, key, size) if _is_utf8(key, size) else TEXT
                if fault:
                    return fault
            fault = _put(node.child[0], data, out)
            if fault:
                return fault


cdef inline int _put_field(const Node* node, Input* data, const Target* out) noexcept nogil:
    """Decode a field of a record. The most frequent types are decided by one number."""
    cdef const uint8_t* value
    cdef int64_t number
    cdef int32_t small
    cdef int fault, branch
    if node.way == PUT_OTHERS:
        return _put(node, data, out)
    if node.null_branch == 0:
        fault = _branch(data, &branch)
        if fault:
            return fault
        if branch == 0:
            return _append_null(out.stores, out.children, node.column)
    if node.way == PUT_INT64:
        fault = _long(data, &number)
        return fault if fault else _append_fixed(node.store, &number, 8)
    elif node.way == PUT_INT32:
        fault = _long(data, &number)
        if fault:
            return fault
        small = <int32_t>number
        return _append_fixed(node.store, &small, 4) if small == number else NUMBER
    elif node.way == PUT_STRING:
        fault = _bytes(data, &value, &number)
        if fault:
            return fault
        return _append_bytes(node.store, value, number) if _is_utf8(value, number) else TEXT
    elif node.way == PUT_8:
        if data.end - data.at < 8:
            return TRUNCATED
        data.at += 8
        return _append_fixed(node.store, data.at - 8, 8)
    if data.end - data.at < 4:
        return TRUNCATED
    data.at += 4
    return _append_fixed(node.store, data.at - 4, 4)


cdef int _put_record(const Node* node, Input* outside, const Target* out) noexcept nogil:
    cdef Input data = outside[0]  # in registers
    cdef int fault, place
    for place in range(node.children):
        fault = _put_field(node.child[place], &data, out)
        if fault:
            return fault
    outside[0] = data
    for place in range(node.missing):
        fault = _append_null(out.stores, out.children, node.missing_columns[place])
        if fault:
            return fault
    return _count(node.store, True)


cdef inline int _put_bytes(const Node* node, Store* store, Input* data) noexcept nogil:
    cdef const uint8_t* value
    cdef int64_t size
    cdef int fault = _bytes(data, &value, &size)
    if fault:
        return fault
    if node.op == OP_DECIMAL:
        return _put_decimal(store, value, size)
    if node.op == OP_STRING and not _is_utf8(value, size):
        return TEXT
    return _append_bytes(store, value, size)


cdef inline int _put_number(const Node* node, Store* store, Input* data) noexcept nogil:
    cdef int64_t number
    cdef int fault = _long(data, &number)
    if fault:
        return fault
    if node.op == OP_INT and (number < INT32_MIN or number > INT32_MAX):
        return NUMBER
    return _put_integer(store, number)


cdef int _put(const Node* node, Input* data, const Target* out) noexcept nogil:
    """Decode a value into its column, or skip it."""
    cdef bint is_null
    cdef Store* store
    cdef int fault
    if node.store == NULL:
        return _skip(node, data)
    fault = _is_null(node, data, &is_null)
    if fault:
        return fault
    if is_null:
        return _append_null(out.stores, out.children, node.column)
    store = node.store
    if node.op == OP_STRING or node.op == OP_BYTES or node.op == OP_DECIMAL:
        return _put_bytes(node, store, data)
    elif node.op == OP_INT or node.op == OP_LONG:
        return _put_number(node, store, data)
    elif node.op == OP_BOOLEAN:
        return _put_boolean(store, data)
    elif node.op == OP_FLOAT:
        return _put_float(store, data)
    elif node.op == OP_DOUBLE:
        return _put_double(store, data)
    elif node.op == OP_RECORD:
        return _put_record(node, data, out)
    return _put_items(node, data, out)
