"""Numbers in Avro's binary encoding."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from *:
    """
    /* The zig-zag varint of a long (Avro specification, "Binary Encoding"); at most 10 bytes. */
    static inline int cdcd_put_long(uint8_t *out, int64_t n) {
        uint64_t z = ((uint64_t)n << 1) ^ (uint64_t)(n >> 63);
        int size = 0;
        while (z >= 0x80) { out[size++] = (uint8_t)(z | 0x80); z >>= 7; }
        out[size++] = (uint8_t)z;
        return size;
    }

    static inline int cdcd_put_decimal(uint8_t *out, uint64_t n) {
        uint8_t digits[20];
        int size = 0, at = 0;
        do { digits[size++] = (uint8_t)('0' + n % 10); n /= 10; } while (n);
        while (size) out[at++] = digits[--size];
        return at;
    }
    """
    int cdcd_put_long(uint8_t*, int64_t) noexcept
    int cdcd_put_decimal(uint8_t*, uint64_t) noexcept

cdef uint8_t NULL_BRANCH = 0
cdef uint8_t SOME_BRANCH = 2

cdef struct Slice:
    const uint8_t* at
    Py_ssize_t size


cdef inline Slice _slice(bytes data):
    cdef Slice found
    found.at = <const uint8_t*>PyBytes_AS_STRING(data)
    found.size = PyBytes_GET_SIZE(data)
    return found


cdef inline bint _is_digit(uint8_t c) noexcept:
    return c'0' <= c <= c'9'
