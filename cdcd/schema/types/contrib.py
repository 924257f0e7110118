"""Types of PostgreSQL's contrib extensions that are text by nature -> string of the server's text.

In: the server's text; citext's send format is that text too.  Out: an Avro string.
Invariant: a type is recognised by its extension and its name, so that another's type of the same name is not
taken for it.
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
