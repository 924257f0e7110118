"""hstore -> Avro map of ["null", string].

In: hstore_out's text: `"key"=>"value", "other"=>NULL`, with \\" and \\\\ inside the quotes.
Out: one Avro block of pairs in the order of the text, and its end.
Invariant: the quotes distinguish the string "NULL" from NULL; keys are unique, as in hstore.
"""

from __future__ import annotations

import re

from cdcd.schema.codec import AvroType, Builder, Codec
from cdcd.schema.types.quoted import BACKSLASHED, of_backslashed
from cdcd.schema.varint import encode_long, encode_string

EXTENSION = "hstore"

_MAP: AvroType = {"type": "map", "values": ["null", "string"]}
_NULL, _SOME, _END = b"\x00", b"\x02", b"\x00"

_pair_at = re.compile(rb'"(' + BACKSLASHED + rb')"=>(?:NULL|"(' + BACKSLASHED + rb')")(?:(, )|\Z)').match


def encode_hstore(raw: bytes) -> bytes:
    """Encode hstore_out's text."""
    if not raw:
        return _END
    pairs: list[bytes] = []
    position = 0
    goes_on: bytes | None = b", "
    while goes_on:
        match = _pair_at(raw, position)
        if match is None:
            raise ValueError("not an hstore")
        key, value, goes_on = match.groups()
        pairs.append(_string(key) + (_NULL if value is None else _SOME + _string(value)))
        position = match.end()
    return encode_long(len(pairs)) + b"".join(pairs) + _END


def _string(escaped: bytes) -> bytes:
    return encode_string(of_backslashed(escaped))


_CODEC = Codec(_MAP, encode_hstore)

EXTENSION_BUILDERS: dict[tuple[str, str], Builder] = {
    (EXTENSION, "hstore"): lambda typmod, policy: _CODEC,
}
