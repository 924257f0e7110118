"""Names of PostgreSQL in the alphabet of Kafka's topics.

In: a name.  Out: the name with other characters as `_uXXXX` (UTF-16 code units in upper-case hex), and back.
Invariant: two names never have the same escaped form.
Must not: do I/O.
"""

from __future__ import annotations

import re

_ILLEGAL = re.compile(r"_(?=u[0-9A-F]{4})|[^A-Za-z0-9_-]")
_ESCAPED = re.compile(r"_u([0-9A-F]{4})")


def escape(name: str) -> str:
    """Return the name with every character but letters, digits, `_` and `-` escaped. `unescape` is the inverse."""
    return _ILLEGAL.sub(lambda match: _code_units(match.group()), name)


def unescape(name: str) -> str:
    """Return the name that `escape` was given; what it returns for no name (half a surrogate pair) as it is."""
    units = _ESCAPED.sub(lambda match: chr(int(match.group(1), 16)), name)
    try:
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError:
        return name


def _code_units(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"_u{units[at] << 8 | units[at + 1]:04X}" for at in range(0, len(units), 2))
