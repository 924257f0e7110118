"""PostgreSQL's hash_bytes_extended (common/hashfn.c), little-endian."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef inline uint32_t rotated(uint32_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (32 - bits))


cdef inline uint32_t word(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline void mix(uint32_t* a, uint32_t* b, uint32_t* c) noexcept nogil:
    a[0] -= c[0]
    a[0] ^= rotated(c[0], 4)
    c[0] += b[0]
    b[0] -= a[0]
    b[0] ^= rotated(a[0], 6)
    a[0] += c[0]
    c[0] -= b[0]
    c[0] ^= rotated(b[0], 8)
    b[0] += a[0]
    a[0] -= c[0]
    a[0] ^= rotated(c[0], 16)
    c[0] += b[0]
    b[0] -= a[0]
    b[0] ^= rotated(a[0], 19)
    a[0] += c[0]
    c[0] -= b[0]
    c[0] ^= rotated(b[0], 4)
    b[0] += a[0]


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
