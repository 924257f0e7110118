# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The C extension of `cdcd.verify.hashes`, whose Python functions are its specification.

In: the bytes of texts.  Out: as in `cdcd.verify.hashes`.
Must not: read beyond a text.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef inline uint32_t rotated(uint32_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (32 - bits))


cdef inline uint32_t word(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline void mix(uint32_t* a, uint32_t* b, uint32_t* c) noexcept nogil:
    a[0] -= c[0]; a[0] ^= rotated(c[0], 4); c[0] += b[0]  # no-cython-lint
    b[0] -= a[0]; b[0] ^= rotated(a[0], 6); a[0] += c[0]  # no-cython-lint
    c[0] -= b[0]; c[0] ^= rotated(b[0], 8); b[0] += a[0]  # no-cython-lint
    a[0] -= c[0]; a[0] ^= rotated(c[0], 16); c[0] += b[0]  # no-cython-lint
    b[0] -= a[0]; b[0] ^= rotated(a[0], 19); a[0] += c[0]  # no-cython-lint
    c[0] -= b[0]; c[0] ^= rotated(b[0], 4); b[0] += a[0]  # no-cython-lint


cdef uint64_t hash_of(const uint8_t* data, Py_ssize_t size, uint64_t seed) noexcept nogil:
    cdef uint32_t a, b, c
    cdef Py_ssize_t left = size, place
    a = b = c = <uint32_t>0x9E3779B9 + <uint32_t>size + <uint32_t>3923095
    if seed != 0:
        a += <uint32_t>(seed >> 32)
        b += <uint32_t>seed
        mix(&a, &b, &c)
    while left >= 12:
        a += word(data)
        b += word(data + 4)
        c += word(data + 8)
        mix(&a, &b, &c)
        data += 12
        left -= 12
    for place in range(left):
        if place < 4:
            a += <uint32_t>data[place] << (8 * place)
        elif place < 8:
            b += <uint32_t>data[place] << (8 * (place - 4))
        else:
            c += <uint32_t>data[place] << (8 * (place - 7))
    c ^= b
    c -= rotated(b, 14)
    a ^= c
    a -= rotated(c, 11)
    b ^= a
    b -= rotated(a, 25)
    c ^= b
    c -= rotated(b, 16)
    a ^= c
    a -= rotated(c, 4)
    b ^= a
    b -= rotated(a, 14)
    c ^= b
    c -= rotated(b, 24)
    return <uint64_t>b << 32 | c


def hash64(bytes data not None, uint64_t seed):
    """Return the hash of a text."""
    return hash_of(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), seed)


def row_hashes(uint64_t key_hash, constants, texts):
    """Return the hashes of a row's columns, 8 bytes each."""
    cdef Py_ssize_t count = len(texts), number, place
    cdef uint64_t found
    cdef uint8_t* into
    if len(constants) != count:
        raise ValueError("each column has a constant and a text")
    made = PyBytes_FromStringAndSize(NULL, 8 * count)
    into = <uint8_t*>PyBytes_AS_STRING(made)
    for number in range(count):
        text = texts[number]
        if isinstance(text, bytes):
            found = hash_of(
                <const uint8_t*>PyBytes_AS_STRING(text),
                PyBytes_GET_SIZE(text),
                key_hash ^ <uint64_t>constants[number],
            )
        else:
            found = 0 if text is None else <uint64_t>text
        for place in range(8):
            into[8 * number + place] = <uint8_t>(found >> (56 - 8 * place))
    return made
