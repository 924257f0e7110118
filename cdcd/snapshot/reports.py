"""The progress of incremental snapshots, as `cdcd snapshot status` and /status show it. Pure.

In: what happens to each table, the time.  Out: `TableReport`s in the order in which the copies began.
Invariant: a value that is not known is None, never 0. Rows are those of the copy, also of earlier processes; of a
copy that continues a snapshot's ranges they are those since, and what is left is not known.
Must not: read the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from cdcd.model import BlockingCopyState, TableCopyState
from cdcd.snapshot.chunk_values import Description
from cdcd.snapshot.control import SnapshotKind, TableReport, TableState

_FAILED_BEFORE = (
    "an earlier attempt to copy the table has failed, and the log has the reason: start the copy again, or "
    "stop it"
)


@dataclass(slots=True)
class _Table:
    name: str
    state: TableState
    began_s: float
    rows: int = 0
    rows_before: int = 0
    """Of an earlier process: they are not part of the rate."""
    estimated_rows: int | None = None
    is_rest: bool = False
    reason: str | None = None
    is_named: bool = True
    kind: SnapshotKind = "incremental"


class Counts(Protocol):
    """Receives what the metrics count."""

    def copied_rows(self, table: str, rows: int) -> None: ...  # noqa: D102
    def table_copied(self) -> None: ...  # noqa: D102


class TableReports:
    """The reports of one daemon. They outlive the sessions. `clock_s`: a clock that does not go back."""

    def __init__(self, clock_s: Callable[[], float], counts: Counts) -> None:
        self._clock_s = clock_s
        self._counts = counts
        self._tables: dict[int, _Table] = {}

    def begin(self, relid: int, state: TableCopyState, described: Description | None = None) -> None:
        """Note that a table is copied from now on, or that a session continues its copy."""
        was = self._tables.get(relid)
        shown: TableState = "paused" if state.is_paused else "waiting"
        if described is None and was is not None:
            was.state, was.reason = shown, None
            return
        name = described.table.title if described is not None else state.topic
        rows = state.rows - state.rows_before
        self._tables[relid] = _Table(name, shown, self._clock_s(), rows, rows, is_rest=state.is_by_blocks)
        self._tables[relid].is_named = described is not None
        if described is not None:
            self._tables[relid].estimated_rows = described.estimated_rows

    def begin_blocking(
        self, relid: int, state: BlockingCopyState, described: Description | None = None
    ) -> None:
        """Note that a table of a blocking snapshot is to be copied, or that a session continues with it."""
        was = self._tables.get(relid)
        shown: TableState = "failed" if state.has_failed else "waiting"
        if described is None and was is not None:
            was.state, was.reason = shown, was.reason if state.has_failed else None
            return
        name = described.table.title if described is not None else state.topic
        self._tables[relid] = table = _Table(name, shown, self._clock_s(), kind="blocking")
        table.is_named = described is not None
        table.estimated_rows = None if described is None else described.estimated_rows
        table.reason = _FAILED_BEFORE if state.has_failed else None

    def begin_attempt(self, relid: int, estimated_rows: int | None) -> None:
        """Note that the rows of a table are copied from the first one on."""
        if (table := self._tables.get(relid)) is not None:
            table.rows = table.rows_before = 0
            table.began_s, table.estimated_rows, table.is_rest = self._clock_s(), estimated_rows, False
            table.state, table.reason = "copying", None

    def is_named(self, relid: int) -> bool:
        """Return whether the table's name is known, and not only its topic."""
        return relid in self._tables and self._tables[relid].is_named

    def named(self, relid: int, name: str) -> None:
        """Note the table's name."""
        if (table := self._tables.get(relid)) is not None:
            table.name, table.is_named = name, True

    def described(self, relid: int, description: Description) -> None:
        """Note the table's name and the server's estimate of its rows."""
        if (table := self._tables.get(relid)) is not None:
            table.estimated_rows = description.estimated_rows
            self.named(relid, description.table.title)

    def emitted(self, relid: int, rows: int) -> None:
        """Count rows that were written."""
        if (table := self._tables.get(relid)) is not None:
            table.rows += rows
            table.state = "copying" if table.state != "paused" else "paused"
            self._counts.copied_rows(table.name, rows)

    def waits(self, relid: int, reason: str | None) -> None:
        """Note why no chunk is read, None if one is; a chunk may be left that was begun before a pause."""
        if (table := self._tables.get(relid)) is not None and table.state not in ("paused", "failed"):
            table.reason = reason
            table.state = "copying" if reason is None else "waiting"

    def paused(self, relid: int, *, is_paused: bool) -> None:
        """Note that a copy is paused, or resumed."""
        if (table := self._tables.get(relid)) is not None:
            table.state, table.reason = "paused" if is_paused else "waiting", None

    def failed(self, relid: int, reason: str) -> None:
        """Note that a copy has failed: it is tried again by `resume`, and by the next session."""
        if (table := self._tables.get(relid)) is not None:
            table.state, table.reason = "failed", reason

    def complete(self, relid: int) -> None:
        """Note that a table is copied completely."""
        self.end(relid)
        self._counts.table_copied()

    def retain(self, relids: Iterable[int]) -> None:
        """Note that no other tables than these are copied: a new snapshot or a gap has ended their copies."""
        left = frozenset(relids)
        self._tables = {relid: table for relid, table in self._tables.items() if relid in left}

    def end(self, relid: int) -> None:
        """Note that a table is not copied any more."""
        self._tables.pop(relid, None)

    def name_of(self, relid: int) -> str:
        """Return the name of a table that is being copied."""
        return self._tables[relid].name if relid in self._tables else str(relid)

    def rows_of(self, relid: int) -> int | None:
        """Return the rows emitted, None if the table is not being copied."""
        return self._tables[relid].rows if relid in self._tables else None

    def count(self, state: str) -> int:
        """Return the number of tables in a state."""
        return sum(table.state == state for table in self._tables.values())

    def all(self) -> list[TableReport]:
        """Return the reports."""
        now_s = self._clock_s()
        return [self._report(table, now_s) for table in self._tables.values()]

    @staticmethod
    def _report(table: _Table, now_s: float) -> TableReport:
        elapsed_s, rows = now_s - table.began_s, table.rows - table.rows_before
        is_at_work = table.state in ("copying", "waiting")
        rate = rows / elapsed_s if rows and elapsed_s > 0 and is_at_work else None
        is_known = rate is not None and table.estimated_rows is not None and not table.is_rest
        left_s = max(0.0, (table.estimated_rows or 0) - table.rows) / rate if rate and is_known else None
        return TableReport(
            table.name,
            table.state,
            table.rows,
            table.estimated_rows,
            None if rate is None else round(rate, 1),
            None if left_s is None else round(left_s, 1),
            table.reason,
            table.kind,
        )
