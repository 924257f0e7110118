"""A model of one table's server: transactions, their commit records, and the later moment at which they are visible.

In: random numbers.  Out: commit records in the order of the stream, snapshots, and the table at each moment.
Invariant: the order of visibility differs from the order of commit records (F36). A row stays locked until its
transaction is visible, so the versions of a row have one order. A snapshot's xmax is one above the highest xid that
has ended, as in PostgreSQL: younger transactions that run are not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

KEYS = 9
BLOCKS = 6


class Row(NamedTuple):
    """A row version. `big` is the version that set the large value, which an update may leave unsent."""

    version: int
    big: int
    block: int


class Change(NamedTuple):
    """A change as the stream sends it. `big` None: unchanged and unsent. `old_key`: of a key change."""

    kind: str
    key: int
    version: int
    big: int | None = None
    old_key: int | None = None


class Commit(NamedTuple):
    """A commit record: it starts at `commit_lsn`, and the next may start at `end_lsn`."""

    xid: int
    commit_lsn: int
    end_lsn: int
    changes: tuple[Change, ...]


@dataclass(eq=False)
class Transaction:
    """A transaction that is not visible yet. `has_record`: its commit record is written."""

    xid: int
    ends_after: int
    changes: list[Change] = field(default_factory=list)
    writes: dict[int, Row | None] = field(default_factory=dict)
    is_truncate: bool = False
    has_record: bool = False


class Server:
    """The table and its transactions. `rows` are the visible ones."""

    def __init__(self, random: Random, *, toasted: float, delay: float) -> None:
        """`toasted`: how many updates leave the large value unsent; `delay`: how long commits are not visible."""
        self._random = random
        self._toasted = toasted
        self._delay = delay
        self._next_xid = random.choice((700, (1 << 32) - 20, (5 << 32) + 1000))
        self._last_ended_xid = self._next_xid - 1
        self._locks: dict[int, Transaction] = {}
        self._table_lock: Transaction | None = None
        self._version = 0
        self.insert_lsn = 1000
        self.running: list[Transaction] = []
        self.commits: list[Commit] = []
        self.file = 0
        self.history: dict[int, Row] = {}
        self.rows: dict[int, Row] = {
            key: self._row(self._new_version(), None) for key in range(KEYS) if random.random() < 0.8
        }
        self.first_rows = dict(self.rows)
        self._operations: dict[str, Callable[[Transaction], None]] = {
            "insert": self._insert,
            "update": self._update,
            "delete": self._delete,
            "move": self._move,
            "truncate": self._truncate,
        }

    # --- what a client sees ---

    @property
    def snapshot_text(self) -> str:
        """The text of pg_current_snapshot()."""
        xmax = self._last_ended_xid + 1
        listed = sorted(one.xid for one in self.running if one.xid < xmax)
        return f"{listed[0] if listed else xmax}:{xmax}:{','.join(map(str, listed))}"

    @property
    def running_xids(self) -> list[int]:
        """The xids of all transactions that have not ended, of 32 bits."""
        return [xid32(one.xid) for one in self.running]

    @property
    def idle_xids(self) -> list[int]:
        """The xids of transactions whose backend is seen idle: they are not inside their commit."""
        return [xid32(one.xid) for one in self.running if not one.has_record]

    @property
    def is_locked(self) -> bool:
        """Whether a TRUNCATE keeps readers out."""
        return self._table_lock is not None

    # --- what the applications do ---

    def step(self) -> None:
        """Begin, change, commit, or make visible, at random."""
        draw = self._random.random()
        if not self.running or (draw < 0.2 and len(self.running) < 4):
            self.begin()
            return
        one = self._random.choice(self.running)
        if one.has_record:
            if self._random.random() >= self._delay:
                self.make_visible(one)
        elif len(one.changes) >= one.ends_after or draw > 0.93:
            self.finish(one)
        else:
            self._change(one)

    def begin(self) -> None:
        """Begin a transaction that changes the table: its xid is assigned with the first change."""
        one = Transaction(self._next_xid, self._random.choice((1, 1, 2, 3, 5)))
        self._next_xid += 1
        if xid32(self._next_xid) < 3:
            self._next_xid += 3
        self.running.append(one)
        self._change(one)

    def finish(self, one: Transaction) -> None:
        """Write the commit record, or abort."""
        if self._random.random() < 0.15:
            self._end(one)
            return
        start = self._advance()
        one.has_record = True
        if one.changes:
            self.commits.append(Commit(xid32(one.xid), start, self.insert_lsn, tuple(one.changes)))

    def make_visible(self, one: Transaction) -> None:
        """Make a transaction visible whose commit record is written, and release its locks."""
        assert one.has_record
        if one.is_truncate:
            self.rows = {}
            self.file += 1
        for key, row in one.writes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self._end(one)

    def _end(self, one: Transaction) -> None:
        self.running.remove(one)
        self._last_ended_xid = max(self._last_ended_xid, one.xid)
        self._locks = {key: other for key, other in self._locks.items() if other is not one}
        if self._table_lock is one:
            self._table_lock = None

    def _advance(self) -> int:
        start = self.insert_lsn
        self.insert_lsn += self._random.choice((24, 32, 120))
        return start

    def _change(self, one: Transaction) -> None:
        weights = (25, 50, 15, 15, 4)
        (name,) = self._random.choices(list(self._operations), weights)
        if self._table_lock in (None, one):
            self._operations[name](one)
        self._advance()

    # --- the kinds of changes ---

    def _view(self, one: Transaction) -> dict[int, Row]:
        seen: dict[int, Row | None] = ({} if one.is_truncate else self.rows) | one.writes
        return {key: row for key, row in seen.items() if row is not None}

    def _key(self, one: Transaction, *, exists: bool, besides: int | None = None) -> int | None:
        """Return a key of an existing row, or one without a row, that no other transaction has locked."""
        view = self._view(one)
        keys = [
            key
            for key in range(KEYS)
            if (key in view) is exists and key != besides and self._locks.get(key, one) is one
        ]
        return self._random.choice(keys) if keys else None

    def _new_version(self) -> int:
        self._version += 1
        return self._version

    def _row(self, version: int, big: int | None) -> Row:
        row = Row(version, version if big is None else big, self._random.randrange(BLOCKS))
        self.history[version] = row
        return row

    def _write(self, one: Transaction, key: int, row: Row | None) -> None:
        one.writes[key] = row
        self._locks[key] = one

    def _insert(self, one: Transaction) -> None:
        if (key := self._key(one, exists=False)) is not None:
            row = self._row(self._new_version(), None)
            self._write(one, key, row)
            one.changes.append(Change("c", key, row.version, row.big))

    def _update(self, one: Transaction) -> None:
        if (key := self._key(one, exists=True)) is not None:
            row, sent = self._updated(self._view(one)[key])
            self._write(one, key, row)
            one.changes.append(Change("u", key, row.version, sent))

    def _updated(self, before: Row) -> tuple[Row, int | None]:
        is_unsent = self._random.random() < self._toasted
        row = self._row(self._new_version(), before.big if is_unsent else None)
        return row, None if is_unsent else row.big

    def _delete(self, one: Transaction) -> None:
        if (key := self._key(one, exists=True)) is not None:
            self._write(one, key, None)
            one.changes.append(Change("d", key, self._new_version()))

    def _move(self, one: Transaction) -> None:
        old_key = self._key(one, exists=True)
        key = self._key(one, exists=False, besides=old_key)
        if old_key is not None and key is not None:
            row, sent = self._updated(self._view(one)[old_key])
            self._write(one, old_key, None)
            self._write(one, key, row)
            one.changes.append(Change("k", key, row.version, sent, old_key))

    def _truncate(self, one: Transaction) -> None:
        if all(other is one or not other.changes for other in self.running):
            self._table_lock = one
            one.is_truncate = True
            one.writes.clear()
            one.changes.append(Change("t", -1, self._new_version()))


def xid32(xid: int) -> int:
    """Return an xid as the stream has it, without its epoch."""
    return xid & 0xFFFFFFFF
