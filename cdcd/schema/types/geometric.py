"""point, line, lseg, box, path, polygon, circle -> string of the server's text.

In: the server's text, with enough digits to read back exactly (extra_float_digits 3).  Out: an Avro string.
Invariant: NaN, infinities and negative zero in a coordinate remain as PostgreSQL prints them.
"""

from __future__ import annotations

from cdcd.schema.codec import Builder
from cdcd.schema.types.text import TEXT_ONLY

POINT, LSEG, PATH, BOX, POLYGON, LINE, CIRCLE = 600, 601, 602, 603, 604, 628, 718

BUILDERS: dict[int, Builder] = dict.fromkeys(
    (POINT, LSEG, PATH, BOX, POLYGON, LINE, CIRCLE), lambda typmod, policy: TEXT_ONLY
)
