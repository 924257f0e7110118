"""The bytes of an entry, as `cdcd.verify.records` describes them, and numbers in big-endian order."""

cdef enum:
    KEY_BYTES = 16
    POSITION_BYTES = 21  # timeline, commit LSN, phase, number in the transaction
    PLACE_BYTES = 18  # kind, xid, topic, partition, offset
    POSITION_END = KEY_BYTES + POSITION_BYTES
    HEAD_BYTES = POSITION_END + PLACE_BYTES
    PHASE_AT = 12  # in the position

cdef enum:
    ROW = 0
    DELETED = 1
    COPIED = 2
    UNKNOWN = 3
    UPDATED = 4

cdef enum:
    NULL_HASH = 0
    MISSING = 1
    UNCHANGED = 2


cdef inline void put_u32(uint8_t* at, uint32_t number) noexcept nogil:
    cdef int place
    for place in range(4):
        at[place] = <uint8_t>(number >> (24 - 8 * place))


cdef inline void put_u64(uint8_t* at, uint64_t number) noexcept nogil:
    put_u32(at, <uint32_t>(number >> 32))
    put_u32(at + 4, <uint32_t>number)


cdef inline uint32_t u32_of(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]


cdef inline uint64_t u64_of(const uint8_t* at) noexcept nogil:
    return <uint64_t>u32_of(at) << 32 | u32_of(at + 4)
