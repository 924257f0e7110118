"""pgvector's vector, halfvec and sparsevec.

In: dimensions, a zero field, elements as reals or half-precision reals; a sparse vector's indices from 0.
Out: `[1,2.5]`, `{1:0.5,3:2}/5`; each element in the shortest form of a real, whatever extra_float_digits is.
Invariant: the number of elements matches the number of bytes.
"""

from __future__ import annotations

import struct

from cdcd.schema.binary_format.cut import TextOfBinary
from cdcd.schema.binary_format.floating import text_of_real


def _dense(letter: str) -> TextOfBinary:
    size = struct.calcsize(letter)

    def text(raw: bytes) -> bytes:
        count, unused = struct.unpack_from(">hh", raw)
        if unused or count < 1 or len(raw) != 4 + size * count:
            raise ValueError("not a binary vector")
        elements = struct.unpack_from(f">{count}{letter}", raw, 4)
        return b"[%s]" % b",".join(map(text_of_real, elements))

    return text


vector = _dense("f")
"""vector_send's bytes."""

halfvec = _dense("e")
"""halfvec_send's bytes."""


def sparsevec(raw: bytes) -> bytes:
    """Convert sparsevec_send's dimensions, number of elements, indices and values."""
    dimensions, count, unused = struct.unpack_from(">iii", raw)
    if unused or count < 0 or len(raw) != 12 + 8 * count:
        raise ValueError("not a binary vector")
    indices = struct.unpack_from(f">{count}i", raw, 12)
    values = struct.unpack_from(f">{count}f", raw, 12 + 4 * count)
    pairs = zip(indices, values, strict=True)
    return b"{%s}/%d" % (b",".join(b"%d:%s" % (i + 1, text_of_real(v)) for i, v in pairs), dimensions)
