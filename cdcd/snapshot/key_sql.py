"""The columns of a key's index, and comparisons with their values in SQL. Pure text.

In: the names of an index's operators, collations and types; values as PostgreSQL's text.  Out: SQL.
Invariant: a comparison is that of the index: by its operators, which are named with their schema, and its collations.
Without its schema an operator may be another one: with search_path pg_catalog `>` of citext is that of text.
Must not: connect, or execute. Values enter a statement as literals only, quoted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

QualifiedName = tuple[str, str]
"""A schema, and a name in it."""

# The operators of a btree index have the strategies 1 (<) to 5 (>); text_pattern_ops has other names for them.
DESCRIBED = """
    a.attname::text, tn.nspname::text, t.typname::text, cn.nspname::text, cl.collname::text,
    ARRAY(SELECT ARRAY[opn.nspname::text, o.oprname::text]
          FROM pg_amop ao JOIN pg_operator o ON o.oid = ao.amopopr
          JOIN pg_namespace opn ON opn.oid = o.oprnamespace
          WHERE ao.amopfamily = oc.opcfamily AND ao.amoplefttype = oc.opcintype
            AND ao.amoprighttype = oc.opcintype AND ao.amopstrategy BETWEEN 1 AND 5
          ORDER BY ao.amopstrategy)
"""
"""SQL expressions: what `key_columns` reads of a column `a`, its type `t`, operator class `oc` and collation `cl`."""

BASE_TYPE = """
    (WITH RECURSIVE base (oid, parent) AS (
         SELECT b.oid, b.typbasetype FROM pg_type b WHERE b.oid = a.atttypid UNION ALL
         SELECT b.oid, b.typbasetype FROM base JOIN pg_type b ON b.oid = base.parent)
     SELECT base.oid FROM base WHERE base.parent = 0)
"""
"""SQL: the type of a column `a`; of a domain the type below it, because a row may violate a constraint that is NOT
VALID, and then its value cannot be cast to the domain."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key's index. `type` is no domain. `collation` is the index's, None for a type that has none."""

    name: str
    type: QualifiedName
    collation: QualifiedName | None
    less: QualifiedName
    at_most: QualifiedName
    equal: QualifiedName
    at_least: QualifiedName
    greater: QualifiedName

    def comparison(self, by: QualifiedName, value: str | None) -> str:
        """Return the comparison of the column with a value, by one of its operators."""
        return f"{self.collated} {operator(by)} {self.literal(value)}"

    @property
    def collated(self) -> str:
        """The column with the collation of the index."""
        return identifier(self.name) + self._collate

    def literal(self, value: str | None) -> str:
        """Return a value of the column's type, without a length: a cast to char(n) would cut it. None: a null."""
        text = "NULL" if value is None else _quoted(value)
        return f"{text}::{qualified(self.type)}{self._collate}"

    @property
    def _collate(self) -> str:
        return "" if self.collation is None else f" COLLATE {qualified(self.collation)}"


def key_columns(rows: Iterable[Sequence[Any]]) -> tuple[KeyColumn, ...]:
    """Return the columns of rows of `DESCRIBED`."""
    columns = []
    for name, type_schema, type_name, collation_schema, collation, operators in rows:
        names = [(schema, one) for schema, one in operators]
        collated = None if collation is None else (collation_schema, collation)
        columns.append(KeyColumn(name, (type_schema, type_name), collated, *names))
    return tuple(columns)


def order_of(key: Iterable[KeyColumn]) -> tuple[str, ...]:
    """Return what the order of the rows depends on: the key of a row is a position only in the same order."""
    return tuple(
        " ".join((one.name, *map(".".join, (one.type, one.collation or ("",), one.less)))) for one in key
    )


def identifier(name: str) -> str:
    """Return a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def qualified(name: QualifiedName) -> str:
    """Return a quoted name with its schema."""
    return f"{identifier(name[0])}.{identifier(name[1])}"


def operator(name: QualifiedName) -> str:
    """Return an operator with its schema."""
    return f"OPERATOR({identifier(name[0])}.{name[1]})"


def _quoted(value: str) -> str:
    """Return a literal that is the same with any standard_conforming_strings."""
    doubled = value.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in doubled else f"'{doubled}'"
