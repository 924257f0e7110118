"""array_out's text of one dimension with lower bound 1; the encoder handles all other arrays."""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memset


cdef int _array_text(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Operation element
    cdef uint8_t delimiter = <uint8_t>op.low
    cdef Py_ssize_t end = size - 1, count
    if size < 2 or p[0] != c'{' or p[end] != c'}':
        return DECLINED
    if size == 2:
        _put_byte(out, 0)
        return DONE
    count = _count_elements(p, end, delimiter)
    if count < 0:
        return DECLINED
    memset(&element, 0, sizeof(element))
    element.op, element.low, element.high = op.element_op, op.element_low, op.element_high
    _put_long(out, count)  # the one block's count goes before its elements
    if _put_elements(out, &element, p, end, delimiter) != DONE:
        return DECLINED
    _put_byte(out, 0)
    return DONE


cdef Py_ssize_t _count_elements(const uint8_t* p, Py_ssize_t end, uint8_t delimiter) noexcept:
    """Count the elements between the brace at 0 and the one at `end`; -1 where the text is not of this form."""
    cdef Py_ssize_t at = 1, begin, count = 0
    while True:
        if at < end and p[at] == c'"':
            at += 1
            while at < end and p[at] != c'"':
                if p[at] == 0:
                    return -1
                if p[at] == c'\\':
                    at += 1
                    if at >= end or (p[at] != c'"' and p[at] != c'\\'):
                        return -1
                at += 1
            if at >= end:
                return -1
            at += 1
        else:
            begin = at
            while at < end and p[at] != delimiter:
                if p[at] == c'"' or p[at] == c'\\' or p[at] == c'{' or p[at] == c'}':
                    return -1
                at += 1
            if at == begin:
                return -1
        count += 1
        if at == end:
            return count
        if p[at] != delimiter:
            return -1
        at += 1
        if at == end:
            return -1


cdef int _put_elements(
    Buffer* out, const Operation* element, const uint8_t* p, Py_ssize_t end, uint8_t delimiter
) except -1:
    """Write the elements of a text that `_count_elements` has checked, each with its branch."""
    cdef Py_ssize_t at = 1, begin
    cdef int found
    while at < end:
        if p[at] == c'"':
            at = _unquote(p, at + 1)
            _put_byte(out, SOME_BRANCH)
            _room(&_scratch, 1)
            found = _encode(out, element, _scratch.data, _scratch.size)
        else:
            begin = at
            while at < end and p[at] != delimiter:
                at += 1
            if at - begin == 4 and memcmp(p + begin, b"NULL", 4) == 0:
                _put_byte(out, NULL_BRANCH)
                at += 1
                continue
            _put_byte(out, SOME_BRANCH)
            found = _encode(out, element, p + begin, at - begin)
        if found != DONE:
            return DECLINED
        at += 1
    return DONE


cdef Py_ssize_t _unquote(const uint8_t* p, Py_ssize_t at) except -1:
    """Fill `_scratch` with the element whose text begins at `at`; return the position after its closing quote."""
    cdef Py_ssize_t begin
    _scratch.size = 0
    while p[at] != c'"':
        begin = at
        while p[at] != c'"' and p[at] != c'\\':
            at += 1
        _put(&_scratch, p + begin, at - begin)
        if p[at] == c'\\':
            _put_byte(&_scratch, p[at + 1])
            at += 2
    return at + 1
