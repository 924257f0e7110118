# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The compiled row codec: runs of raw row messages -> Kafka records, without a Python object per column.

In: a `Run` or `Transactions`, plans by relid, the transaction's constants.  Out: records; or records, and they are
put in order (`by_partition`) and given to the producer (`hand_over`), whose twins are in `cdcd.sink.hand_over`.
Invariant: bytes and errors are those of its twin (`cdcd.avro.encode`), which is its specification. What an operation
does not understand goes to the column's own encoder or to the twin, a row at a time; where the twin raises, the whole
run is given to it, so that an error is the twin's own. Nothing is read beyond a frame, and nothing is written without
room for it.
Must not: guess. Every renewal_reason is the twin's to decide.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from libc.math cimport fabs, isinf, isnan
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from cdcd.model import POSTGRES_EPOCH_US, Record
from cdcd.schema.codec import Op

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, PyObject*) except? -1.0
    void PyErr_Clear()
    object PyList_New(Py_ssize_t)
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)
    int PyList_Append(object, object) except -1

cdef extern from *:
    """
    #include <float.h>
    typedef unsigned __int128 cdcd_u128;

    static inline uint16_t cdcd_u16(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }
    static inline uint32_t cdcd_u32(const uint8_t *p) {
        uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v);
    }
    static inline uint64_t cdcd_u64(const uint8_t *p) {
        uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v);
    }
    static inline uint32_t cdcd_le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

    /* The zig-zag varint of a long (Avro specification, "Binary Encoding"); at most 10 bytes. */
    static inline int cdcd_put_long(uint8_t *out, int64_t n) {
        uint64_t z = ((uint64_t)n << 1) ^ (uint64_t)(n >> 63);
        int size = 0;
        while (z >= 0x80) { out[size++] = (uint8_t)(z | 0x80); z >>= 7; }
        out[size++] = (uint8_t)z;
        return size;
    }

    /* n / 10^power as the nearest double, power <= 19; 0 where this does not tell. Both are exact in 64 bits of
       mantissa, so the quotient is rounded once to 64 and once more to 53: wrong only where the first rounding fell
       on the middle between two doubles. */
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

    static inline int cdcd_put_decimal(uint8_t *out, uint64_t n) {
        uint8_t digits[20];
        int size = 0, at = 0;
        do { digits[size++] = (uint8_t)('0' + n % 10); n /= 10; } while (n);
        while (size) out[at++] = digits[--size];
        return at;
    }

    /* Strict UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF, as Python's decoder. */
    static int cdcd_is_utf8(const uint8_t *p, Py_ssize_t size) {
        const uint8_t *end = p + size;
        while (p < end) {
            if (end - p >= 8) {
                uint64_t eight;
                memcpy(&eight, p, 8);
                if (!(eight & 0x8080808080808080ULL)) { p += 8; continue; }
            }
            uint8_t c = *p;
            if (c < 0x80) { p += 1; continue; }
            if (c < 0xC2) return 0;
            if (c < 0xE0) {
                if (end - p < 2 || (p[1] & 0xC0) != 0x80) return 0;
                p += 2;
            } else if (c < 0xF0) {
                if (end - p < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
                if (c == 0xE0 && p[1] < 0xA0) return 0;
                if (c == 0xED && p[1] > 0x9F) return 0;
                p += 3;
            } else {
                if (c > 0xF4 || end - p < 4) return 0;
                if ((p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80) return 0;
                if (c == 0xF0 && p[1] < 0x90) return 0;
                if (c == 0xF4 && p[1] > 0x8F) return 0;
                p += 4;
            }
        }
        return 1;
    }

    /* org.apache.kafka.common.utils.Utils.murmur2 */
    static inline uint32_t cdcd_murmur2(const uint8_t *p, uint32_t size) {
        const uint32_t m = 0x5bd1e995;
        uint32_t h = 0x9747b28cU ^ size;
        uint32_t left = size;
        while (left >= 4) {
            uint32_t k = cdcd_le32(p);
            k *= m; k ^= k >> 24; k *= m;
            h *= m; h ^= k;
            p += 4; left -= 4;
        }
        switch (left) {
            case 3: h ^= (uint32_t)p[2] << 16; /* fall through */
            case 2: h ^= (uint32_t)p[1] << 8;  /* fall through */
            case 1: h ^= p[0]; h *= m;
        }
        h ^= h >> 13; h *= m; h ^= h >> 15;
        return h;
    }

    /* Days since 1970-01-01 in the proleptic Gregorian calendar; the date is checked by who calls. */
    static inline int64_t cdcd_days(int64_t year, int month, int day) {
        int64_t shifted = year - (month <= 2);
        int64_t era = (shifted >= 0 ? shifted : shifted - 399) / 400;
        int64_t of_era = shifted - era * 400;
        int64_t of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    }

    static inline int cdcd_month_days(int year, int month) {
        static const uint8_t days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        if (month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)) return 29;
        return days[month - 1];
    }

    /* A tuple's subclass as its own __new__ makes one; the references given in stay the caller's. */
    static inline PyObject *cdcd_record(
        PyTypeObject *type, PyObject *topic, PyObject *partition, PyObject *key, PyObject *value
    ) {
        PyObject *record = type->tp_alloc(type, 4);
        if (record == NULL) return NULL;
        Py_INCREF(topic); PyTuple_SET_ITEM(record, 0, topic);
        Py_INCREF(partition); PyTuple_SET_ITEM(record, 1, partition);
        Py_INCREF(key); PyTuple_SET_ITEM(record, 2, key);
        Py_INCREF(value); PyTuple_SET_ITEM(record, 3, value);
        return record;
    }

    /* An unscaled decimal as two's complement, big-endian, as short as it can be; returns its size. */
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
    uint16_t cdcd_u16(const uint8_t*) noexcept
    uint32_t cdcd_u32(const uint8_t*) noexcept
    uint64_t cdcd_u64(const uint8_t*) noexcept
    int cdcd_put_long(uint8_t*, int64_t) noexcept
    int cdcd_quotient(uint64_t n, Py_ssize_t power, double* found) noexcept
    int cdcd_put_decimal(uint8_t*, uint64_t) noexcept
    int cdcd_is_utf8(const uint8_t*, Py_ssize_t) noexcept
    uint32_t cdcd_murmur2(const uint8_t*, uint32_t) noexcept
    int64_t cdcd_days(int64_t, int, int) noexcept
    int cdcd_month_days(int, int) noexcept
    int cdcd_put_unscaled(uint8_t*, u128, int) noexcept
    object cdcd_record(PyTypeObject*, object, object, object, object)


# --- operations ----------------------------------------------------------------------------------------------

cdef enum:
    CALL = 0
    BOOLEAN_TEXT = 1
    BOOLEAN_SENT = 2
    INTEGER_TEXT = 3
    INTEGER_SENT = 4
    UNSIGNED_SENT = 5
    STRING = 6
    JSONB_SENT = 7
    BYTES = 8
    BYTEA_TEXT = 9
    REAL_TEXT = 10
    REAL_SENT = 11
    DOUBLE_TEXT = 12
    DOUBLE_SENT = 13
    DECIMAL_TEXT = 14
    DECIMAL_SENT = 15
    NUMERIC_TEXT = 16
    NUMERIC_SENT = 17
    DATE_TEXT = 18
    DATE_SENT = 19
    TIME_TEXT = 20
    TIME_SENT = 21
    TIMESTAMP_TEXT = 22
    TIMESTAMPTZ_TEXT = 23
    TIMESTAMP_SENT = 24
    UUID_TEXT = 25
    UUID_SENT = 26
    ARRAY_TEXT = 27

_KNOWN = {
    "CALL": CALL, "BOOLEAN_TEXT": BOOLEAN_TEXT, "BOOLEAN_SENT": BOOLEAN_SENT, "INTEGER_TEXT": INTEGER_TEXT,
    "INTEGER_SENT": INTEGER_SENT, "UNSIGNED_SENT": UNSIGNED_SENT, "STRING": STRING, "JSONB_SENT": JSONB_SENT,
    "BYTES": BYTES, "BYTEA_TEXT": BYTEA_TEXT, "REAL_TEXT": REAL_TEXT, "REAL_SENT": REAL_SENT,
    "DOUBLE_TEXT": DOUBLE_TEXT, "DOUBLE_SENT": DOUBLE_SENT, "DECIMAL_TEXT": DECIMAL_TEXT,
    "DECIMAL_SENT": DECIMAL_SENT, "NUMERIC_TEXT": NUMERIC_TEXT, "NUMERIC_SENT": NUMERIC_SENT,
    "DATE_TEXT": DATE_TEXT, "DATE_SENT": DATE_SENT, "TIME_TEXT": TIME_TEXT, "TIME_SENT": TIME_SENT,
    "TIMESTAMP_TEXT": TIMESTAMP_TEXT, "TIMESTAMPTZ_TEXT": TIMESTAMPTZ_TEXT, "TIMESTAMP_SENT": TIMESTAMP_SENT,
    "UUID_TEXT": UUID_TEXT, "UUID_SENT": UUID_SENT, "ARRAY_TEXT": ARRAY_TEXT,
}
if {op.name: int(op) for op in Op} != _KNOWN:
    raise ImportError("the compiled row codec was built for another version of cdcd")

cdef enum:
    DONE = 0
    LEFT = 1  # to the encoder, or to the twin
    FAILED = -1  # a Python error is set

cdef struct Operation:
    int op
    int64_t low
    int64_t high
    int64_t max_bytes
    int element_op
    int64_t element_low
    int64_t element_high

cdef struct Value:
    uint8_t kind
    const uint8_t* at
    Py_ssize_t size

cdef struct Slice:
    const uint8_t* at
    Py_ssize_t size

cdef struct Buffer:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity

cdef int64_t DAY_US = 86_400_000_000
cdef int64_t EPOCH_US = POSTGRES_EPOCH_US
cdef int POSTGRES_EPOCH_DAYS = 10_957
cdef Py_ssize_t KEPT_BYTES = 1 << 22
cdef uint8_t NULL_BRANCH = 0
cdef uint8_t SOME_BRANCH = 2

cdef int64_t _called_columns = 0
cdef int64_t _twin_rows = 0


def taken_tally():
    """Return how many columns called their encoder and how many rows went to the twin since the last call."""
    global _called_columns, _twin_rows
    found = (_called_columns, _twin_rows)
    _called_columns = _twin_rows = 0
    return found


# --- the buffer ----------------------------------------------------------------------------------------------

cdef Buffer _value, _key, _scratch

cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #define CDCD_IS_CHECKED 1
    #else
    #define CDCD_IS_CHECKED 0
    #endif
    """
    bint IS_CHECKED "CDCD_IS_CHECKED"  # a buffer is as large as was asked for, so that a byte too many is seen


cdef int _grow(Buffer* out, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity = out.capacity * 2
    cdef uint8_t* data
    if capacity < out.size + more:
        capacity = out.size + more
    if capacity < 4096:
        capacity = 4096
    if IS_CHECKED:
        capacity = out.size + more
    data = <uint8_t*>PyMem_Realloc(out.data, capacity)
    if data == NULL:
        raise MemoryError
    out.data = data
    out.capacity = capacity
    return 0


cdef inline int _room(Buffer* out, Py_ssize_t more) except -1:
    if out.capacity - out.size < more:
        return _grow(out, more)
    return 0


cdef inline void _shrink(Buffer* out) noexcept:
    """Give back what one large row needed."""
    if out.capacity > KEPT_BYTES or IS_CHECKED:
        PyMem_Free(out.data)
        out.data = NULL
        out.capacity = 0
    out.size = 0


cdef inline int _put(Buffer* out, const uint8_t* data, Py_ssize_t size) except -1:
    if size == 0:
        return 0  # a buffer that nothing is in yet has no place to copy to
    _room(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef inline int _put_slice(Buffer* out, Slice piece) except -1:
    return _put(out, piece.at, piece.size)


cdef inline int _put_byte(Buffer* out, uint8_t byte) except -1:
    _room(out, 1)
    out.data[out.size] = byte
    out.size += 1
    return 0


cdef inline int _put_long(Buffer* out, int64_t n) except -1:
    _room(out, 10)
    out.size += cdcd_put_long(out.data + out.size, n)
    return 0


cdef inline int _put_sized(Buffer* out, const uint8_t* data, Py_ssize_t size) except -1:
    _room(out, size + 10)
    out.size += cdcd_put_long(out.data + out.size, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


# --- values --------------------------------------------------------------------------------------------------


cdef inline bint _is_digit(uint8_t c) noexcept:
    return 48 <= c <= 57


cdef int _integer(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef bint is_negative = size > 0 and p[0] == 45
    cdef Py_ssize_t at = 1 if is_negative else 0
    cdef uint64_t n = 0
    cdef int64_t signed_n
    if size == at or size - at > 19:
        return LEFT
    while at < size:
        if not _is_digit(p[at]):
            return LEFT
        n = n * 10 + (p[at] - 48)
        at += 1
    if is_negative:
        if n > <uint64_t>1 << 63:
            return LEFT
        signed_n = <int64_t>(0 - n)
    else:
        if n > <uint64_t>INT64_MAX:
            return LEFT
        signed_n = <int64_t>n
    if signed_n < op.low or signed_n > op.high:
        return LEFT
    _put_long(out, signed_n)
    return DONE


cdef int _sent_integer(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef uint64_t n
    if size != op.low:
        return LEFT
    if size == 2:
        _put_long(out, <int16_t>cdcd_u16(p))
    elif size == 4:
        _put_long(out, <int64_t>cdcd_u32(p) if op.op == UNSIGNED_SENT else <int64_t><int32_t>cdcd_u32(p))
    elif size == 8:
        n = cdcd_u64(p)
        if op.op == UNSIGNED_SENT and n > <uint64_t>INT64_MAX:
            return LEFT
        _put_long(out, <int64_t>n)
    else:
        return LEFT
    return DONE


cdef int _string(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    if not cdcd_is_utf8(p, size):
        return LEFT
    _put_sized(out, p, size)
    return DONE


cdef inline int _nibble(uint8_t c) noexcept:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= c <= 102:
        return c - 87
    if 65 <= c <= 70:
        return c - 55
    return -1


cdef int _bytea(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at, count
    cdef int high, low
    if size < 2 or p[0] != 92 or p[1] != 120 or size & 1:
        return LEFT
    count = (size - 2) >> 1
    _room(out, count + 10)
    out.size += cdcd_put_long(out.data + out.size, count)
    for at in range(count):
        high, low = _nibble(p[2 + 2 * at]), _nibble(p[3 + 2 * at])
        if high < 0 or low < 0:
            return LEFT
        out.data[out.size + at] = <uint8_t>(high << 4 | low)
    out.size += count
    return DONE


cdef bint _plain_double(const uint8_t* p, Py_ssize_t size, double* found) noexcept:
    """At most 19 digits with a point at most; False where they do not say at once which double is the nearest."""
    cdef Py_ssize_t at = 0, digits = 0, fraction = -1
    cdef uint64_t n = 0
    cdef bint is_negative = size > 0 and p[0] == 45
    if size > 21:
        return False
    for at in range(1 if is_negative else 0, size):
        if _is_digit(p[at]):
            n = n * 10 + (p[at] - 48)
            digits += 1
        elif p[at] == 46 and fraction < 0:
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
        return LEFT
    if _plain_double(p, size, found):
        return DONE
    for at in range(size):
        c = p[at]
        if not (_is_digit(c) or c == 43 or c == 45 or c == 46 or c == 101):
            return LEFT
        text[at] = <char>c
    text[size] = 0
    try:
        found[0] = PyOS_string_to_double(text, &end, NULL)
    except ValueError:
        return LEFT
    return DONE if end == text + size else LEFT


cdef int _double(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef double value = 0
    if _parse_double(p, size, &value) != DONE:
        return LEFT
    _put(out, <uint8_t*>&value, 8)
    return DONE


cdef int _real(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef double value = 0
    cdef float real
    cdef uint64_t bits
    if _parse_double(p, size, &value) != DONE:
        return LEFT
    real = <float>value
    memcpy(&bits, &value, 8)
    if isinf(real) and not isinf(value):
        return LEFT
    # The text decides where the double lies between two reals, or is no normal one: the encoder knows how.
    if bits & 0x1FFFFFFF == 0x10000000 or 0.0 < fabs(value) < 1.1754943508222875e-38:
        return LEFT
    _put(out, <uint8_t*>&real, 4)
    return DONE


cdef int _sent_float(Buffer* out, const uint8_t* p, Py_ssize_t size, int width) except -1:
    cdef uint64_t long_bits
    cdef uint32_t bits
    cdef double value
    cdef float real
    if size != width:
        return LEFT
    if width == 8:
        long_bits = cdcd_u64(p)
        memcpy(&value, &long_bits, 8)
        if isnan(value):
            return LEFT
        _put(out, <uint8_t*>&long_bits, 8)
    else:
        bits = cdcd_u32(p)
        memcpy(&real, &bits, 4)
        if isnan(real):
            return LEFT
        _put(out, <uint8_t*>&bits, 4)
    return DONE


cdef int _decimal(Buffer* out, int64_t precision, int64_t scale, const uint8_t* p, Py_ssize_t size) except -1:
    cdef bint is_negative = size > 0 and p[0] == 45
    cdef Py_ssize_t at = 1 if is_negative else 0
    cdef Py_ssize_t digits = 0, significant = 0, fraction = -1
    cdef u128 n = 0
    cdef uint8_t unscaled[17]
    cdef int length
    if size - at > 64:
        return LEFT
    while at < size:
        if p[at] == 46:
            if fraction >= 0:
                return LEFT
            fraction = 0
        elif _is_digit(p[at]):
            digits += 1
            fraction += fraction >= 0
            if significant or p[at] != 48:
                significant += 1
                if significant > 38:
                    return LEFT
                n = n * 10 + <u128>(p[at] - 48)
        else:
            return LEFT
        at += 1
    if fraction < 0:
        fraction = 0
    if digits == 0 or fraction > scale or digits + is_negative > precision + 2:
        return LEFT
    if significant:
        while fraction < scale:
            n = n * 10
            fraction += 1
            significant += 1
            if significant > precision:
                return LEFT
        if significant > precision:
            return LEFT
    length = cdcd_put_unscaled(unscaled, n, is_negative and significant > 0)
    _put_sized(out, unscaled, length)
    return DONE


cdef int _numeric(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at = 1 if size > 0 and p[0] == 45 else 0
    cdef Py_ssize_t begin = at
    while at < size and _is_digit(p[at]):
        at += 1
    if at == begin:
        return LEFT
    if at < size:
        if p[at] != 46:
            return LEFT
        at += 1
        begin = at
        while at < size and _is_digit(p[at]):
            at += 1
        if at == begin or at < size:
            return LEFT
    _put_sized(out, p, size)
    return DONE


cdef int _numeric_text(const uint8_t* p, Py_ssize_t size, uint8_t* text, Py_ssize_t* length) noexcept:
    """numeric_send's bytes as numeric_out writes them; `text` has 128 bytes."""
    cdef int count, weight, sign, scale, position, digit, whole, at, shown
    cdef uint8_t digits[4]
    cdef Py_ssize_t end = 0
    if size < 8:
        return LEFT
    count, weight, sign, scale = cdcd_u16(p), <int16_t>cdcd_u16(p + 2), cdcd_u16(p + 4), cdcd_u16(p + 6)
    if size != 8 + 2 * count or count > 12 or weight > 11 or weight < -6 or scale > 40:
        return LEFT
    if sign == 0x4000:
        text[end] = 45
        end += 1
    elif sign != 0:
        return LEFT
    for position in range(count):
        if cdcd_u16(p + 8 + 2 * position) > 9999:
            return LEFT
    if weight < 0:
        text[end] = 48
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
                    text[end] = 48 + digits[at]
                    end += 1
                    shown = 1
    if scale:
        text[end] = 46
        end += 1
        for at in range(scale):
            position = weight + 1 + at // 4
            digit = cdcd_u16(p + 8 + 2 * position) if 0 <= position < count else 0
            whole = at % 4
            digit = digit // (1000 if whole == 0 else 100 if whole == 1 else 10 if whole == 2 else 1) % 10
            text[end] = <uint8_t>(48 + digit)
            end += 1
    length[0] = end
    return DONE


cdef int _sent_numeric(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    cdef uint8_t text[128]
    cdef Py_ssize_t length = 0
    if _numeric_text(p, size, text, &length) != DONE:
        return LEFT
    if op.op == NUMERIC_SENT:
        _put_sized(out, text, length)
        return DONE
    return _decimal(out, op.low, op.high, text, length)


cdef inline int _two(const uint8_t* p) noexcept:
    if not (_is_digit(p[0]) and _is_digit(p[1])):
        return -1
    return (p[0] - 48) * 10 + (p[1] - 48)


cdef int _day(const uint8_t* p, int64_t* days) noexcept:
    """YYYY-MM-DD of a year from 1 to 9999."""
    cdef int century = _two(p), rest = _two(p + 2), month = _two(p + 5), day = _two(p + 8), year
    if century < 0 or rest < 0 or month < 1 or month > 12 or day < 1 or p[4] != 45 or p[7] != 45:
        return LEFT
    year = century * 100 + rest
    if year == 0 or day > cdcd_month_days(year, month):
        return LEFT
    days[0] = cdcd_days(year, month, day)
    return DONE


cdef int _clock(const uint8_t* p, Py_ssize_t size, int64_t* us) noexcept:
    """HH:MM:SS with up to six more digits."""
    cdef int hour, minute, second
    cdef int64_t fraction = 0
    cdef Py_ssize_t at
    if size < 8 or p[2] != 58 or p[5] != 58:
        return LEFT
    hour, minute, second = _two(p), _two(p + 3), _two(p + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return LEFT
    if size > 8:
        if p[8] != 46 or size < 10 or size > 15:
            return LEFT
        for at in range(9, 15):
            if at >= size:
                fraction *= 10
            elif _is_digit(p[at]):
                fraction = fraction * 10 + (p[at] - 48)
            else:
                return LEFT
    us[0] = ((hour * 60 + minute) * 60 + second) * <int64_t>1_000_000 + fraction
    return DONE


cdef int _date(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int64_t days = 0
    if size != 10 or _day(p, &days) != DONE:
        return LEFT
    _put_long(out, days)
    return DONE


cdef int _sent_date(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int32_t days
    if size != 4:
        return LEFT
    days = <int32_t>cdcd_u32(p)
    if days == 0x7FFFFFFF or days == -0x7FFFFFFF - 1:
        return LEFT
    _put_long(out, <int64_t>days + POSTGRES_EPOCH_DAYS)
    return DONE


cdef int _time(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int64_t us = 0
    if _clock(p, size, &us) != DONE:
        return LEFT
    _put_long(out, us)
    return DONE


cdef int _timestamp(Buffer* out, const uint8_t* p, Py_ssize_t size, bint is_zoned) except -1:
    cdef int64_t days = 0, us = 0
    if is_zoned:
        if size < 22 or p[size - 3] != 43 or p[size - 2] != 48 or p[size - 1] != 48:
            return LEFT
        size -= 3
    if size < 19 or p[10] != 32 or _day(p, &days) != DONE or _clock(p + 11, size - 11, &us) != DONE:
        return LEFT
    _put_long(out, days * DAY_US + us)
    return DONE


cdef int _sent_us(Buffer* out, const uint8_t* p, Py_ssize_t size, bint is_time) except -1:
    cdef int64_t us
    if size != 8:
        return LEFT
    us = <int64_t>cdcd_u64(p)
    if is_time:
        if us < 0 or us >= DAY_US:
            return LEFT
        _put_long(out, us)
        return DONE
    if us == INT64_MIN or us > INT64_MAX - EPOCH_US:
        return LEFT
    _put_long(out, us + EPOCH_US)
    return DONE


cdef inline bint _is_dash(Py_ssize_t at) noexcept:
    return at == 8 or at == 13 or at == 18 or at == 23


cdef int _uuid(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef Py_ssize_t at
    if size != 36:
        return LEFT
    for at in range(36):
        if _is_dash(at):
            if p[at] != 45:
                return LEFT
        elif not (_is_digit(p[at]) or 97 <= p[at] <= 102):
            return LEFT
    _put_sized(out, p, 36)
    return DONE


cdef int _sent_uuid(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef uint8_t text[36]
    cdef const char* hexadecimal = b"0123456789abcdef"
    cdef Py_ssize_t at = 0, number
    if size != 16:
        return LEFT
    for number in range(16):
        if _is_dash(at):
            text[at] = 45
            at += 1
        text[at] = <uint8_t>hexadecimal[p[number] >> 4]
        text[at + 1] = <uint8_t>hexadecimal[p[number] & 15]
        at += 2
    _put_sized(out, text, 36)
    return DONE


cdef int _array(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    """array_out's text of one dimension with lower bound 1; anything else is the encoder's to judge."""
    cdef Operation element
    cdef uint8_t delimiter = <uint8_t>op.low
    cdef Py_ssize_t at = 1, end = size - 1, begin, count = 0, from_
    cdef bint is_quoted
    cdef int found
    if size < 2 or p[0] != 123 or p[end] != 125:
        return LEFT
    if size == 2:
        _put_byte(out, 0)
        return DONE
    # The first pass counts, for the count goes before the elements.
    while True:
        if at < end and p[at] == 34:
            at += 1
            while at < end and p[at] != 34:
                if p[at] == 0:
                    return LEFT
                if p[at] == 92:
                    at += 1
                    if at >= end or (p[at] != 34 and p[at] != 92):
                        return LEFT
                at += 1
            if at >= end:
                return LEFT
            at += 1
        else:
            begin = at
            while at < end and p[at] != delimiter:
                if p[at] == 34 or p[at] == 92 or p[at] == 123 or p[at] == 125:
                    return LEFT
                at += 1
            if at == begin:
                return LEFT
        count += 1
        if at == end:
            break
        if p[at] != delimiter:
            return LEFT
        at += 1
        if at == end:
            return LEFT
    memset(&element, 0, sizeof(element))
    element.op, element.low, element.high = op.element_op, op.element_low, op.element_high
    _put_long(out, count)
    at = 1
    while at < end:
        is_quoted = p[at] == 34
        if is_quoted:
            at += 1
            begin = at
            _scratch.size = 0
            while p[at] != 34:
                from_ = at
                while p[at] != 34 and p[at] != 92:
                    at += 1
                _put(&_scratch, p + from_, at - from_)
                if p[at] == 92:
                    _put_byte(&_scratch, p[at + 1])
                    at += 2
            at += 1
            _put_byte(out, SOME_BRANCH)
            _room(&_scratch, 1)
            found = _native(out, &element, _scratch.data, _scratch.size)
        else:
            begin = at
            while at < end and p[at] != delimiter:
                at += 1
            if at - begin == 4 and memcmp(p + begin, b"NULL", 4) == 0:
                _put_byte(out, NULL_BRANCH)
                at += 1
                continue
            _put_byte(out, SOME_BRANCH)
            found = _native(out, &element, p + begin, at - begin)
        if found != DONE:
            return LEFT
        at += 1
    _put_byte(out, 0)
    return DONE


cdef int _native(Buffer* out, const Operation* op, const uint8_t* p, Py_ssize_t size) except -1:
    """Write one value; LEFT where only its encoder knows, and then something may stand in `out` already."""
    if op.max_bytes and size > op.max_bytes:
        return LEFT
    if op.op == STRING:
        return _string(out, p, size)
    if op.op == INTEGER_TEXT:
        return _integer(out, op, p, size)
    if op.op == INTEGER_SENT or op.op == UNSIGNED_SENT:
        return _sent_integer(out, op, p, size)
    if op.op == TIMESTAMPTZ_TEXT or op.op == TIMESTAMP_TEXT:
        return _timestamp(out, p, size, op.op == TIMESTAMPTZ_TEXT)
    if op.op == TIMESTAMP_SENT or op.op == TIME_SENT:
        return _sent_us(out, p, size, op.op == TIME_SENT)
    if op.op == DECIMAL_TEXT:
        return _decimal(out, op.low, op.high, p, size)
    if op.op == NUMERIC_TEXT:
        return _numeric(out, p, size)
    if op.op == DECIMAL_SENT or op.op == NUMERIC_SENT:
        return _sent_numeric(out, op, p, size)
    if op.op == BOOLEAN_TEXT:
        if size != 1 or (p[0] != 116 and p[0] != 102):
            return LEFT
        _put_byte(out, p[0] == 116)
        return DONE
    if op.op == BOOLEAN_SENT:
        if size != 1 or p[0] > 1:
            return LEFT
        _put_byte(out, p[0])
        return DONE
    if op.op == JSONB_SENT:
        if size < 1 or p[0] != 1:
            return LEFT
        return _string(out, p + 1, size - 1)
    if op.op == BYTES:
        _put_sized(out, p, size)
        return DONE
    if op.op == BYTEA_TEXT:
        return _bytea(out, p, size)
    if op.op == DOUBLE_TEXT:
        return _double(out, p, size)
    if op.op == REAL_TEXT:
        return _real(out, p, size)
    if op.op == DOUBLE_SENT:
        return _sent_float(out, p, size, 8)
    if op.op == REAL_SENT:
        return _sent_float(out, p, size, 4)
    if op.op == DATE_TEXT:
        return _date(out, p, size)
    if op.op == DATE_SENT:
        return _sent_date(out, p, size)
    if op.op == TIME_TEXT:
        return _time(out, p, size)
    if op.op == UUID_TEXT:
        return _uuid(out, p, size)
    if op.op == UUID_SENT:
        return _sent_uuid(out, p, size)
    if op.op == ARRAY_TEXT:
        return _array(out, op, p, size)
    return LEFT


# --- plans ---------------------------------------------------------------------------------------------------

cdef struct Column:
    Operation text
    Operation sent
    bint is_required
    PyObject* text_encoder
    PyObject* sent_encoder
    Slice unchanged
    Slice field


cdef inline Slice _slice(bytes data):
    cdef Slice found
    found.at = <const uint8_t*>PyBytes_AS_STRING(data)
    found.size = PyBytes_GET_SIZE(data)
    return found


cdef int _fill_operation(Operation* into, object operation) except -1:
    into.op = operation.op
    into.low = operation.low
    into.high = operation.high
    into.max_bytes = operation.max_bytes
    into.element_op = CALL
    if operation.element is not None:
        if operation.element.op == Op.ARRAY_TEXT or operation.element.max_bytes:
            into.op = CALL
        else:
            into.element_op = operation.element.op
            into.element_low = operation.element.low
            into.element_high = operation.element.high
    return 0


cdef class CompiledPlan:
    """A `RelationPlan` as a flat table of column operations; made once for each plan."""

    cdef readonly object plan
    cdef int width
    cdef Column* columns
    cdef Value* new
    cdef Value* old
    cdef int keys
    cdef int* key_indexes
    cdef bint is_key_required
    cdef bint is_flat
    cdef bint tombstones
    cdef bint leaves_changes
    cdef bint leaves_whole
    cdef int partitions
    cdef object topic
    cdef object null_key_partition
    cdef list partition_numbers
    cdef Slice key_header
    cdef Slice value_header
    cdef Slice schema_and_table
    cdef object kept
    cdef int64_t inserts
    cdef int64_t updates
    cdef int64_t deletes
    cdef int64_t order

    def __cinit__(self, plan):
        self.width = len(plan.columns)
        self.columns = <Column*>PyMem_Malloc(sizeof(Column) * (self.width + 1))
        self.new = <Value*>PyMem_Malloc(sizeof(Value) * (self.width + 1))
        self.old = <Value*>PyMem_Malloc(sizeof(Value) * (self.width + 1))
        self.key_indexes = <int*>PyMem_Malloc(sizeof(int) * (len(plan.key_indexes) + 1))
        if self.columns == NULL or self.new == NULL or self.old == NULL or self.key_indexes == NULL:
            raise MemoryError
        memset(self.columns, 0, sizeof(Column) * (self.width + 1))

    def __init__(self, plan):
        cdef int at
        cdef Column* column
        cdef list kept = [plan.key_header, plan.value_header, plan.schema_and_table]
        self.plan = plan
        self.kept = kept
        self.keys = len(plan.key_indexes)
        for at in range(self.keys):
            self.key_indexes[at] = plan.key_indexes[at]
        self.is_key_required = plan.is_key_required
        self.is_flat = plan.is_flat
        self.tombstones = plan.tombstones
        # What partitions may have left out of an old tuple is the twin's to judge (F78).
        self.leaves_changes = plan.old_tuples is not None and bool(plan.old_tuples.short)
        self.leaves_whole = plan.old_tuples is not None
        self.partitions = plan.partitions
        self.partition_numbers = list(range(plan.partitions))
        self.topic = plan.topic
        self.null_key_partition = plan.null_key_partition
        self.key_header = _slice(plan.key_header)
        self.value_header = _slice(plan.value_header)
        self.schema_and_table = _slice(plan.schema_and_table)
        for at in range(self.width):
            column = &self.columns[at]
            described = plan.columns[at]
            codec = described.codec
            _fill_operation(&column.text, codec.text_op)
            _fill_operation(&column.sent, codec.sent_op)
            column.is_required = described.is_required
            field = _string_of(described.field.encode())
            kept += [codec.text, codec.binary, described.unchanged, field]
            column.text_encoder = <PyObject*>codec.text
            column.sent_encoder = <PyObject*>codec.binary
            column.unchanged = _slice(described.unchanged)
            column.field = _slice(field)

    def __dealloc__(self):
        PyMem_Free(self.columns)
        PyMem_Free(self.new)
        PyMem_Free(self.old)
        PyMem_Free(self.key_indexes)


cdef bytes _string_of(bytes text):
    cdef Buffer out
    memset(&out, 0, sizeof(out))
    try:
        _put_sized(&out, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        return PyBytes_FromStringAndSize(<char*>out.data, out.size)
    finally:
        PyMem_Free(out.data)


# --- rows ----------------------------------------------------------------------------------------------------

cdef struct Transaction:
    Slice before_ts_ms
    Slice ts_ms
    Slice after_ts_ms
    Slice commit_lsn_text
    Slice times
    Slice xid
    Slice after_lsn
    Slice commit
    Slice block_head
    Slice tail
    int64_t tx_seq
    bint is_snapshot

cdef enum:
    KIND_NULL = 110  # n
    KIND_TEXT = 116  # t
    KIND_UNCHANGED = 117  # u
    KIND_BINARY = 98  # b
    INSERT = 73
    UPDATE = 85
    DELETE = 68
    BEGIN = 66
    COMMIT = 67
    NEW = 78
    KEY = 75
    OLD = 79
    FRAME_BYTES = 12
    BEGIN_BYTES = 21
    COMMIT_BYTES = 26


cdef const uint8_t* _cut(
    Value* row, int width, const uint8_t* at, const uint8_t* end, bint* has_unchanged
) noexcept:
    """Cut TupleData into values; NULL where it is not exactly what the relation says."""
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


cdef int _column(Buffer* out, Column* column, Value* value, bint is_required) except -1:
    """Write one column with its branch; LEFT where the twin has to judge."""
    global _called_columns
    cdef Py_ssize_t begin = out.size
    cdef Operation* op
    cdef PyObject* encoder
    if value.kind == KIND_NULL:
        if is_required:
            return LEFT
        _put_byte(out, NULL_BRANCH)
        return DONE
    if not is_required:
        _put_byte(out, SOME_BRANCH)
    if value.kind == KIND_TEXT:
        op = &column.text
        encoder = column.text_encoder
    elif value.kind == KIND_BINARY:
        op = &column.sent
        encoder = column.sent_encoder
    else:
        return LEFT
    if op.op != CALL:
        if _native(out, op, value.at, value.size) == DONE:
            return DONE
        out.size = begin
        return LEFT
    if encoder == <PyObject*>None:
        return LEFT
    _called_columns += 1
    raw = PyBytes_FromStringAndSize(<const char*>value.at, value.size)
    try:
        encoded = (<object>encoder)(raw)
    except Exception:
        return LEFT
    if type(encoded) is not bytes:
        return LEFT
    _put(out, <const uint8_t*>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
    return DONE


cdef int _row(Buffer* out, CompiledPlan plan, Value* row, bint is_after) except -1:
    """Write a Value record."""
    cdef int at
    cdef Column* column
    for at in range(plan.width):
        column = &plan.columns[at]
        if row[at].kind == KIND_UNCHANGED:
            if not is_after or column.is_required:
                return LEFT
            _put_slice(out, column.unchanged)
        elif _column(out, column, &row[at], column.is_required) != DONE:
            return LEFT
    return DONE


cdef int _key_record(Buffer* out, CompiledPlan plan, Value* row) except -1:
    cdef int number, at
    out.size = 0
    _put_slice(out, plan.key_header)
    for number in range(plan.keys):
        at = plan.key_indexes[number]
        if _column(out, &plan.columns[at], &row[at], plan.is_key_required) != DONE:
            return LEFT
    return DONE


cdef int _said(Buffer* out, CompiledPlan plan, Value* row) except -1:
    """`special`, which is null here, and the names of what is unchanged in `row` (NULL: nothing)."""
    cdef int at, count = 0
    _put_byte(out, 0)
    if row != NULL:
        for at in range(plan.width):
            count += row[at].kind == KIND_UNCHANGED
    if count:
        _put_long(out, count)
        for at in range(plan.width):
            if row[at].kind == KIND_UNCHANGED:
                _put_slice(out, plan.columns[at].field)
    _put_byte(out, 0)
    return 0


cdef int _source(Buffer* out, CompiledPlan plan, Transaction* tx, uint64_t lsn) except -1:
    """The `source` block up to `special`."""
    cdef uint8_t text[24]
    cdef int size = cdcd_put_decimal(text, lsn)
    text[size] = 34
    text[size + 1] = 93
    size += 2
    _put_slice(out, tx.before_ts_ms)
    _put_slice(out, tx.ts_ms)
    _put_slice(out, tx.after_ts_ms)
    _put_long(out, tx.commit_lsn_text.size + size)
    _put_slice(out, tx.commit_lsn_text)
    _put(out, text, size)
    _put_slice(out, tx.times)
    _put_slice(out, plan.schema_and_table)
    _put_slice(out, tx.xid)
    _put_long(out, <int64_t>lsn)
    _put_slice(out, tx.after_lsn)
    _put_long(out, tx.tx_seq)
    return 0


cdef int _block(Buffer* out, CompiledPlan plan, Transaction* tx) except -1:
    if tx.block_head.size == 0:
        _put_byte(out, NULL_BRANCH)
        return 0
    plan.order += 1
    _put_slice(out, tx.block_head)
    _put_long(out, tx.tx_seq)
    _put_long(out, plan.order)
    return 0


cdef int _side(Buffer* out, CompiledPlan plan, Value* row, bint is_after) except -1:
    """One of before and after with its branch."""
    if row == NULL:
        _put_byte(out, NULL_BRANCH)
        return DONE
    _put_byte(out, SOME_BRANCH)
    return _row(out, plan, row, is_after)


cdef int _value_record(
    CompiledPlan plan, Transaction* tx, uint64_t lsn, uint8_t op, Value* before, Value* after
) except -1:
    """Write the value of the transaction's next change; nothing is counted where it is LEFT."""
    cdef Buffer* out = &_value
    cdef Value* row = before if after == NULL else after
    out.size = 0
    _put_slice(out, plan.value_header)
    if plan.is_flat:
        if _row(out, plan, row, after != NULL) != DONE:
            return LEFT
        tx.tx_seq += 1
        _put_long(out, 1)
        _put_byte(out, op)
        _put_byte(out, op == 100)
        _put_slice(out, tx.commit)
        _put_long(out, tx.tx_seq)
        _put_slice(out, tx.ts_ms)
        _said(out, plan, after)
        if tx.block_head.size:
            plan.order += 1
        return DONE
    if _side(out, plan, before, False) != DONE or _side(out, plan, after, True) != DONE:
        return LEFT
    tx.tx_seq += 1
    _source(out, plan, tx, lsn)
    _said(out, plan, after)
    _block(out, plan, tx)
    _put_long(out, 1)
    _put_byte(out, op)
    _put_slice(out, tx.tail)
    return DONE


cdef object _partition(CompiledPlan plan, bytes key):
    if plan.partitions == 1:
        return plan.partition_numbers[0]
    cdef uint32_t found = cdcd_murmur2(<const uint8_t*>PyBytes_AS_STRING(key), <uint32_t>PyBytes_GET_SIZE(key))
    return plan.partition_numbers[(found & 0x7FFFFFFF) % <uint32_t>plan.partitions]


cdef PyTypeObject* _record_type = <PyTypeObject*>Record


cdef int _append(list records, CompiledPlan plan, bytes key, object value) except -1:
    partition = plan.null_key_partition if key is None else _partition(plan, key)
    PyList_Append(records, cdcd_record(_record_type, plan.topic, partition, key, value))
    return 0


cdef inline bytes _taken(Buffer* out):
    return PyBytes_FromStringAndSize(<const char*>out.data, out.size)


cdef int _delete(list records, CompiledPlan plan, Transaction* tx, uint64_t lsn, Value* old) except -1:
    cdef bytes key = None
    if plan.keys:
        if _key_record(&_key, plan, old) != DONE:
            return LEFT
        key = _taken(&_key)
    if _value_record(plan, tx, lsn, 100, old, NULL) != DONE:
        return LEFT
    _append(records, plan, key, _taken(&_value))
    if key is not None and plan.tombstones:
        _append(records, plan, key, None)
    return DONE


cdef bint _is_another_key(CompiledPlan plan) noexcept:
    cdef int number, at
    cdef Value* old
    cdef Value* new
    for number in range(plan.keys):
        at = plan.key_indexes[number]
        old, new = &plan.old[at], &plan.new[at]
        if (old.kind == KIND_NULL) != (new.kind == KIND_NULL) or old.size != new.size:
            return True
        if old.size and memcmp(old.at, new.at, old.size) != 0:
            return True
    return False


cdef int _change(
    list records, CompiledPlan plan, Transaction* tx, uint64_t lsn, uint8_t kind, const uint8_t* at,
    const uint8_t* end,
) except -1:
    """Append one message's records, `at` being behind its relid; LEFT, with nothing done, where the twin has to."""
    cdef bint has_old = False, is_whole = False, has_unchanged = False, ignored = False
    cdef bint is_other_key
    cdef int number
    cdef int64_t before_seq = tx.tx_seq, before_order = plan.order
    cdef Py_ssize_t before_records = len(records)
    cdef bytes key = None
    if kind != INSERT and at < end and (at[0] == KEY or at[0] == OLD):
        has_old, is_whole = True, at[0] == OLD or plan.keys == 0
        at = _cut(plan.old, plan.width, at + 1, end, &ignored)
        if at == NULL:
            return LEFT
    if kind != INSERT and (plan.leaves_changes or (plan.leaves_whole and is_whole)):
        return LEFT
    if kind == DELETE:
        if not has_old or at != end:
            return LEFT
        return _delete(records, plan, tx, lsn, plan.old)
    if at >= end or at[0] != NEW or (kind != INSERT and kind != UPDATE):
        return LEFT
    at = _cut(plan.new, plan.width, at + 1, end, &has_unchanged)
    if at != end:
        return LEFT
    if has_old and has_unchanged:
        # F46, F78: what was not sent is stored out of line, so it is not NULL: a null here was not in the WAL.
        for number in range(plan.width):
            if plan.new[number].kind == KIND_UNCHANGED and plan.old[number].kind != KIND_NULL:
                plan.new[number] = plan.old[number]
    if plan.keys:
        if _key_record(&_key, plan, plan.new) != DONE:
            return LEFT
        key = _taken(&_key)
    if kind == INSERT:
        if _value_record(plan, tx, lsn, 114 if tx.is_snapshot else 99, NULL, plan.new) != DONE:
            return LEFT
        return _append(records, plan, key, _taken(&_value))
    is_other_key = has_old and plan.keys and _is_another_key(plan)
    if is_other_key:
        # F47: the old key's end and the new key's beginning, in this order, each with its number.
        if (
            _delete(records, plan, tx, lsn, plan.old) == DONE
            and _value_record(plan, tx, lsn, 99, NULL, plan.new) == DONE
        ):
            return _append(records, plan, key, _taken(&_value))
        del records[before_records:]
        tx.tx_seq, plan.order = before_seq, before_order
        return LEFT
    if _value_record(plan, tx, lsn, 117, plan.old if has_old and not plan.is_flat else NULL, plan.new) != DONE:
        return LEFT
    return _append(records, plan, key, _taken(&_value))


cdef int _hold(Transaction* into, tuple pieces, bint is_snapshot) except -1:
    """Point at the pieces of a transaction's constants, which the caller keeps."""
    into.before_ts_ms = _slice(pieces[0])
    into.ts_ms = _slice(pieces[1])
    into.after_ts_ms = _slice(pieces[2])
    into.commit_lsn_text = _slice(pieces[3])
    into.times = _slice(pieces[4])
    into.xid = _slice(pieces[5])
    into.after_lsn = _slice(pieces[6])
    into.commit = _slice(pieces[7])
    into.block_head = _slice(pieces[8])
    into.tail = _slice(pieces[9])
    into.is_snapshot = is_snapshot
    return 0


cdef CompiledPlan _compiled(object plan):
    found = plan.compiled
    return found if type(found) is CompiledPlan else CompiledPlan(plan)


cdef inline CompiledPlan _plan_of(dict used, object plans, uint32_t relid, object counts):
    """The compiled plan of a relid for this call, None where there is none or the twin has to do it.

    `used` has what it returned, by relid and, where tables are counted, by the table's name too.
    """
    cdef CompiledPlan compiled
    found = used.get(relid)
    if found is not None:
        return <CompiledPlan>found
    plan = plans.get(relid)
    if plan is None:
        return None
    compiled = _compiled(plan)
    compiled.inserts = compiled.updates = compiled.deletes = 0
    compiled.order = 0
    if counts is not None:
        if plan.table in used:
            return None  # two relations of one name are counted together: the twin's to do
        used[plan.table] = compiled
        compiled.order = counts.get(plan.table, 0)
    used[relid] = compiled
    return compiled


cdef int _tell_counts(dict used, object counts) except -1:
    cdef CompiledPlan compiled
    if counts is not None:
        for found in used.values():
            compiled = <CompiledPlan>found
            if compiled.order:
                counts[compiled.plan.table] = compiled.order
    return 0


def encode_run(run, plans, tx, whole_twin, row_twin):
    """Return the records of a run and raise `tx.tx_seq`, as `whole_twin` does.

    `whole_twin(run, plans, tx)` is asked where anything is wrong, `row_twin(plan, tx, records, lsn, data, kind, at,
    end)` for a row that only it can encode. Raises what they raise.
    """
    cdef int64_t first_seq = tx.tx_seq
    counts = tx.counts
    first_counts = None if counts is None else dict(counts)
    try:
        records = _encode_run(run, plans, tx, row_twin)
        if records is not None:
            return records
    except Exception as error:
        _refuse_memory(error)
    finally:
        _shrink(&_value)
        _shrink(&_key)
        _shrink(&_scratch)
    tx.tx_seq = first_seq
    if counts is not None:
        counts.clear()
        counts.update(first_counts)
    return whole_twin(run, plans, tx)


cdef int _refuse_memory(object error) except -1:
    if isinstance(error, MemoryError):
        raise error
    return 0


cdef list _encode_run(object run, object plans, object tx, object row_twin):
    global _twin_rows
    cdef bytes data = run.frames
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = begin + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at = begin
    cdef const uint8_t* start
    cdef object xid = run.xid
    cdef bint has_xid = xid is not None
    cdef uint32_t wanted_xid = <uint32_t>xid if has_xid else 0
    cdef Py_ssize_t header = 5 if has_xid else 1
    cdef uint32_t length, relid, last_relid = 0
    cdef uint64_t lsn
    cdef Py_ssize_t count = 0
    cdef tuple pieces = tx.pieces()
    cdef object counts = tx.counts
    cdef Transaction constants
    cdef CompiledPlan plan = None
    cdef dict used = {}
    cdef list records = []
    memset(&constants, 0, sizeof(constants))
    _hold(&constants, pieces, tx.info.snapshot)
    constants.tx_seq = tx.tx_seq
    while at < end:
        if end - at < FRAME_BYTES:
            return None
        length, lsn = cdcd_u32(at), cdcd_u64(at + 4)
        start = at + FRAME_BYTES
        if length > <uint64_t>(end - start) or length < header + 5 or lsn > <uint64_t>INT64_MAX:
            return None
        at = start + length
        if has_xid and cdcd_u32(start + 1) != wanted_xid:
            return None
        relid = cdcd_u32(start + header)
        if plan is None or relid != last_relid:
            plan = _plan_of(used, plans, relid, counts)
            if plan is None:
                return None
            last_relid = relid
        if _change(records, plan, &constants, lsn, start[0], start + header + 4, at) != DONE:
            _twin_rows += 1
            tx.tx_seq = constants.tx_seq
            _tell_counts(used, counts)
            row_twin(plan.plan, tx, records, lsn, data, start[0], start + header + 4 - begin, at - begin)
            constants.tx_seq = tx.tx_seq
            if counts is not None:
                plan.order = counts.get(plan.plan.table, 0)
        count += 1
    if count != run.count:
        return None
    tx.tx_seq = constants.tx_seq
    _tell_counts(used, counts)
    return records


# --- whole transactions --------------------------------------------------------------------------------------

cdef struct Pieces:
    uint8_t ts_ms[10]
    uint8_t commit_lsn_text[40]
    uint8_t times[24]
    uint8_t xid[12]
    uint8_t after_lsn[32]
    uint8_t commit[24]


cdef inline Slice _piece(uint8_t* at, Py_ssize_t size) noexcept:
    cdef Slice found
    found.at = at
    found.size = size
    return found


cdef bint _begin(
    Transaction* tx, Pieces* pieces, const uint8_t* timeline, Py_ssize_t timeline_bytes, uint64_t commit_lsn,
    int64_t commit_us, uint32_t xid,
) noexcept:
    """Set what differs between transactions; False where a time does not fit a long, or is before 1970."""
    cdef Py_ssize_t size
    if commit_us < 0 or commit_us > INT64_MAX // 1000 or commit_lsn > <uint64_t>INT64_MAX or timeline_bytes > 10:
        return False
    tx.ts_ms = _piece(pieces.ts_ms, cdcd_put_long(pieces.ts_ms, commit_us // 1000))
    memcpy(pieces.commit_lsn_text, b'["', 2)
    size = 2 + cdcd_put_decimal(pieces.commit_lsn_text + 2, commit_lsn)
    memcpy(pieces.commit_lsn_text + size, b'","', 3)
    tx.commit_lsn_text = _piece(pieces.commit_lsn_text, size + 3)
    pieces.times[0] = SOME_BRANCH
    size = 1 + cdcd_put_long(pieces.times + 1, commit_us)
    pieces.times[size] = SOME_BRANCH
    size += 1
    size += cdcd_put_long(pieces.times + size, commit_us * 1000)
    tx.times = _piece(pieces.times, size)
    size = 0
    if xid:
        pieces.xid[0] = SOME_BRANCH
        size = 1 + cdcd_put_long(pieces.xid + 1, xid)
    else:
        pieces.xid[0] = NULL_BRANCH
        size = 1
    pieces.xid[size] = SOME_BRANCH
    tx.xid = _piece(pieces.xid, size + 1)
    memcpy(pieces.commit, timeline, timeline_bytes)
    size = timeline_bytes + cdcd_put_long(pieces.commit + timeline_bytes, <int64_t>commit_lsn)
    tx.commit = _piece(pieces.commit, size)
    pieces.after_lsn[0] = pieces.after_lsn[1] = pieces.after_lsn[2] = NULL_BRANCH
    memcpy(pieces.after_lsn + 3, pieces.commit, size)
    tx.after_lsn = _piece(pieces.after_lsn, size + 3)
    tx.tx_seq = 0
    return True


def encode_transactions(transactions, plans, new_context, first, uint64_t written_commit_lsn, row_twin):
    """Return the records of whole transactions and what is to be known of them; or what stands in the way.

    `first` is the context of one of them, for what is the same for all; `new_context(xid, commit_lsn, commit_pg_us)`
    makes that of one with a row that only `row_twin` can encode. Those that commit up to `written_commit_lsn`
    are dropped (F4). An int: the relid of a row without a plan. None: it has to be done one by one, with the twin.
    Else (records, operations by (relid, type byte), commit time of the first that was not dropped, Unix epoch, commit
    time of the last, its commit LSN, its end LSN, how many have rows, how many have none, how many were dropped).
    """
    try:
        return _encode_transactions(transactions, plans, new_context, first, written_commit_lsn, row_twin)
    except Exception as error:
        _refuse_memory(error)
        return None
    finally:
        _shrink(&_value)
        _shrink(&_key)
        _shrink(&_scratch)


cdef object _encode_transactions(
    object transactions, object plans, object new_context, object first, uint64_t written_commit_lsn,
    object row_twin,
):
    global _twin_rows
    cdef bytes data = transactions.frames
    cdef const uint8_t* origin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = origin + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at = origin
    cdef const uint8_t* start
    cdef uint8_t kind
    cdef uint32_t length, relid, xid = 0, last_relid = 0
    cdef uint64_t lsn, commit_lsn = 0, last_commit_lsn = 0, end_lsn = 0
    cdef int64_t commit_us = 0, first_us = 0, last_us = 0
    cdef Py_ssize_t with_rows = 0, empty = 0, dropped = 0, rows = 0
    cdef bint is_open = False, is_dropped = False
    cdef tuple constants = first.pieces()
    cdef Slice timeline = _slice(first.timeline_bytes)
    cdef Transaction tx
    cdef Pieces pieces
    cdef CompiledPlan plan = None
    cdef dict used = {}
    cdef list records = []
    memset(&tx, 0, sizeof(tx))
    _hold(&tx, constants, False)
    while at < end:
        if end - at < FRAME_BYTES + 1:
            return None
        length, lsn = cdcd_u32(at), cdcd_u64(at + 4)
        start = at + FRAME_BYTES
        if length > <uint64_t>(end - start) or length < 1 or lsn > <uint64_t>INT64_MAX:
            return None
        at = start + length
        kind = start[0]
        if kind == BEGIN:
            if is_open or length != BEGIN_BYTES:
                return None
            is_open, rows = True, 0
            commit_lsn = cdcd_u64(start + 1)
            commit_us = <int64_t>cdcd_u64(start + 9)
            if commit_us > INT64_MAX - EPOCH_US:
                return None
            commit_us += EPOCH_US
            xid = cdcd_u32(start + 17)
            is_dropped = commit_lsn <= written_commit_lsn
            if not _begin(&tx, &pieces, timeline.at, timeline.size, commit_lsn, commit_us, xid):
                return None
        elif kind == COMMIT:
            if not is_open or length != COMMIT_BYTES or start[1] != 0 or cdcd_u64(start + 2) != commit_lsn:
                return None
            is_open = False
            if is_dropped:
                dropped += 1
                continue
            if with_rows + empty == 0:
                first_us = commit_us
            with_rows += rows > 0
            empty += rows == 0
            last_us, last_commit_lsn, end_lsn = commit_us, commit_lsn, cdcd_u64(start + 10)
            written_commit_lsn = commit_lsn
        elif not is_open or length < 10:
            return None
        elif is_dropped:
            if kind != INSERT and kind != UPDATE and kind != DELETE:
                return None
        else:
            relid = cdcd_u32(start + 1)
            if plan is None or relid != last_relid:
                plan = _plan_of(used, plans, relid, None)
                if plan is None:
                    return relid
                last_relid = relid
            if _change(records, plan, &tx, lsn, kind, start + 5, at) != DONE:
                _twin_rows += 1
                context = new_context(xid, commit_lsn, commit_us - EPOCH_US)
                context.tx_seq = tx.tx_seq
                row_twin(plan.plan, context, records, lsn, data, kind, start + 5 - origin, at - origin)
                tx.tx_seq = context.tx_seq
            rows += 1
            plan.inserts += kind == INSERT
            plan.updates += kind == UPDATE
            plan.deletes += kind == DELETE
    if is_open:
        return None
    return (
        records, _operations(used), first_us, last_us, last_commit_lsn, end_lsn, with_rows, empty, dropped,
    )


cdef dict _operations(dict used):
    cdef CompiledPlan compiled
    cdef dict found = {}
    for relid, one in used.items():
        compiled = <CompiledPlan>one
        if compiled.inserts:
            found[relid, INSERT] = compiled.inserts
        if compiled.updates:
            found[relid, UPDATE] = compiled.updates
        if compiled.deletes:
            found[relid, DELETE] = compiled.deletes
    return found


# --- the hand-over -------------------------------------------------------------------------------------------


cdef int _mark_last(list records, Py_ssize_t start, uint8_t* is_last) except -1:
    """Mark the last record of each partition from `start` on; one of them more does no harm.

    Topics and partitions are told apart by their objects: those of one plan are the same ones.
    """
    cdef Py_ssize_t count = len(records) - start, slots = 16, at, slot
    cdef PyObject* topic
    cdef PyObject* partition
    cdef PyObject** seen
    while slots < 2 * count:
        slots *= 2
    seen = <PyObject**>PyMem_Calloc(2 * slots, sizeof(PyObject*))
    if seen == NULL:
        raise MemoryError
    at = count
    while at > 0:
        at -= 1
        record = <tuple>records[start + at]
        topic, partition = PyTuple_GET_ITEM(record, 0), PyTuple_GET_ITEM(record, 1)
        slot = <Py_ssize_t>((<size_t>topic >> 4) * 31 + (<size_t>partition >> 4)) & (slots - 1)
        while seen[2 * slot] != NULL and (seen[2 * slot] != topic or seen[2 * slot + 1] != partition):
            slot = (slot + 1) & (slots - 1)
        is_last[at] = seen[2 * slot] == NULL
        seen[2 * slot], seen[2 * slot + 1] = topic, partition
    PyMem_Free(seen)
    return 0


def hand_over(produce, reported, list records, Py_ssize_t start):
    """Do what `cdcd.sink.hand_over` says of it."""
    cdef Py_ssize_t at = start, count = len(records)
    cdef uint8_t* is_last = <uint8_t*>PyMem_Malloc(max(count - start, 1))
    if is_last == NULL:
        raise MemoryError
    try:
        _mark_last(records, start, is_last)
        while at < count:
            topic, partition, key, value = <tuple>records[at]
            if is_last[at - start]:
                produce(topic, value, key, partition, reported)
            else:
                produce(topic, value, key, partition)
            at += 1
    except Exception as failure:
        return at, failure
    finally:
        PyMem_Free(is_last)
    return at, None


cdef enum:
    MOST_PARTITIONS = 64  # as `cdcd.sink.hand_over` says


def by_partition(list records):
    """Do what `cdcd.sink.hand_over` says of it."""
    cdef Py_ssize_t count = len(records), at
    cdef Py_ssize_t ends[MOST_PARTITIONS]
    cdef PyObject* topics[MOST_PARTITIONS]
    cdef int64_t numbers[MOST_PARTITIONS]
    cdef PyObject* topic
    cdef int64_t number
    cdef int found = 0, group = 0
    cdef list ordered
    cdef uint8_t* group_of = <uint8_t*>PyMem_Malloc(max(count, 1))
    if group_of == NULL:
        raise MemoryError
    try:
        for at in range(count):
            record = <tuple>records[at]
            topic, number = PyTuple_GET_ITEM(record, 0), <object>PyTuple_GET_ITEM(record, 1)
            group = _group_of(topic, number, topics, numbers, found, group)
            if group == found:
                if found == MOST_PARTITIONS:
                    return records
                topics[found], numbers[found], ends[found] = topic, number, 0
                found += 1
            ends[group] += 1
            group_of[at] = <uint8_t>group
        if found <= 1:
            return records
        for group in range(1, found):
            ends[group] += ends[group - 1]
        ordered = [None] * count
        for at in range(count - 1, -1, -1):
            group = group_of[at]
            ends[group] -= 1
            ordered[ends[group]] = records[at]
        return ordered
    finally:
        PyMem_Free(group_of)


cdef int _group_of(
    PyObject* topic, int64_t number, PyObject** topics, int64_t* numbers, int found, int last
) except -1:
    """Return which of those found it is, `found` where it is none; one topic may be several objects."""
    cdef int group
    if found and topics[last] == topic and numbers[last] == number:
        return last
    for group in range(found):
        if topics[group] == topic and numbers[group] == number:
            return group
    for group in range(found):
        if numbers[group] == number and <object>topics[group] == <object>topic:
            topics[group] = topic  # the next one is likely to be of this object too
            return group
    return found


def count_operations(run):
    """Return how many rows of each (relid, type byte) a run has, None where it is not well formed."""
    cdef bytes data = run.frames
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(data)
    cdef Py_ssize_t header = 1 if run.xid is None else 5
    cdef uint32_t length, relid = 0, last_relid = 0
    cdef uint8_t kind, last_kind = 0
    cdef int64_t count = 0
    cdef dict found = {}
    while at < end:
        if end - at < FRAME_BYTES:
            return None
        length = cdcd_u32(at)
        if length > <uint64_t>(end - at - FRAME_BYTES) or length < header + 4:
            return None
        kind, relid = at[FRAME_BYTES], cdcd_u32(at + FRAME_BYTES + header)
        if count and (relid != last_relid or kind != last_kind):
            found[last_relid, last_kind] = found.get((last_relid, last_kind), 0) + count
            count = 0
        last_relid, last_kind = relid, kind
        count += 1
        at += FRAME_BYTES + length
    if count:
        found[last_relid, last_kind] = found.get((last_relid, last_kind), 0) + count
    return found
