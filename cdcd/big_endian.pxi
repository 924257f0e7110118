"""Read big-endian integers of the wire from any address, aligned or not."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    static inline uint16_t cdcd_u16(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }
    static inline uint32_t cdcd_u32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t cdcd_u64(const uint8_t *p) { return ((uint64_t)cdcd_u32(p) << 32) | cdcd_u32(p + 4); }
    """
    uint16_t cdcd_u16(const uint8_t*) noexcept nogil
    uint32_t cdcd_u32(const uint8_t*) noexcept nogil
    uint64_t cdcd_u64(const uint8_t*) noexcept nogil
