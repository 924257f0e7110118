"""The tables that made a snapshot begin again: they are copied first at the next attempt (F81).

In: the errors `SnapshotStale` of one attempt after another.  Out: the order of the copy, and when it is given up.
Invariant: no table begins a snapshot again more than `TRIES` - 1 times: it ends, with all rows or with a halt.
Copied first, a table has to be left alone for the seconds between the slot and its copy, not for the whole copy.
Must not: outlive a snapshot that was completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from cdcd.errors import SnapshotStale

TRIES = 8
"""So often a table is stale until the daemon halts."""
_Table = TypeVar("_Table")


class StaleTables:
    """One for the process; names are `schema.table`."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}

    def is_given_up(self, error: SnapshotStale) -> bool:
        """Count it; return whether its table was stale too often. What names no table is no table's doing."""
        if "table" not in error.context:
            return False
        table = str(error.context["table"])
        self._met[table] = self._met.get(table, 0) + 1
        return self._met[table] >= TRIES

    def first(self, tables: Iterable[_Table], name_of: Callable[[_Table], str]) -> list[_Table]:
        """Return the tables in their order, but those that were stale before the others."""
        return sorted(tables, key=lambda table: name_of(table) not in self._met)

    def forget(self) -> None:
        """A snapshot is complete, or somebody has looked at the halt."""
        self._met.clear()
