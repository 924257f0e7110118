"""What a column's type is made of, as the test itself declared it: how to write a literal, and which SQL type it has.

In: names of types.  Out: `Kind` trees.
Invariant: nothing here is read from cdcd or from its schemas; the judge casts by these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """A type: an array has an `element`, a composite `parts`; a domain has those of what it is over."""

    sql: str
    element: Kind | None = None
    parts: tuple[Kind, ...] | None = None


def array(element: Kind) -> Kind:
    """The array of a type."""
    return Kind(f"{element.sql}[]", element)


def domain(name: str, over: Kind) -> Kind:
    """A domain."""
    return Kind(name, over.element, over.parts)


def composite(name: str, *parts: Kind) -> Kind:
    """A composite type."""
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
"""The composite types that are kept beside those which are made for each type."""


def kind_of(type_name: str) -> Kind:
    """The kind of a type that is named in a list of types."""
    return COMPOSITES.get(type_name, Kind(type_name))


def quoted(literal: str | None) -> str:
    """A literal as a part of an array's, a composite's or a range's."""
    if literal is None:
        return "NULL"
    escaped = literal.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def composite_literal(parts: Sequence[str | None]) -> str:
    """A composite's literal; null is nothing between the commas."""
    return f"({','.join('' if part is None else quoted(part) for part in parts)})"


@dataclass(frozen=True)
class Column:
    """One column of a table: its values' literals, by row; None is null."""

    name: str
    kind: Kind
    literals: list[str | None] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Table:
    """One table. `by_text`: binary has no reading of it. `chunk`: how many rows are compared at once.

    `filled_by`: a query for the rows where there are no literals.
    """

    name: str
    type_name: str
    columns: tuple[Column, ...]
    by_text: bool = False
    filled_by: str = ""
    chunk: int = 40
