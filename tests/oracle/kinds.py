"""The structure of a column's type, as the test itself declared it: how to write a literal, and its SQL type.

In: names of types.  Out: `Kind` trees.
Invariant: nothing here is read from cdcd or from its schemas; the judge casts by these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """A type: an array has an `element`, a composite `parts`; a domain has those of its base type."""

    sql: str
    element: Kind | None = None
    parts: tuple[Kind, ...] | None = None


def array(element: Kind) -> Kind:
    """Return the array of a type."""
    return Kind(f"{element.sql}[]", element)


def domain(name: str, over: Kind) -> Kind:
    """Return a domain over a type."""
    return Kind(name, over.element, over.parts)


def composite(name: str, *parts: Kind) -> Kind:
    """Return a composite type."""
    return Kind(name, None, parts)


ADDRESS = composite("address", Kind("text"), Kind("int4"))
COMPOSITES = {
    "address": ADDRESS,
    "nothing": composite("nothing"),
    "single": composite("single", Kind("text")),
    '"Per son"': composite(
        '"Per son"',
        Kind("text"),
        ADDRESS,
        array(ADDRESS),
        Kind("date"),
        Kind("net_price"),
        Kind("hstore"),
        array(composite("single", Kind("text"))),
    ),
    "log": composite("log", Kind("int4"), Kind("timestamptz"), Kind("bytea")),
}
"""Existing composite types, in addition to those created for each type."""


def kind_of(type_name: str) -> Kind:
    """Return the kind of a type with this name."""
    return COMPOSITES.get(type_name, Kind(type_name))


def quoted(literal: str | None) -> str:
    """Return a literal quoted as a part of an array's, a composite's or a range's literal."""
    if literal is None:
        return "NULL"
    escaped = literal.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def composite_literal(parts: Sequence[str | None]) -> str:
    """Return a composite's literal; null is the empty text between two commas."""
    return f"({','.join('' if part is None else quoted(part) for part in parts)})"


@dataclass(frozen=True)
class Column:
    """One column of a table: its values' literals, by row; None is null."""

    name: str
    kind: Kind
    literals: list[str | None] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Table:
    """One table. `by_text`: there is no binary reader for its type. `chunk`: the number of rows compared at once.

    `filled_by`: a query for the rows, instead of literals.
    """

    name: str
    type_name: str
    columns: tuple[Column, ...]
    by_text: bool = False
    filled_by: str = ""
    chunk: int = 40
