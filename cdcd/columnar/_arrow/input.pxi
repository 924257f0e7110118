"""The bytes of one record, read in order. A function returns a fault (`cdcd.columnar.faults`), 0 if there is none."""

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

cdef enum:
    OK = 0
    HEADER = 1
    TRUNCATED = 2
    NUMBER = 3
    LENGTH = 4
    BRANCH = 5
    BOOLEAN = 6
    TEXT = 7
    DECIMAL_DIGITS = 8
    COUNT = 9
    TRAILING = 10
    TOO_LARGE = 11
    NO_MEMORY = 12
    UNKNOWN_SCHEMA = 13

cdef enum:
    HEADER_BYTES = 5

# The functions that each value calls are C, so that they are inlined: a call costs more than most values.
cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define CDCD_INLINE static inline __attribute__((always_inline))
    #define CDCD_LIKELY(x) __builtin_expect(!!(x), 1)
    enum { CDCD_OK = 0, CDCD_TRUNCATED = 2, CDCD_NUMBER = 3, CDCD_LENGTH = 4, CDCD_BRANCH = 5 };

    typedef struct { const uint8_t *at, *end; } cdcd_input;

    /* A varint of 64 bits byte by byte, of which the first bytes may be missing or the last ones too many. */
    static __attribute__((noinline)) int cdcd_varint_by_bytes(cdcd_input *data, uint64_t *number) {
        const uint8_t *at = data->at;
        uint64_t found = 0;
        for (int shift = 0; shift < 70; shift += 7, at++) {
            if (at >= data->end) return CDCD_TRUNCATED;
            found |= (uint64_t)(*at & 0x7F) << shift;
            if (*at < 0x80) {
                if (shift == 63 && *at > 1) return CDCD_NUMBER;
                data->at = at + 1;
                *number = found;
                return CDCD_OK;
            }
        }
        return CDCD_NUMBER;
    }

    CDCD_INLINE int cdcd_varint(cdcd_input *data, uint64_t *number) {
        const uint8_t *at = data->at;
        uint64_t x, stop;
        if (CDCD_LIKELY(data->end - at >= 8)) {
            if (*at < 0x80) {  /* most numbers have one byte */
                data->at = at + 1;
                *number = *at;
                return CDCD_OK;
            }
            memcpy(&x, at, 8);
            stop = ~x & 0x8080808080808080ULL;
            if (CDCD_LIKELY(stop != 0)) {  /* up to 8 bytes: 7 bits of each are joined in pairs */
                data->at = at + (__builtin_ctzll(stop) >> 3) + 1;
                x &= stop ^ (stop - 1);
                x = ((x & 0x7f007f007f007f00ULL) >> 1) | (x & 0x007f007f007f007fULL);
                x = ((x & 0x3fff00003fff0000ULL) >> 2) | (x & 0x00003fff00003fffULL);
                *number = ((x & 0x0fffffff00000000ULL) >> 4) | (x & 0x000000000fffffffULL);
                return CDCD_OK;
            }
            if (data->end - at >= 9 && at[8] < 0x80) {  /* nanoseconds since 1970 */
                data->at = at + 9;
                x = ((x & 0x7f007f007f007f00ULL) >> 1) | (x & 0x007f007f007f007fULL);
                x = ((x & 0x3fff00003fff0000ULL) >> 2) | (x & 0x00003fff00003fffULL);
                x = ((x & 0x0fffffff00000000ULL) >> 4) | (x & 0x000000000fffffffULL);
                *number = x | (uint64_t)at[8] << 56;
                return CDCD_OK;
            }
        }
        return cdcd_varint_by_bytes(data, number);
    }

    CDCD_INLINE int cdcd_long(cdcd_input *data, int64_t *value) {
        uint64_t number;
        int fault = cdcd_varint(data, &number);
        if (CDCD_LIKELY(!fault)) *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
        return fault;
    }

    CDCD_INLINE int cdcd_bytes(cdcd_input *data, const uint8_t **value, int64_t *size) {
        int fault = cdcd_long(data, size);
        if (fault) return fault;
        if (*size < 0 || *size > data->end - data->at) return CDCD_LENGTH;
        *value = data->at;
        data->at += *size;
        return CDCD_OK;
    }

    /* The branch of a union of two types, 0 or 1. */
    CDCD_INLINE int cdcd_branch(cdcd_input *data, int *branch) {
        int64_t number;
        int fault;
        if (CDCD_LIKELY(data->at < data->end && (*data->at & 0xFD) == 0)) {
            *branch = *data->at >> 1;
            data->at++;
            return CDCD_OK;
        }
        fault = cdcd_long(data, &number);
        if (fault) return fault;
        if (number != 0 && number != 1) return CDCD_BRANCH;
        *branch = (int)number;
        return CDCD_OK;
    }

    CDCD_INLINE int cdcd_is_ascii(const uint8_t *at, int64_t size) {
        uint64_t eight, found = 0;
        uint32_t first, last;
        if (size >= 8) {
            const uint8_t *end = at + size - 8;  /* the last 8 bytes overlap those before them */
            for (; at < end; at += 8) {
                memcpy(&eight, at, 8);
                found |= eight;
            }
            memcpy(&eight, end, 8);
            found |= eight;
        } else if (size >= 4) {
            memcpy(&first, at, 4);
            memcpy(&last, at + size - 4, 4);
            found = first | last;
        } else {
            for (; size > 0; size--) found |= at[size - 1];
        }
        return !(found & 0x8080808080808080ULL);
    }

    enum { CDCD_SKIP_BYTES, CDCD_SKIP_NUMBER, CDCD_SKIP_1, CDCD_SKIP_4, CDCD_SKIP_8, CDCD_NO_STEP,
           CDCD_NULL_FIRST = 8, CDCD_NULL_LAST = 16 };

    enum { CDCD_LAYOUT_WORDS = 24, CDCD_LAYOUT_BYTES = 8 * CDCD_LAYOUT_WORDS, CDCD_MOST_WAIT = 255 };

    /* Where the values of a run were in an earlier record: its bytes, and the bits of them that decide on the places:
       lengths, branches, and which bytes of a number are followed by one. A run that has the same bits has its values
       at the same places, so all of them are skipped at once. `words` 0: none is known. */
    typedef struct {
        uint64_t bytes[CDCD_LAYOUT_WORDS], mask[CDCD_LAYOUT_WORDS];
        int32_t words, size, wait, left;
    } cdcd_layout;

    CDCD_INLINE int cdcd_has_layout(const cdcd_layout *layout, const cdcd_input *data) {
        uint64_t word;
        if (!layout->words || data->end - data->at < 8 * (int64_t)layout->words) return 0;
        for (int at = 0; at < layout->words; at++) {
            memcpy(&word, data->at + 8 * at, 8);
            if ((word ^ layout->bytes[at]) & layout->mask[at]) return 0;
        }
        return 1;
    }

    /* The end of a value without parts. */
    CDCD_INLINE int cdcd_skip_step(cdcd_input *data, uint8_t step) {
        const uint8_t *value;
        int64_t size;
        uint64_t number;
        int fault, branch, way = step & 7;
        if (way != step) {
            if ((fault = cdcd_branch(data, &branch))) return fault;
            if (branch == step >> 4) return CDCD_OK;
        }
        switch (way) {
        case CDCD_SKIP_BYTES: return cdcd_bytes(data, &value, &size);
        case CDCD_SKIP_NUMBER: return cdcd_varint(data, &number);
        default:
            size = way == CDCD_SKIP_1 ? 1 : way == CDCD_SKIP_4 ? 4 : 8;
            if (size > data->end - data->at) return CDCD_TRUNCATED;
            data->at += size;
            return CDCD_OK;
        }
    }

    /* Skip the values of a run, and learn its layout. */
    static __attribute__((noinline)) int cdcd_learn_run(
        cdcd_input *data, const uint8_t *step, int64_t steps, cdcd_layout *layout
    ) {
        uint8_t mask[CDCD_LAYOUT_BYTES];
        const uint8_t *begin = data->at, *last = step + steps, *part;
        int64_t size = 0;
        uint64_t number;
        int fault, branch = 0, way, is_usable = 1;
        cdcd_input value;
        layout->words = 0;
        memset(mask, 0, sizeof(mask));
        for (; step < last; step++) {
            value = *data;
            if ((fault = cdcd_skip_step(data, *step))) return fault;
            size = data->at - begin;
            is_usable = is_usable && size <= CDCD_LAYOUT_BYTES;
            if (!is_usable) continue;
            way = *step & 7;
            part = value.at;
            if (way != *step) {
                cdcd_branch(&value, &branch);
                memset(mask + (part - begin), 0xFF, value.at - part);
                if (branch == *step >> 4) continue;
                part = value.at;
            }
            if (way == CDCD_SKIP_BYTES) {
                cdcd_varint(&value, &number);
                memset(mask + (part - begin), 0xFF, value.at - part);
            } else if (way == CDCD_SKIP_NUMBER) {
                memset(mask + (part - begin), 0x80, data->at - part);
                is_usable = data->at - part < 10;  /* in the tenth byte other bits decide, too */
            }
        }
        if (is_usable) {
            layout->size = (int32_t)size;
            layout->words = (int32_t)((size + 7) / 8);
            memset(layout->bytes, 0, sizeof(layout->bytes));
            memcpy(layout->bytes, begin, size);
            memcpy(layout->mask, mask, sizeof(mask));
        } else {
            layout->left = layout->wait = CDCD_MOST_WAIT;
        }
        return CDCD_OK;
    }

    /* Skip values without parts: a step for each. `layout` NULL: they are too few to look for a known one. */
    static int cdcd_skip_run(cdcd_input *outside, const uint8_t *step, int64_t steps, cdcd_layout *layout) {
        cdcd_input data = *outside;
        const uint8_t *last = step + steps;
        int fault;
        if (layout) {
            if (cdcd_has_layout(layout, &data)) {
                layout->wait = 0;
                outside->at += layout->size;
                return CDCD_OK;
            }
            if (layout->words) {  /* the less often a layout comes again, the longer none is learnt */
                layout->words = 0;
                layout->wait = layout->wait >= CDCD_MOST_WAIT ? CDCD_MOST_WAIT : 2 * layout->wait + 1;
                layout->left = layout->wait;
            }
            if (layout->left <= 0) return cdcd_learn_run(outside, step, steps, layout);
            layout->left--;
        }
        for (; step < last; step++)
            if ((fault = cdcd_skip_step(&data, *step))) return fault;
        outside->at = data.at;
        return CDCD_OK;
    }
    """
    ctypedef struct Input "cdcd_input":
        const uint8_t* at
        const uint8_t* end
    ctypedef struct Layout "cdcd_layout":
        pass
    int _long "cdcd_long"(Input*, int64_t*) noexcept nogil
    int _bytes "cdcd_bytes"(Input*, const uint8_t**, int64_t*) noexcept nogil
    int _branch "cdcd_branch"(Input*, int*) noexcept nogil
    bint _is_ascii "cdcd_is_ascii"(const uint8_t*, int64_t) noexcept nogil
    int _skip_run "cdcd_skip_run"(Input*, const uint8_t*, int64_t, Layout*) noexcept nogil


cdef inline int _skip_bytes(Input* data, int64_t size) noexcept nogil:
    if size > data.end - data.at:
        return TRUNCATED
    data.at += size
    return OK


cdef inline int _block(Input* data, int64_t* items) noexcept nogil:
    """Read the beginning of a block of items; none after the last one."""
    cdef int64_t size
    cdef int fault = _long(data, items)
    if fault:
        return fault
    if items[0] < 0:
        if items[0] == INT64_MIN:
            return _fault_of_size(data)
        items[0] = -items[0]
        fault = _long(data, &size)
        if fault:
            return fault
    return COUNT if items[0] > data.end - data.at else OK


cdef int _fault_of_size(Input* data) noexcept nogil:
    """Return the fault of a block with too many items, whose size is read first."""
    cdef int64_t size
    cdef int fault = _long(data, &size)
    return fault if fault else COUNT


cdef inline bint _is_utf8(const uint8_t* at, int64_t size) noexcept nogil:
    """Return whether the bytes are UTF-8 as RFC 3629 defines it: no surrogates, no overlong forms."""
    return _is_ascii(at, size) or _is_utf8_by_bytes(at, size)


cdef bint _is_utf8_by_bytes(const uint8_t* at, int64_t size) noexcept nogil:
    cdef const uint8_t* end = at + size
    cdef uint64_t eight
    cdef uint8_t first
    while at < end:
        while end - at >= 8:
            memcpy(&eight, at, 8)
            if eight & 0x8080808080808080ULL:
                break
            at += 8
        if at == end:
            return True
        first = at[0]
        if first < 0x80:
            at += 1
        elif first < 0xC2:
            return False
        elif first < 0xE0:
            if end - at < 2 or (at[1] & 0xC0) != 0x80:
                return False
            at += 2
        elif first < 0xF0:
            if end - at < 3 or (at[1] & 0xC0) != 0x80 or (at[2] & 0xC0) != 0x80:
                return False
            if (first == 0xE0 and at[1] < 0xA0) or (first == 0xED and at[1] > 0x9F):
                return False
            at += 3
        elif first < 0xF5:
            if end - at < 4 or (at[1] & 0xC0) != 0x80 or (at[2] & 0xC0) != 0x80 or (at[3] & 0xC0) != 0x80:
                return False
            if (first == 0xF0 and at[1] < 0x90) or (first == 0xF4 and at[1] > 0x8F):
                return False
            at += 4
        else:
            return False
    return True
