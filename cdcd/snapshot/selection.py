"""Choose the tables of a snapshot, their conditions and their order. Pure.

In: the rules of the configuration, the published tables, their sizes.  Out: the tables to copy, in their order.
Invariant: without a rule every published table is copied, completely. A later rule overrides an earlier one.
Must not: change what the stream has of a table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from cdcd.model import TableCopyState
from cdcd.snapshot.units import CopiedTable

Order = Literal["name", "smallest_first", "largest_first"]


@dataclass(frozen=True, slots=True)
class CopyRule:
    """Changes for the tables whose name `SCHEMA.TABLE` matches completely; None changes nothing."""

    table: re.Pattern[str]
    include: bool | None = None
    where: str | None = None
    priority: int | None = None
    columns: tuple[str, ...] | None = None


class Choice(NamedTuple):
    """The rules' result for one table."""

    is_included: bool
    where: str | None
    priority: int
    columns: tuple[str, ...] | None = None
    """The columns to read in addition to the key; None: all columns."""


def has_columns(table: CopiedTable, columns: Collection[str] | None) -> bool:
    """Return whether the rule of a table chooses these columns, None all, in any order."""
    if table.wanted is None or columns is None:
        return table.wanted is columns
    return set(table.wanted) == set(columns)


@dataclass(frozen=True, slots=True)
class Selection:
    """The rules and the order. `smallest_first` and `largest_first` apply among tables of the same priority."""

    rules: tuple[CopyRule, ...] = ()
    order: Order = "name"

    def choose(self, tables: Iterable[CopiedTable]) -> list[CopiedTable]:
        """Return the tables to copy, each with its condition, priority and columns."""
        found = []
        for table in tables:
            choice = self.choice(table.title)
            if choice.is_included:
                found.append(
                    replace(table, where=choice.where, priority=choice.priority, wanted=choice.columns)
                )
        return found

    def continued(
        self, states: Mapping[int, TableCopyState], tables: Iterable[CopiedTable]
    ) -> list[CopiedTable]:
        """Return the tables whose copy can be continued: with the condition and columns of the rows so far."""
        return [
            table
            for table in self.choose(tables)
            if (state := states.get(table.relid)) is not None
            and state.where == table.where
            and has_columns(table, state.columns)
        ]

    def with_columns(self, table: CopiedTable) -> CopiedTable:
        """Return the table with the columns to read, for a copy that has its condition from elsewhere."""
        return replace(table, wanted=self.choice(table.title).columns)

    def choice(self, title: str) -> Choice:
        """Return what the rules say about one table."""
        include, where, priority, columns = True, None, 0, None
        for rule in self.rules:
            if rule.table.fullmatch(title):
                include = include if rule.include is None else rule.include
                where = where if rule.where is None else rule.where
                priority = priority if rule.priority is None else rule.priority
                columns = columns if rule.columns is None else rule.columns
        return Choice(include, where, priority, columns)

    def unused_patterns(self, tables: Iterable[CopiedTable]) -> list[str]:
        """Return the patterns of the rules that no table matches."""
        titles = [table.title for table in tables]
        return [rule.table.pattern for rule in self.rules if not any(map(rule.table.fullmatch, titles))]

    def rank(self, table: CopiedTable, pages: int) -> tuple[int, int]:
        """Return the place of a table in the order: a smaller one is copied before. Ties keep the order of names."""
        size = {"name": 0, "smallest_first": pages, "largest_first": -pages}[self.order]
        return -table.priority, size
