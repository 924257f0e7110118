"""Random work of several concurrent sessions: its WAL, and its committed transactions.

In: a seeded `random.Random`.  Out: `Work`: WAL records in LSN order, and the expected result of a reader.
Invariant: the work is possible in PostgreSQL: prepared and other transactions respect the locks of DDL and TRUNCATE,
savepoints nest, an aborted subtransaction also aborts the subtransactions released into it, innermost first; a gid is
reused only after its decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

FIRST_LSN = 0x16_0000_0100
MAX_DEPTH = 5
GIDS = ("a", "b", "c")
# The weights of the steps, in the order of `_step`: mostly rows, or much DDL and many rollbacks.
MIXES = ((12, 2.5, 1, 1.5, 0.7, 0.8, 0.5, 0.7, 0.3), (6, 3, 1, 2, 1, 3, 1.5, 0.3, 0.2))


@dataclass(frozen=True)
class Schema:
    """A table at one moment."""

    relid: int
    name: str
    columns: tuple[str, ...]
    has_own_type: bool


@dataclass(frozen=True)
class Row:
    """A row change: I, U or D, with a value for each column of the table at that time."""

    verb: str
    schema: Schema
    values: tuple[str, ...]


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE with its option bits."""

    schemas: tuple[Schema, ...]
    options: int


@dataclass(frozen=True)
class Emitted:
    """A transactional logical message; its content is unique."""

    content: bytes


What = Row | Truncation | Emitted


@dataclass(frozen=True)
class Change:
    """A WAL record of a change; `xid` is the subtransaction's, `top` the transaction's."""

    lsn: int
    top: int
    xid: int
    what: What


@dataclass(frozen=True)
class Loose:
    """A non-transactional logical message."""

    lsn: int
    end_lsn: int
    content: bytes


@dataclass(frozen=True)
class SubAbort:
    """ROLLBACK TO: these subtransactions are aborted, innermost first."""

    lsn: int
    top: int
    xids: tuple[int, ...]


@dataclass(frozen=True)
class Prepare:
    """PREPARE TRANSACTION."""

    lsn: int
    end_lsn: int
    top: int
    gid: str


@dataclass(frozen=True)
class End:
    """COMMIT or ROLLBACK of a transaction; `xids` are its subtransactions, innermost first.

    With `prepared` it is COMMIT PREPARED or ROLLBACK PREPARED.
    """

    lsn: int
    end_lsn: int
    top: int
    is_commit: bool
    xids: tuple[int, ...]
    origin: str | None
    prepared: Prepare | None = None


WalRecord = Change | Loose | SubAbort | Prepare | End


@dataclass(frozen=True)
class Committed:
    """The expected contents of one transaction."""

    xid: int
    commit_lsn: int
    end_lsn: int
    origin: str | None
    whats: tuple[What, ...]


@dataclass
class Work:
    """The WAL records, and the committed transactions that a reader must see."""

    wal: list[WalRecord] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)


@dataclass
class _Open:
    """A transaction in progress: its open savepoints, and the subtransactions released into each one."""

    top: int
    origin: str | None
    path: list[int]
    released: dict[int, list[int]] = field(default_factory=dict)
    views: list[dict[int, Schema]] = field(default_factory=lambda: [{}])
    changes: list[Change] = field(default_factory=list)
    prepared: Prepare | None = None

    def below(self, xid: int) -> list[int]:
        """Return this subtransaction after all that were released into it."""
        return [one for child in self.released.get(xid, []) for one in self.below(child)] + [xid]

    def innermost_first(self, depth: int) -> tuple[int, ...]:
        """Return the subtransactions from this depth of the path on."""
        return tuple(one for xid in reversed(self.path[depth:]) for one in self.below(xid))


class Generator:
    """Generates one `Work`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._lsn = FIRST_LSN
        self._max_open = random.choice([2, 3, 6])
        self._mix = random.choice(MIXES)
        self._xid = random.choice([700, 2**32 - 20, 2**31 - 9])  # also across the wraparound
        self._serial = 0
        self._open: list[_Open] = []
        self._undecided: list[_Open] = []
        self._ends = random.choice([(3, 1, 0), (2, 1, 1), (1, 1, 3)])
        """The weights of COMMIT, ROLLBACK and PREPARE."""
        self._waiting: list[int] = []
        self._work = Work()
        self._schemas = {
            relid: Schema(relid, f"t{relid}", ("id", "v"), has_own_type=relid % 2 == 0)
            for relid in range(16401, 16401 + random.randint(1, 4))
        }

    def work(self, steps: int) -> Work:
        """Take this many steps, then end open transactions; some prepared transactions are never decided."""
        for _ in range(steps):
            self._step()
        while self._open:
            self._end(self._random.choice(self._open))
        for one in self._random.sample(self._undecided, self._random.randint(0, len(self._undecided))):
            self._decide(one)
        return self._work

    def _step(self) -> None:
        random = self._random
        if not self._open or (len(self._open) < self._max_open and random.random() < 0.15):
            xid = self._new_xid()
            origin = random.choice([None, None, "north", "south"])
            self._open.append(_Open(xid, origin, [xid]))
            return
        if self._undecided and random.random() < 0.1:
            self._decide(random.choice(self._undecided))
            return
        one = random.choice(self._open)
        if self._waiting and random.random() < 0.5:
            self._row(one, self._waiting.pop())  # the session that waited for the lock continues first
            return
        steps = (self._row, self._savepoint, self._release, self._rollback_to, self._end)
        rare = (self._alter, self._truncate, self._emit, self._emit_loose)
        random.choices(steps + rare, self._mix)[0](one)

    # --- what a session does ------------------------------------------------------------------------------

    def _row(self, one: _Open, relid: int = 0) -> None:
        relid = relid or self._random.choice(list(self._schemas))
        if self._is_locked(relid, one):
            return
        for _ in range(self._random.choice([1, 1, 1, 5])):
            schema = self._view(one, relid)
            self._serial += 1
            values = tuple(f"{self._serial}.{at}" for at in range(len(schema.columns)))
            self._change(one, Row(self._random.choice("IIUD"), schema, values))

    def _savepoint(self, one: _Open) -> None:
        if len(one.path) <= MAX_DEPTH:
            one.path.append(self._new_xid())
            one.views.append({})

    def _release(self, one: _Open) -> None:
        if len(one.path) > 1:
            child = one.path.pop()
            one.released.setdefault(one.path[-1], []).append(child)
            view = one.views.pop()
            one.views[-1].update(view)

    def _rollback_to(self, one: _Open) -> None:
        if len(one.path) > 1:
            depth = self._random.randint(1, len(one.path) - 1)
            gone = one.innermost_first(depth)
            del one.path[depth:], one.views[depth:]
            one.changes = [change for change in one.changes if change.xid not in gone]
            self._work.wal.append(SubAbort(self._next()[0], one.top, gone))

    def _alter(self, one: _Open) -> None:
        relid = self._random.choice(list(self._schemas))
        if self._is_locked(relid, one) or self._is_used_by_others(relid, one):
            return
        is_tried = len(one.path) <= MAX_DEPTH and self._random.random() < 0.5
        if is_tried:
            self._savepoint(one)
        schema = self._view(one, relid)
        self._serial += 1
        columns = (*schema.columns, f"c{self._serial}")
        if len(schema.columns) > 2 and self._random.random() < 0.5:
            columns = schema.columns[:-1]
        one.views[-1][relid] = replace(schema, columns=columns)
        self._row(one, relid)
        if is_tried and self._random.random() < 0.5:
            self._rollback_to(one)
            self._waiting += [relid] * 2

    def _truncate(self, one: _Open) -> None:
        relids = [
            relid
            for relid in self._schemas
            if not self._is_locked(relid, one) and not self._is_used_by_others(relid, one)
        ]
        if relids:
            chosen = self._random.sample(relids, self._random.randint(1, len(relids)))
            schemas = tuple(self._view(one, relid) for relid in chosen)
            self._change(one, Truncation(schemas, self._random.randint(0, 3)))

    def _emit(self, one: _Open) -> None:
        self._serial += 1
        self._change(one, Emitted(b"message %d" % self._serial))

    def _emit_loose(self, _one: _Open) -> None:
        self._serial += 1
        self._work.wal.append(Loose(*self._next(), b"loose %d" % self._serial))

    def _end(self, one: _Open) -> None:
        """COMMIT, ROLLBACK, or PREPARE where a gid is free."""
        self._open.remove(one)
        taken = {other.prepared.gid for other in self._undecided if other.prepared}
        free = [gid for gid in GIDS if gid not in taken]
        how = self._random.choices(("commit", "rollback", "prepare"), self._ends)[0]
        if how == "prepare" and free:
            one.prepared = Prepare(*self._next(), one.top, self._random.choice(free))
            self._work.wal.append(one.prepared)
            self._undecided.append(one)
        else:
            self._ended(one, is_commit=how != "rollback")

    def _decide(self, one: _Open) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED."""
        self._undecided.remove(one)
        self._ended(one, is_commit=self._random.random() < 0.7)

    def _ended(self, one: _Open, *, is_commit: bool) -> None:
        lsn, end_lsn = self._next()
        subs = one.innermost_first(0)[:-1]
        self._work.wal.append(End(lsn, end_lsn, one.top, is_commit, subs, one.origin, one.prepared))
        if is_commit:
            for view in one.views:
                self._schemas.update(view)
            whats = tuple(change.what for change in one.changes)
            self._work.committed.append(Committed(one.top, lsn, end_lsn, one.origin, whats))

    # --- helpers --------------------------------------------------------------------------------------

    def _change(self, one: _Open, what: What) -> None:
        change = Change(self._next()[0], one.top, one.path[-1], what)
        one.changes.append(change)
        self._work.wal.append(change)

    def _view(self, one: _Open, relid: int) -> Schema:
        for view in reversed(one.views):
            if relid in view:
                return view[relid]
        return self._schemas[relid]

    def _is_locked(self, relid: int, one: _Open) -> bool:
        """Whether another transaction has altered or truncated the table."""
        others = self._others(one)
        return any(relid in view for other in others for view in other.views) or any(
            isinstance(change.what, Truncation) and relid in {schema.relid for schema in change.what.schemas}
            for other in others
            for change in other.changes
        )

    def _is_used_by_others(self, relid: int, one: _Open) -> bool:
        return any(
            isinstance(change.what, Row) and change.what.schema.relid == relid
            for other in self._others(one)
            for change in other.changes
        )

    def _others(self, one: _Open) -> list[_Open]:
        """Return the other transactions with locks, including prepared ones."""
        return [other for other in (*self._open, *self._undecided) if other is not one]

    def _next(self) -> tuple[int, int]:
        """Return the start and end of the next record, which often starts where the one before ends (F1)."""
        lsn = self._lsn + self._random.choice([0, 0, 8])
        self._lsn = lsn + self._random.randint(8, 64)
        return lsn, self._lsn

    def _new_xid(self) -> int:
        xid = self._xid
        self._xid = self._xid + 1 if self._xid < 2**32 - 1 else 3  # 0 to 2 are not assigned
        return xid
