"""numeric, encoded as decimal(precision, scale) or as the server's text."""

from libc.stdint cimport int16_t, int64_t, uint8_t

cdef extern from *:
    """
    typedef unsigned __int128 cdcd_u128;

    /* Writes an unscaled decimal in the shortest two's complement, big-endian; returns its size. */
    static inline int cdcd_put_unscaled(uint8_t *out, cdcd_u128 magnitude, int is_negative) {
        cdcd_u128 bits = is_negative && magnitude ? magnitude - 1 : magnitude;
        int size = 1;
        while (size < 16 && (bits >> (size * 8 - 1))) size++;
        if (size == 16 && (bits >> 127)) size = 17;
        cdcd_u128 value = is_negative ? (cdcd_u128)0 - magnitude : magnitude;
        for (int at = 0; at < size; at++) {
            int shift = (size - 1 - at) * 8;
            out[at] = shift >= 128 ? (is_negative ? 0xFF : 0) : (uint8_t)(value >> shift);
        }
        return size;
    }
    """
    ctypedef unsigned long long u128 "cdcd_u128"
    int cdcd_put_unscaled(uint8_t*, u128, int) noexcept

cdef int _decimal_text(Buffer* out, int64_t precision, int64_t scale, const uint8_t* p, Py_ssize_t size) except -1:
    cdef bint is_negative = size > 0 and p[0] == c'-'
    cdef Py_ssize_t at = 1 if is_negative else 0
    cdef Py_ssize_t digits = 0, significant = 0, fraction = -1
    cdef u128 n = 0
    cdef uint8_t unscaled[17]
    cdef int length
    if size - at > 64:
        return DECLINED
    while at < size:
        if p[at] == c'.':
            if fraction >= 0:
                return DECLINED
            fraction = 0
        elif _is_digit(p[at]):
            digits += 1
            fraction += fraction >= 0
            if significant or p[at] != c'0':
                significant += 1
                if significant > 38:
                    return DECLINED
                n = n * 10 + <u128>(p[at] - c'0')
        else:
            return DECLINED
        at += 1
    if fraction < 0:
        fraction = 0
    if digits == 0 or fraction > scale or digits + is_negative > precision + 2:
        return DECLINED
    if significant:
        while fraction < scale:
            n = n * 10
            fraction += 1
            significant += 1
            if significant > precision:
                return DECLINED
        if significant > precision:
            return DECLINED
    length = cdcd_put_unscaled(unscaled, n, is_negative and significant > 0)
    _put_sized(out, unscaled, length)
    return DONE


cdef int _numeric_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at = 1 if size > 0 and p[0] == c'-' else 0
    cdef Py_ssize_t begin = at
    while at < size and _is_digit(p[at]):
        at += 1
    if at == begin:
        return DECLINED
    if at < size:
        if p[at] != c'.':
            return DECLINED
        at += 1
        begin = at
        while at < size and _is_digit(p[at]):
            at += 1
        if at == begin or at < size:
            return DECLINED
    _put_sized(out, p, size)
    return DONE


cdef int _numeric_out(const uint8_t* p, Py_ssize_t size, uint8_t* text, Py_ssize_t* length) noexcept:
    """Convert numeric_send's bytes to the text of numeric_out; `text` has 128 bytes."""
    cdef int count, weight, sign, scale, position, digit, whole, at, shown
    cdef uint8_t digits[4]
    cdef Py_ssize_t end = 0
    if size < 8:
        return DECLINED
    count, weight, sign, scale = cdcd_u16(p), <int16_t>cdcd_u16(p + 2), cdcd_u16(p + 4), cdcd_u16(p + 6)
    if size != 8 + 2 * count or count > 12 or weight > 11 or weight < -6 or scale > 40:
        return DECLINED
    if sign == 0x4000:
        text[end] = c'-'
        end += 1
    elif sign != 0:
        return DECLINED
    for position in range(count):
        if cdcd_u16(p + 8 + 2 * position) > 9999:
            return DECLINED
    if weight < 0:
        text[end] = c'0'
        end += 1
    else:
        shown = 0
        for position in range(weight + 1):
            digit = cdcd_u16(p + 8 + 2 * position) if position < count else 0
            digits[0], digits[1], digits[2], digits[3] = (
                <uint8_t>(digit // 1000), <uint8_t>(digit // 100 % 10), <uint8_t>(digit // 10 % 10),
                <uint8_t>(digit % 10),
            )
            for at in range(4):
                if shown or digits[at] or (position == weight and at == 3):
                    text[end] = c'0' + digits[at]
                    end += 1
                    shown = 1
    if scale:
        text[end] = c'.'
        end += 1
        for at in range(scale):
            position = weight + 1 + at // 4
            digit = cdcd_u16(p + 8 + 2 * position) if 0 <= position < count else 0
            whole = at % 4
            digit = digit // (1000 if whole == 0 else 100 if whole == 1 else 10 if whole == 2 else 1) % 10
            text[end] = <uint8_t>(c'0' + digit)
            end += 1
    length[0] = end
    return DONE


cdef int _numeric_binary(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef uint8_t text[128]
    cdef Py_ssize_t length = 0
    if _numeric_out(p, size, text, &length) != DONE:
        return DECLINED
    if op.op == NUMERIC_BINARY:
        _put_sized(out, text, length)
        return DONE
    return _decimal_text(out, op.low, op.high, text, length)
