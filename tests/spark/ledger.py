"""The judge of a stream's batches: after each one the total over all tables is what it always was in PostgreSQL.

In: the rows of batches, one batch after another.  Out: violations as texts; the state of the tables.
Invariant: the rows are folded by this code alone, in the order of `commit_lsn` and `tx_seq`; a change that is unknown
here is a violation.  Must not: use Spark or cdcd.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

COLUMNS = (
    "topic", "partition", "offset", "op", "key.id", "after.amount", "timeline", "commit_lsn", "tx_seq",
)  # fmt: skip
"""The columns of a `Change`, for `DataFrame.select`."""


class Change(NamedTuple):
    """One row of a batch; a tombstone has no `op`."""

    topic: str
    partition: int
    offset: int
    op: str | None
    id: int
    amount: int | None
    timeline: int | None
    commit_lsn: int | None
    tx_seq: int | None

    @property
    def sequence(self) -> tuple[int, int, int]:
        """The order of the changes of a database."""
        assert self.timeline is not None
        assert self.commit_lsn is not None
        assert self.tx_seq is not None
        return self.timeline, self.commit_lsn, self.tx_seq


@dataclass(slots=True)
class Ledger:
    """The tables as of the last batch. `total`: what they have to have in sum."""

    total: int
    state: dict[tuple[str, int], int] = field(default_factory=dict)
    batches: int = 0
    transactions: int = 0
    events: int = 0
    violations: list[str] = field(default_factory=list)
    _last_commit: tuple[int, int] = (0, 0)

    def add(self, rows: Iterable[Change]) -> None:
        """Apply a batch, and judge what the tables are at its end. A batch without rows is none."""
        changes = sorted((row for row in rows if row.op is not None), key=lambda row: row.sequence)
        if not changes:
            return
        self.batches += 1
        self.events += len(changes)
        commits = {change.sequence[:2] for change in changes if change.op != "r"}
        self.transactions += len(commits)
        if commits and min(commits) <= self._last_commit:
            self._violated("a transaction is in two batches, or after a later one")
        self._last_commit = max({self._last_commit, *commits})
        for change in changes:
            self._apply(change)
        if (found := sum(self.state.values())) != self.total:
            self._violated(f"the total is {found}, not {self.total}")

    def _apply(self, change: Change) -> None:
        place = (change.topic.rpartition(".")[2], change.id)
        if change.op == "d":
            if self.state.pop(place, None) is None:
                self._violated("a delete of a row that does not exist")
        elif change.op in ("c", "u", "r") and change.amount is not None:
            if (change.op == "u") != (place in self.state):
                self._violated(f"a change {change.op} of a row that does or does not exist")
            self.state[place] = change.amount
        else:
            self._violated(f"an unknown change {change.op}")

    def _violated(self, what: str) -> None:
        self.violations.append(f"batch {self.batches}, up to commit {self._last_commit[1]:X}: {what}")


def with_a_moved_end(batches: Sequence[Sequence[Change]], at: int) -> list[list[Change]]:
    """Return the batches; that at `at` ends one record earlier in one partition, which the next batch has instead."""
    moved = [list(batch) for batch in batches]
    last = max(
        (change for change in moved[at] if change.op is not None),
        key=lambda change: (change.topic, change.partition, change.offset),
    )
    moved[at].remove(last)
    moved[at + 1].insert(0, last)
    return moved
