"""Types of PostgreSQL's contrib extensions that have no better Avro type -> string of the server's text.

In: the server's text; citext's send format is the same text.  Out: an Avro string.
Invariant: a type is identified by its extension and its name, so that a type of the same name elsewhere is not
mistaken for it.
"""

from __future__ import annotations

from cdcd.schema.codec import Builder
from cdcd.schema.types.text import PLAIN, TEXT_ONLY

_STRINGS = {
    "ltree": ("ltree", "lquery", "ltxtquery", "ltree_gist"),
    "cube": ("cube",),
    "isn": ("ean13", "isbn13", "ismn13", "issn13", "isbn", "ismn", "issn", "upc"),
    "seg": ("seg",),
    "intarray": ("query_int", "intbig_gkey"),
    "hstore": ("ghstore",),
    "pg_trgm": ("gtrgm",),
}

EXTENSION_BUILDERS: dict[tuple[str, str], Builder] = {
    ("citext", "citext"): lambda typmod, policy: PLAIN,
    **{
        (extension, name): lambda typmod, policy: TEXT_ONLY
        for extension, names in _STRINGS.items()
        for name in names
    },
}
