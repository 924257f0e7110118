"""real and double precision: the shortest text that reads back as the value; send format: IEEE 754."""

from cpython.object cimport PyObject
from libc.math cimport fabs, isinf, isnan
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, PyObject*) except? -1.0

cdef extern from *:
    """
    #include <float.h>

    /* n / 10^power as the nearest double, power <= 19; returns 0 where the result is uncertain. n and 10^power are
       exact in 64 bits of mantissa, so the quotient is rounded to 64 bits and then to 53: that is wrong only where
       the first rounding gives the midpoint of two doubles. */
    static inline int cdcd_quotient(uint64_t n, Py_ssize_t power, double *found) {
        static const double tens[20] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
                                        1e14, 1e15, 1e16, 1e17, 1e18, 1e19};
        if (n <= (uint64_t)1 << 53) { *found = (double)n / tens[power]; return 1; }
    #if LDBL_MANT_DIG == 64 && defined(__x86_64__)
        {
            long double quotient = (long double)n / (long double)tens[power];
            uint64_t mantissa;
            memcpy(&mantissa, &quotient, 8);
            if ((mantissa & 0x7FF) == 0x400) return 0;
            *found = (double)quotient;
            return 1;
        }
    #else
        return 0;
    #endif
    }
    """
    int cdcd_quotient(uint64_t n, Py_ssize_t power, double* found) noexcept

cdef bint _short_double(const uint8_t* p, Py_ssize_t size, double* found) noexcept:
    """Parse at most 19 digits with an optional point; False where `cdcd_quotient` is uncertain."""
    cdef Py_ssize_t at = 0, digits = 0, fraction = -1
    cdef uint64_t n = 0
    cdef bint is_negative = size > 0 and p[0] == c'-'
    if size > 21:
        return False
    for at in range(1 if is_negative else 0, size):
        if _is_digit(p[at]):
            n = n * 10 + (p[at] - c'0')
            digits += 1
        elif p[at] == c'.' and fraction < 0:
            fraction = digits
        else:
            return False
    if digits == 0 or digits > 19 or not cdcd_quotient(n, 0 if fraction < 0 else digits - fraction, found):
        return False
    if is_negative:
        found[0] = -found[0]
    return True


cdef int _parse_double(const uint8_t* p, Py_ssize_t size, double* found) except -1:
    cdef char text[72]
    cdef char* end = NULL
    cdef Py_ssize_t at
    cdef uint8_t c
    if size == 0 or size > 64:
        return DECLINED
    if _short_double(p, size, found):
        return DONE
    for at in range(size):
        c = p[at]
        if not (_is_digit(c) or c == c'+' or c == c'-' or c == c'.' or c == c'e'):
            return DECLINED
        text[at] = <char>c
    text[size] = 0
    try:
        found[0] = PyOS_string_to_double(text, &end, NULL)
    except ValueError:
        return DECLINED
    return DONE if end == text + size else DECLINED


cdef int _double_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef double value = 0
    if _parse_double(p, size, &value) != DONE:
        return DECLINED
    _put(out, <uint8_t*>&value, 8)
    return DONE


cdef int _real_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef double value = 0
    cdef float real
    cdef uint64_t bits
    if _parse_double(p, size, &value) != DONE:
        return DECLINED
    real = <float>value
    memcpy(&bits, &value, 8)
    if isinf(real) and not isinf(value):
        return DECLINED
    # A double midway between two reals, or a subnormal result, needs the text: the encoder rounds correctly there.
    if bits & 0x1FFFFFFF == 0x10000000 or 0.0 < fabs(value) < 1.1754943508222875e-38:
        return DECLINED
    _put(out, <uint8_t*>&real, 4)
    return DONE


cdef int _float_binary(Buffer* out, const uint8_t* p, Py_ssize_t size, int width) except -1:
    cdef uint64_t long_bits
    cdef uint32_t bits
    cdef double value
    cdef float real
    if size != width:
        return DECLINED
    if width == 8:
        long_bits = cdcd_u64(p)
        memcpy(&value, &long_bits, 8)
        if isnan(value):
            return DECLINED
        _put(out, <uint8_t*>&long_bits, 8)
    else:
        bits = cdcd_u32(p)
        memcpy(&real, &bits, 4)
        if isnan(real):
            return DECLINED
        _put(out, <uint8_t*>&bits, 4)
    return DONE
