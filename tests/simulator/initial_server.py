"""A model of the server of the initial snapshot: tables, transactions, the points of slots.

In: a seeded `random.Random`.  Out: committed transactions, and the rows that the snapshot at a point sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

RELIDS = (16401, 16402, 16403, 16404)
FIRST_LSN = 0x16_0000_0100
KEYS = 12
Rows = dict[str, str]


class Change(NamedTuple):
    """One change of a row: c, u, d; or t, a TRUNCATE."""

    relid: int
    op: str
    key: str = ""
    value: str = ""


class Commit(NamedTuple):
    """One committed transaction."""

    lsn: int
    end_lsn: int
    changes: tuple[Change, ...]


@dataclass
class Slot:
    """The columns of pg_replication_slots that the verdict reads."""

    confirmed_flush_lsn: int
    plugin: str = "pgoutput"
    database: str = "shop"
    active: bool = False
    temporary: bool = False
    synced: bool = False
    wal_status: str = "reserved"
    invalidation_reason: None = None
    two_phase: bool = False

    @property
    def restart_lsn(self) -> int:
        return self.confirmed_flush_lsn - 8


class Server:
    """The tables and their WAL."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._serial = 0
        self.wal_lsn = FIRST_LSN
        self.commits: list[Commit] = []
        self.tables: dict[int, Rows] = {relid: {} for relid in RELIDS[: random.randint(1, len(RELIDS))]}

    def work(self) -> None:
        """Commit a transaction. It often begins where the one before ends (F1)."""
        lsn = self.wal_lsn + self._random.choice([0, 0, 8])
        changes = tuple(self._change() for _ in range(self._random.choice([1, 1, 2, 5])))
        self.wal_lsn = lsn + self._random.randint(8, 64)
        self.commits.append(Commit(lsn, self.wal_lsn, changes))

    def _change(self) -> Change:
        relid = self._random.choice(list(self.tables))
        self._serial += 1
        key, value = f"key {self._random.randrange(KEYS)}", f"value {self._serial}"
        op = "u" if key in self.tables[relid] else "c"
        if op == "u" and self._random.random() < 0.3:
            op, value = "d", ""
        if self._random.random() < 0.03:
            op, key, value = "t", "", ""
        change = Change(relid, op, key, value)
        apply(self.tables[relid], change)
        return change

    def point(self) -> int:
        """Return the consistent point of a new slot: the server has written WAL of its own before it."""
        self.wal_lsn += 8
        return self.wal_lsn

    def rows_at(self, point: int, relid: int) -> Rows:
        """Return the rows that the snapshot at a point sees."""
        rows: Rows = {}
        for commit in self.commits:
            for change in commit.changes if commit.lsn < point else ():
                if change.relid == relid:
                    apply(rows, change)
        return rows


def apply(rows: Rows, change: Change) -> None:
    """Make one change."""
    if change.op == "t":
        rows.clear()
    elif change.op == "d":
        rows.pop(change.key, None)  # readers may lack it
    else:
        rows[change.key] = change.value
