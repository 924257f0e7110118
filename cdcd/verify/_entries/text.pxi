"""A text that is being written, and the texts of values made of others."""

cdef enum:  # forms, as in `cdcd.verify.program`
    NO_FORM = 0
    FUNCTION = 1
    BOOLEAN_FORM = 2
    BIT_FORM = 3
    INTEGER_FORM = 4
    STRING_FORM = 5
    HEX_FORM = 6
    DATE_FORM = 7
    TIME_FORM = 8
    TIMESTAMP_FORM = 9
    TIMESTAMPTZ_FORM = 10
    REAL_FORM = 11
    DOUBLE_FORM = 12
    VARIABLE_SCALE_FORM = 13
    DECIMAL_FORM = 14
    ARRAY_FORM = 15

cdef enum:
    UNUSUAL = 100  # a fault: the specification decides about the record
    NUMBER_BYTES = 160  # the longest text of a number, a date or a time, and more

cdef struct Text:
    uint8_t* data
    int64_t size, capacity

cdef struct Form:
    int slot, form, number, null_branch, item_form, item_number
    uint8_t delimiter


cdef int reserve(Text* text, int64_t more) noexcept nogil:
    cdef int64_t capacity
    cdef uint8_t* data
    if text.size + more <= text.capacity:
        return OK
    capacity = 2 * (text.size + more) + 256
    data = <uint8_t*>realloc(text.data, capacity)
    if data == NULL:
        return NO_MEMORY
    text.data, text.capacity = data, capacity
    return OK


cdef inline int put_byte(Text* text, uint8_t byte) noexcept nogil:
    if reserve(text, 1):
        return NO_MEMORY
    text.data[text.size] = byte
    text.size += 1
    return OK


cdef inline int put(Text* text, const uint8_t* data, int64_t size) noexcept nogil:
    if reserve(text, size):
        return NO_MEMORY
    memcpy(text.data + text.size, data, size)
    text.size += size
    return OK


cdef int put_hex(Text* text, const uint8_t* data, int64_t size) noexcept nogil:
    cdef const char* digits = b"0123456789abcdef"
    cdef int64_t at
    cdef uint8_t* into
    if reserve(text, 2 + 2 * size):
        return NO_MEMORY
    into = text.data + text.size
    into[0], into[1] = c'\\', c'x'
    for at in range(size):
        into[2 + 2 * at] = digits[data[at] >> 4]
        into[3 + 2 * at] = digits[data[at] & 15]
    text.size += 2 + 2 * size
    return OK


cdef inline bint is_space(uint8_t byte) noexcept nogil:
    return byte == c' ' or 9 <= byte <= 13


cdef bint is_quoted(const uint8_t* at, int64_t size, uint8_t delimiter) noexcept nogil:
    """Return whether array_out quotes an item."""
    cdef int64_t place
    if size == 0:
        return True
    if size == 4 and at[0] & 0xDF == c'N' and at[1] & 0xDF == c'U' and at[2] & 0xDF == c'L' and at[3] & 0xDF == c'L':
        return True
    for place in range(size):
        if at[place] in (c'{', c'}', c'"', c'\\', delimiter) or is_space(at[place]):
            return True
    return False


cdef int quote_from(Text* text, int64_t begin) noexcept nogil:
    """Quote the text from `begin` on."""
    cdef int64_t size = text.size - begin, at, more = 2
    cdef uint8_t* into
    for at in range(begin, text.size):
        more += text.data[at] == c'"' or text.data[at] == c'\\'
    if reserve(text, more):
        return NO_MEMORY
    into = text.data + text.size + more - 1
    text.size += more
    into[0] = c'"'
    for at in range(begin + size - 1, begin - 1, -1):  # backwards: nothing is overwritten before it is read
        into -= 1
        into[0] = text.data[at]
        if into[0] == c'"' or into[0] == c'\\':
            into -= 1
            into[0] = c'\\'
    text.data[begin] = c'"'
    return OK


cdef int put_array(Text* text, const Form* form, Input* data) except -1:
    """Append the text of an array; return a fault."""
    cdef int64_t items, begin
    cdef int fault, branch
    cdef bint is_first = True
    fault = put_byte(text, c'{')
    while fault == OK:
        fault = _block(data, &items)
        if fault or items == 0:
            break
        while items and fault == OK:
            items -= 1
            if not is_first:
                fault = put_byte(text, form.delimiter)
            is_first = False
            branch = 1 - form.null_branch
            if fault == OK and form.null_branch >= 0:
                fault = _branch(data, &branch)
            if fault:
                break
            if branch == form.null_branch:
                fault = put(text, <const uint8_t*>b"NULL", 4)
                continue
            begin = text.size
            fault = put_value(text, form.item_form, form.item_number, data)
            if fault == OK and is_quoted(text.data + begin, text.size - begin, form.delimiter):
                fault = quote_from(text, begin)
    return fault if fault else put_byte(text, c'}')


cdef int put_value(Text* text, int form, int number, Input* data) except -1:
    """Append the text of a value that is not made of others; return a fault."""
    cdef const uint8_t* value
    cdef int64_t size, whole
    cdef int fault
    cdef bint is_true
    if form == STRING_FORM or form == HEX_FORM or form == DECIMAL_FORM:
        fault = _bytes(data, &value, &size)
        if fault:
            return fault
        if form == STRING_FORM:
            return put(text, value, size)
        return put_hex(text, value, size) if form == HEX_FORM else put_decimal(text, value, size, number)
    if form == BOOLEAN_FORM or form == BIT_FORM:
        if data.at == data.end:
            return TRUNCATED
        is_true = data.at[0] != 0
        data.at += 1
        if form == BIT_FORM:
            return put_byte(text, c'1' if is_true else c'0')
        return put_byte(text, c't' if is_true else c'f')
    if form == REAL_FORM or form == DOUBLE_FORM:
        return put_float(text, form, data)
    fault = _long(data, &whole)
    if fault:
        return fault
    if form == VARIABLE_SCALE_FORM:
        fault = _bytes(data, &value, &size)
        if fault == OK and not 0 <= whole <= MOST_SCALE:
            fault = UNUSUAL
        return fault if fault else put_decimal(text, value, size, <int>whole)
    if reserve(text, NUMBER_BYTES):
        return NO_MEMORY
    if form == INTEGER_FORM:
        put_number(text, whole, 0)
        return OK
    return put_moment(text, form, whole)
