"""The progress of an initial snapshot: rows, rate, estimated end, and the WAL that the slot retains. Pure.

In: the tables with their estimated rows, copied rows, samples of the slot, the time.
Out: a mapping for JSON; a report of each table.
Invariant: an unknown value is None. A complete table counts with its copied rows instead of its estimate.
Must not: read the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcd.snapshot.control import TableReport

MOST_TABLES = 50
"""Tables in progress that are listed one by one."""


class CopyStatus:
    """One snapshot. `estimates`: each table's estimated rows, None where the server has no statistics of them."""

    def __init__(self, now_s: float, estimates: Mapping[str, int | None]) -> None:
        self._began_s = now_s
        self._estimates = dict(estimates)
        self._rows: dict[str, int] = {}
        self._done: set[str] = set()
        self._first_seen: dict[str, tuple[float, int]] = {}
        """When a table was first reported with rows, and how many they were."""
        self._first_wal: tuple[float, int] | None = None
        self._retained_wal_bytes: int | None = None
        self._safe_wal_bytes: int | None = None
        self._wal_s = now_s

    def add_rows(self, table: str, count: int) -> None:
        """Count copied rows of a table."""
        self._rows[table] = self._rows.get(table, 0) + count

    def complete(self, table: str) -> None:
        """Note that a table is completely copied."""
        self._done.add(table)
        self._estimates[table] = self._rows.get(table, 0)

    def sampled(self, now_s: float, retained_wal_bytes: int | None, safe_wal_bytes: int | None) -> None:
        """Note the WAL that the slot retains, and how much more the server may write before it removes some of it."""
        self._wal_s, self._retained_wal_bytes, self._safe_wal_bytes = (
            now_s,
            retained_wal_bytes,
            safe_wal_bytes,
        )
        if self._first_wal is None and retained_wal_bytes is not None:
            self._first_wal = now_s, retained_wal_bytes

    def page(self, now_s: float) -> dict[str, Any]:
        """Return the content of /status."""
        rows, elapsed_s = sum(self._rows.values()), now_s - self._began_s
        rate = rows / elapsed_s if rows and elapsed_s > 0 else None
        estimated = self._estimated_rows()
        left_s = None if rate is None or estimated is None else max(0.0, (estimated - rows) / rate)
        return {
            "tables": len(self._estimates),
            "tables_remaining": len(self._estimates.keys() - self._done),
            "rows": rows,
            "rows_estimated": estimated,
            "rows_per_second": None if rate is None else round(rate, 1),
            "seconds_left": None if left_s is None else round(left_s, 1),
            "retained_wal_bytes": self._retained_wal_bytes,
            "safe_wal_bytes": self._safe_wal_bytes,
            "ends_before_wal_limit": None if left_s is None else self._ends_before_limit(left_s),
            "in_progress": [
                {"table": table, "rows": self._rows[table], "rows_estimated": self._estimates.get(table)}
                for table in self._begun[:MOST_TABLES]
            ],
        }

    def tables(self, now_s: float) -> list[TableReport]:
        """Return the tables that are not complete, those that are being copied first.

        The rate of a table is that since it was first reported.
        """
        waiting = [table for table in self._estimates if table not in self._rows and table not in self._done]
        return [self._report(table, now_s) for table in (*self._begun, *waiting)]

    @property
    def _begun(self) -> list[str]:
        """The tables of which some rows are copied, and not all."""
        return [table for table in self._rows if table not in self._done]

    def _report(self, table: str, now_s: float) -> TableReport:
        rows, estimated = self._rows.get(table, 0), self._estimates.get(table)
        since_s, before = self._first_seen.setdefault(table, (now_s, rows)) if rows else (now_s, rows)
        rate = (rows - before) / (now_s - since_s) if rows > before and now_s > since_s else None
        left_s = None if rate is None or estimated is None else max(0.0, (estimated - rows) / rate)
        return TableReport(
            table,
            "copying" if rows else "waiting",
            rows,
            estimated,
            None if rate is None else round(rate, 1),
            None if left_s is None else round(left_s, 1),
            kind="initial",
        )

    def _estimated_rows(self) -> int | None:
        """Return the rows of all tables, at least those copied; None if one of them is not known."""
        total = 0
        for table, estimate in self._estimates.items():
            if estimate is None:
                return None
            total += max(estimate, self._rows.get(table, 0))
        return total

    def _ends_before_limit(self, left_s: float) -> bool | None:
        """Return whether the copy ends before the server may remove WAL of the slot, at the present rates.

        None without a limit (max_slot_wal_keep_size), and as long as the rate of the WAL is not known.
        """
        if self._first_wal is None or self._retained_wal_bytes is None or self._safe_wal_bytes is None:
            return None
        since_s, before = self._first_wal
        if self._wal_s <= since_s:
            return None
        rate = max(0, self._retained_wal_bytes - before) / (self._wal_s - since_s)
        return rate * left_s < self._safe_wal_bytes
