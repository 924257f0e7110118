"""Read and write big-endian integers of the wire from any address, aligned or not."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    static inline uint16_t cdcd_u16(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }
    static inline uint32_t cdcd_u32(const uint8_t *p) {
        return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
    }
    static inline uint64_t cdcd_u64(const uint8_t *p) { return ((uint64_t)cdcd_u32(p) << 32) | cdcd_u32(p + 4); }
    static inline void cdcd_put16(uint8_t *p, uint16_t v) { p[0] = v >> 8; p[1] = v; }
    static inline void cdcd_put32(uint8_t *p, uint32_t v) { p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v; }
    static inline void cdcd_put64(uint8_t *p, uint64_t v) { cdcd_put32(p, v >> 32); cdcd_put32(p + 4, (uint32_t)v); }
    """
    uint16_t cdcd_u16(const uint8_t*) noexcept nogil
    uint32_t cdcd_u32(const uint8_t*) noexcept nogil
    uint64_t cdcd_u64(const uint8_t*) noexcept nogil
    void cdcd_put16(uint8_t *, uint16_t) noexcept nogil
    void cdcd_put32(uint8_t *, uint32_t) noexcept nogil
    void cdcd_put64(uint8_t *, uint64_t) noexcept nogil
