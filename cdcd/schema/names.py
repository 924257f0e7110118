"""PostgreSQL identifiers -> Avro names, reversibly.

In: any identifier.  Out: a name of [A-Za-z_][A-Za-z0-9_]*.
Invariant: `unescape(escape(x)) == x`, so two identifiers never get one name. Each UTF-16 unit outside [A-Za-z0-9_], a
leading digit, and an underscore that would read as an escape become `_uXXXX`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cdcd.errors import SchemaError

_ESCAPED = re.compile(r"_(?=u[0-9a-fA-F]{4})|^[0-9]|[^A-Za-z0-9_]")
_ESCAPES = re.compile(r"(?:_u[0-9a-fA-F]{4})+")


def escape(identifier: str) -> str:
    """Return the Avro name of an identifier. Raises SchemaError for the empty identifier."""
    if not identifier:
        raise SchemaError("an empty identifier has no Avro name")
    return _ESCAPED.sub(_escape_match, identifier)


def unescape(name: str) -> str:
    """Return the identifier whose Avro name is `name`: the inverse of `escape`."""
    return _ESCAPES.sub(_unescape_match, name)


def full_name(*parts: str) -> str:
    """Return a dotted Avro name of identifiers, each escaped separately."""
    return ".".join(escape(part) for part in parts)


def key_record(prefix: str, schema: str, table: str) -> str:
    """Return the name of the Avro record of a table's keys."""
    return f"{full_name(prefix, schema, table)}.Key"


def value_record(prefix: str, schema: str, table: str, *, is_flat: bool) -> str:
    """Return the name of the Avro record of a table's values."""
    return f"{full_name(prefix, schema, table)}.{'Value' if is_flat else 'Envelope'}"


def column_names(identifiers: Iterable[str], owner: str, kind: str = "table") -> tuple[str, ...]:
    """Return the Avro field names of a table's or type's columns. Raises SchemaError when two names are the same."""
    taken: dict[str, str] = {}
    for identifier in identifiers:
        name = escape(identifier)
        if name in taken:
            raise SchemaError(
                "two columns have one Avro name",
                columns=f"{taken[name]},{identifier}",
                name=name,
                **{kind: owner},
            )
        taken[name] = identifier
    return tuple(taken)


def _escape_match(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"_u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _unescape_match(match: re.Match[str]) -> str:
    return bytes.fromhex(match.group().replace("_u", "")).decode("utf-16-be")
