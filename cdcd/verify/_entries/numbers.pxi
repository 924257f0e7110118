"""The texts of numbers, dates and times. Where nothing else is said, the text has room for NUMBER_BYTES more."""

from cpython.mem cimport PyMem_Free
from libc.math cimport fabs, frexp, isfinite

from cdcd.verify.float_text import double_text as _double_text
from cdcd.verify.float_text import real_text as _real_text

cdef extern from "Python.h":
    char* PyOS_double_to_string(double, char, int, int, int*) except NULL
    double PyOS_string_to_double(const char*, char**, PyObject*) except? -1.0
    ctypedef struct PyObject

cdef extern from *:
    """
    typedef unsigned __int128 cdcd_u128;
    """
    ctypedef unsigned long long u128 "cdcd_u128"

cdef enum:
    MOST_SCALE = 100
    MOST_DECIMAL_BYTES = 16
    DOUBLE_DIGITS = 15  # the exponent from which the text is in scientific notation
    REAL_DIGITS = 6

cdef int64_t DAY_US = 86_400_000_000
cdef int64_t MOST_DAYS = 1_000_000_000_000


cdef void put_number(Text* text, int64_t number, int least) noexcept nogil:
    """Append a decimal number with at least so many digits."""
    cdef uint64_t left = <uint64_t>number if number >= 0 else <uint64_t>0 - <uint64_t>number
    cdef uint8_t digits[24]
    cdef int count = 0
    while left or count < least or count == 0:
        digits[count] = <uint8_t>(c'0' + left % 10)
        left //= 10
        count += 1
    if number < 0:
        text.data[text.size] = c'-'
        text.size += 1
    while count:
        count -= 1
        text.data[text.size] = digits[count]
        text.size += 1


cdef int put_decimal(Text* text, const uint8_t* value, int64_t size, int scale) noexcept nogil:
    """Append numeric_out's text of an unscaled number, which has the bytes of a two's complement."""
    cdef u128 left = 0
    cdef uint8_t digits[64 + MOST_SCALE]
    cdef int count = 0, place
    cdef bint is_negative = size > 0 and value[0] & 0x80
    if size > MOST_DECIMAL_BYTES:
        return UNUSUAL
    if reserve(text, 64 + MOST_SCALE):
        return NO_MEMORY
    for place in range(<int>size):
        left = (left << 8) | (value[place] ^ (0xFF if is_negative else 0))
    if is_negative:
        left += 1
    while left or count <= scale:
        digits[count] = <uint8_t>(c'0' + <int>(left % 10))
        left //= 10
        count += 1
    if is_negative:
        put_byte(text, c'-')
    while count:
        if count == scale:
            put_byte(text, c'.')
        count -= 1
        put_byte(text, digits[count])
    return OK


cdef void put_clock(Text* text, int64_t us) noexcept nogil:
    cdef int64_t seconds = us // 1_000_000, fraction = us % 1_000_000
    put_number(text, seconds // 3600, 2)
    put_byte(text, c':')
    put_number(text, seconds // 60 % 60, 2)
    put_byte(text, c':')
    put_number(text, seconds % 60, 2)
    if fraction:
        put_byte(text, c'.')
        put_number(text, fraction, 6)
        while text.data[text.size - 1] == c'0':
            text.size -= 1


cdef bint put_date(Text* text, int64_t days) noexcept nogil:
    """Append the date; return whether it is before the year 1. The formulas are those of `cdcd.schema.calendar`."""
    cdef int64_t shifted = days + 719_468, era, of_era_days, of_era, of_year, month, year
    era = shifted // 146_097 - (shifted % 146_097 < 0)
    of_era_days = shifted - era * 146_097
    of_era = (of_era_days - of_era_days // 1460 + of_era_days // 36_524 - of_era_days // 146_096) // 365
    of_year = of_era_days - (365 * of_era + of_era // 4 - of_era // 100)
    month = (5 * of_year + 2) // 153
    year = era * 400 + of_era + ((month + 2) % 12 + 1 <= 2)
    put_number(text, year if year > 0 else 1 - year, 4)
    put_byte(text, c'-')
    put_number(text, (month + 2) % 12 + 1, 2)
    put_byte(text, c'-')
    put_number(text, of_year - (153 * month + 2) // 5 + 1, 2)
    return year <= 0


cdef int put_moment(Text* text, int form, int64_t number) noexcept nogil:
    """Append the text of a date (days), or of a time or a timestamp (microseconds)."""
    cdef int64_t days
    cdef bint is_before_christ
    if form == TIME_FORM:
        if number < 0:
            return UNUSUAL
        put_clock(text, number)
        return OK
    if form == DATE_FORM:
        if not -MOST_DAYS < number < MOST_DAYS:
            return UNUSUAL
        is_before_christ = put_date(text, number)
    else:
        days = number // DAY_US - (number % DAY_US < 0)
        is_before_christ = put_date(text, days)
        put_byte(text, c' ')
        put_clock(text, number - days * DAY_US)
        if form == TIMESTAMPTZ_FORM:
            put(text, <const uint8_t*>b"+00", 3)
    if is_before_christ:
        put(text, <const uint8_t*>b" BC", 3)
    return OK


cdef int put_float(Text* text, int form, Input* data) except -1:
    """Append the text of a number in IEEE 754; return a fault."""
    cdef float small
    cdef double value
    cdef int64_t size = 4 if form == REAL_FORM else 8
    if data.end - data.at < size:
        return TRUNCATED
    if form == REAL_FORM:
        memcpy(&small, data.at, 4)
        value = small
    else:
        memcpy(&value, data.at, 8)
    data.at += size
    if reserve(text, NUMBER_BYTES):
        return NO_MEMORY
    if isfinite(value) and value != 0 and (put_real(text, value) if form == REAL_FORM else put_double(text, value)):
        return OK
    found = _real_text(value) if form == REAL_FORM else _double_text(value)
    return put(text, <const uint8_t*>PyBytes_AS_STRING(found), PyBytes_GET_SIZE(found))


cdef bint put_double(Text* text, double value) except -1:
    """Append the text where the shortest one of C is PostgreSQL's; return whether it is."""
    cdef char* shortest
    if not 2.2250738585072014e-308 <= fabs(value) < 9007199254740992.0:
        return False
    shortest = PyOS_double_to_string(value, c'r', 0, 0, NULL)
    put_shown(text, shortest, DOUBLE_DIGITS)
    PyMem_Free(shortest)
    return True


cdef bint put_real(Text* text, double value) except -1:
    cdef char* shown
    cdef double found
    cdef int exponent, digits
    if fabs(value) < 16777216.0 and value == <double><int64_t>value:
        shown = PyOS_double_to_string(value, c'r', 0, 0, NULL)  # neighbours are at most 1 apart: all digits count
        put_shown(text, shown, REAL_DIGITS)
        PyMem_Free(shown)
        return True
    if not 1.1754943508222875e-38 <= fabs(value) < 16777216.0 or fabs(frexp(value, &exponent)) == 0.5:
        return False
    for digits in range(REAL_DIGITS, 10):
        shown = PyOS_double_to_string(value, c'e', digits - 1, 0, NULL)
        try:
            found = PyOS_string_to_double(shown, NULL, NULL)
            if <float>found == <float>value:
                put_shown(text, shown, REAL_DIGITS)
                return True
        finally:
            PyMem_Free(shown)
    return False


cdef void put_shown(Text* text, const char* given, int most_digits) noexcept nogil:
    """Append a decimal as PostgreSQL writes it: as `cdcd.verify.float_text` does."""
    cdef char digits[64]
    cdef int count = 0, point = -1, first = 0, exponent = 0, at
    cdef bint is_below = False
    if given[0] == c'-':
        put_byte(text, c'-')
        given += 1
    while given[0] and given[0] != c'e':
        if given[0] == c'.':
            point = count
        elif count < 63:
            digits[count] = given[0]
            count += 1
        given += 1
    if point < 0:
        point = count
    if given[0] == c'e':
        given += 1
        is_below = given[0] == c'-'
        given += given[0] == c'-' or given[0] == c'+'
        while given[0]:
            exponent = 10 * exponent + given[0] - c'0'
            given += 1
        point += -exponent if is_below else exponent
    while first < count and digits[first] == c'0':
        first += 1
    point -= first
    while count > first and digits[count - 1] == c'0':
        count -= 1
    put_digits(text, digits + first, count - first, point, most_digits)


cdef void put_digits(Text* text, const char* digits, int count, int point, int most_digits) noexcept nogil:
    cdef int exponent = point - 1, at
    if exponent < -4 or exponent >= most_digits:
        put_byte(text, digits[0])
        if count > 1:
            put_byte(text, c'.')
            put(text, <const uint8_t*>digits + 1, count - 1)
        put_byte(text, c'e')
        put_byte(text, c'-' if exponent < 0 else c'+')
        put_number(text, -exponent if exponent < 0 else exponent, 2)
        return
    if point <= 0:
        put(text, <const uint8_t*>b"0.", 2)
    for at in range(point, 0):
        put_byte(text, c'0')
    for at in range(count):
        if at == point and at > 0:
            put_byte(text, c'.')
        put_byte(text, digits[at])
    for at in range(count, point):
        put_byte(text, c'0')
