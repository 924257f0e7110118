"""The hashes of keys and values: those of PostgreSQL's `hashtextextended`, so that both sides compute the same.

In: the bytes of texts.  Out: numbers of 64 bits, or the 8 bytes of each column, big-endian.
Invariant: the hash of a value has the hash of its row's key and the number of its column as its seed, so that values
swapped between two rows or two columns change the sums. A null is 0. The C extension does the same.
Why this hash: PostgreSQL has no other one of 64 bits for a text without a detour over hex digits; it is stable, as
hash indexes and hash partitions depend on it; and it needs no OpenSSL, where FIPS forbids md5.
Must not: be used where someone may choose values that collide: it is not a cryptographic hash.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from cdcd.extensions import extension

MISSING, UNCHANGED = 1, 2
"""In place of a text: the record has no such column; the record has the column's former value."""
Text = bytes | int | None
"""A text, None for a null, or MISSING or UNCHANGED."""

_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15
_words = struct.Struct("<III").unpack_from


def hash64(data: bytes, seed: int) -> int:
    """Return `hashtextextended(data COLLATE "C", seed)` as an unsigned number (common/hashfn.c, little-endian)."""
    size = len(data)
    a = b = c = (0x9E3779B9 + size + 3923095) & _MASK32
    if seed:
        a, b, c = _mix((a + (seed >> 32)) & _MASK32, (b + seed) & _MASK32, c)
    whole = size - size % 12
    for at in range(0, whole, 12):
        x, y, z = _words(data, at)
        a, b, c = _mix((a + x) & _MASK32, (b + y) & _MASK32, (c + z) & _MASK32)
    rest = data[whole:]
    # The lowest byte of the last word has the length in other hashes; here it is not used.
    a = (a + int.from_bytes(rest[:4], "little")) & _MASK32
    b = (b + int.from_bytes(rest[4:8], "little")) & _MASK32
    c = (c + (int.from_bytes(rest[8:], "little") << 8)) & _MASK32
    return _final(a, b, c)


def _rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (32 - bits)) & _MASK32


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits_a, bits_b, bits_c in ((4, 6, 8), (16, 19, 4)):
        a = ((a - c) & _MASK32) ^ _rotated(c, bits_a)
        c = (c + b) & _MASK32
        b = ((b - a) & _MASK32) ^ _rotated(a, bits_b)
        a = (a + c) & _MASK32
        c = ((c - b) & _MASK32) ^ _rotated(b, bits_c)
        b = (b + a) & _MASK32
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    c = ((c ^ b) - _rotated(b, 14)) & _MASK32
    a = ((a ^ c) - _rotated(c, 11)) & _MASK32
    b = ((b ^ a) - _rotated(a, 25)) & _MASK32
    c = ((c ^ b) - _rotated(b, 16)) & _MASK32
    a = ((a ^ c) - _rotated(c, 4)) & _MASK32
    b = ((b ^ a) - _rotated(a, 14)) & _MASK32
    c = ((c ^ b) - _rotated(b, 24)) & _MASK32
    return b << 32 | c


def column_constant(attnum: int) -> int:
    """Return the number that distinguishes the hashes of a column."""
    return attnum * _GOLDEN_RATIO & _MASK64


def as_bigint(number: int) -> int:
    """Return an unsigned number of 64 bits as PostgreSQL's bigint with the same bits."""
    return number - (1 << 64) if number >> 63 else number


def row_hashes_in_python(key_hash: int, constants: Sequence[int], texts: Sequence[Text]) -> bytes:
    """Return the hashes of a row's columns, 8 bytes each; MISSING and UNCHANGED remain as they are."""
    found = []
    for constant, text in zip(constants, texts, strict=True):
        is_hashed = isinstance(text, bytes)
        found.append(hash64(text, key_hash ^ constant) if is_hashed else text or 0)  # type: ignore[arg-type]
    return struct.pack(f">{len(found)}Q", *found)


_extension: Any = extension("cdcd.verify._hashes")
hash_bytes = hash64 if _extension is None else _extension.hash64
row_hashes = row_hashes_in_python if _extension is None else _extension.row_hashes


def key_bytes(texts: Sequence[bytes | None]) -> bytes:
    """Return one text of a key: of a single column its own, of several each with its size in bytes."""
    if len(texts) == 1 and texts[0] is not None:
        return texts[0]
    return b"".join(b"-:" if text is None else b"%d:%b" % (len(text), text) for text in texts)


def key_id(key: bytes) -> bytes:
    """Return the 16 bytes that identify a key; the first 8 are its hash."""
    return struct.pack(">QQ", hash_bytes(key, 0), hash_bytes(key, 1))
