"""inet, cidr, macaddr, macaddr8 -> string of the server's text.

In: the server's text.  Out: an Avro string.
Invariant: the text is unchanged: an inet has its mask only where the mask is not the full length.
"""

from __future__ import annotations

from cdcd.schema.codec import Builder
from cdcd.schema.types.text import TEXT_ONLY

CIDR, MACADDR8, MACADDR, INET = 650, 774, 829, 869

BUILDERS: dict[int, Builder] = dict.fromkeys(
    (CIDR, MACADDR8, MACADDR, INET), lambda typmod, policy: TEXT_ONLY
)
