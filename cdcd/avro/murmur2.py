"""The Java client's partitioner, so that other producers and stream processors use the same partition for a key.

In: the serialised key, header included.  Out: a partition number.
Invariant: equal to org.apache.kafka.common.utils.Utils.murmur2 and toPositive, modulo the number of
partitions.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = tuple(struct.Struct(f"<{n}I") for n in range(64))


def murmur2(data: bytes) -> int:
    """Return the hash as Java's signed int."""
    length = len(data)
    words, tail = divmod(length, 4)
    h = _SEED ^ length
    layout = _WORDS[words] if words < 64 else struct.Struct(f"<{words}I")
    for k in layout.unpack_from(data):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if tail:
        h = (h ^ int.from_bytes(data[-tail:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - 0x100000000 if h & 0x80000000 else h


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of a key among `partitions`."""
    return 0 if partitions == 1 else (murmur2(key) & 0x7FFFFFFF) % partitions
