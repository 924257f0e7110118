"""The tables that made a snapshot restart: the next attempt copies them first (F81).

In: the errors `SnapshotStale` of the attempts.  Out: the tables to copy first, and whether to halt.
Invariant: no table restarts a snapshot more than `TRIES` - 1 times: the snapshot ends with all rows or with a halt.
A table that is copied first must not be rewritten for the seconds between slot and copy, not for the whole snapshot.
Must not: outlive a snapshot that was completed.
"""

from __future__ import annotations

from cdcd.errors import SnapshotStale

TRIES = 8
"""The daemon halts when a table is stale for this many attempts."""


class StaleTables:
    """One for the process; names are `schema.table`."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}

    def is_given_up(self, error: SnapshotStale) -> bool:
        """Count the error for its table, if it names one; return whether the table was stale too often."""
        if "table" not in error.context:
            return False
        table = str(error.context["table"])
        self._met[table] = self._met.get(table, 0) + 1
        return self._met[table] >= TRIES

    def is_met(self, table: str) -> bool:
        """Return whether this table was stale, so that it is copied first."""
        return table in self._met

    def forget(self) -> None:
        """Reset the counts: a snapshot is complete, or an operator has resolved the halt."""
        self._met.clear()
