"""pgvector's vector and halfvec -> Avro array of float, sparsevec -> string of the server's text.

In: `[1,2.5,-3e-05]`; `{1:1.5,3:2}/5`.
Out: one Avro block of floats without nulls and its end; an Avro string.
Invariant: each element is rounded once, to a real, which holds every value of half precision.
"""

from __future__ import annotations

from cdcd.schema.codec import AvroType, Builder, Codec
from cdcd.schema.types.floating import encode_real
from cdcd.schema.types.text import TEXT_ONLY
from cdcd.schema.varint import encode_long

EXTENSION = "vector"

_FLOATS: AvroType = {"type": "array", "items": "float"}
_END = b"\x00"


def encode_vector(raw: bytes) -> bytes:
    """Encode vector_out's text."""
    if raw[:1] != b"[" or raw[-1:] != b"]":
        raise ValueError("not a vector")
    items = raw[1:-1].split(b",")
    return encode_long(len(items)) + b"".join([encode_real(item) for item in items]) + _END


_CODEC = Codec(_FLOATS, encode_vector)

EXTENSION_BUILDERS: dict[tuple[str, str], Builder] = {
    (EXTENSION, "vector"): lambda typmod, policy: _CODEC,
    (EXTENSION, "halfvec"): lambda typmod, policy: _CODEC,
    (EXTENSION, "sparsevec"): lambda typmod, policy: TEXT_ONLY,
}
