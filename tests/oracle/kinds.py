"""The structure of a column's type, as the test itself declared it: how to write a literal, and its SQL type.

In: names of types.  Out: `DeclaredType` trees.
Invariant: nothing here is read from cdcd or from its schemas; the judge casts by these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeclaredType:
    """A type: an array has an `element`, a composite `parts`; a domain has those of its base type."""

    sql: str
    element: DeclaredType | None = None
    parts: tuple[DeclaredType, ...] | None = None


def array(element: DeclaredType) -> DeclaredType:
    """Return the array of a type."""
    return DeclaredType(f"{element.sql}[]", element)


def domain(name: str, over: DeclaredType) -> DeclaredType:
    """Return a domain over a type."""
    return DeclaredType(name, over.element, over.parts)


def composite(name: str, *parts: DeclaredType) -> DeclaredType:
    """Return a composite type."""
    return DeclaredType(name, None, parts)


ADDRESS = composite("address", DeclaredType("text"), DeclaredType("int4"))
COMPOSITES = {
    "address": ADDRESS,
    "nothing": composite("nothing"),
    "single": composite("single", DeclaredType("text")),
    '"Per son"': composite(
        '"Per son"',
        DeclaredType("text"),
        ADDRESS,
        array(ADDRESS),
        DeclaredType("date"),
        DeclaredType("net_price"),
        DeclaredType("hstore"),
        array(composite("single", DeclaredType("text"))),
    ),
    "log": composite("log", DeclaredType("int4"), DeclaredType("timestamptz"), DeclaredType("bytea")),
}
"""Existing composite types, in addition to those created for each type."""


def kind_of(type_name: str) -> DeclaredType:
    """Return the kind of a type with this name."""
    return COMPOSITES.get(type_name, DeclaredType(type_name))


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
    kind: DeclaredType
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
