"""Text: the server's bytes, when they are UTF-8."""

from libc.stdint cimport uint8_t

cdef extern from *:
    """
    /* Strict UTF-8, as in Python's decoder: no overlong forms, no surrogates, no code point above U+10FFFF. */
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
    """
    int cdcd_is_utf8(const uint8_t*, Py_ssize_t) noexcept

cdef int _string(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    if not cdcd_is_utf8(p, size):
        return DECLINED
    _put_sized(out, p, size)
    return DONE
