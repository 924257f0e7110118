"""A storm of compatible DDL under load: sessions that change rows, and one that changes the tables.

In: tables, a seed.  Out: threads, each with a connection of its own.
Invariant: transactions commit, roll back, or roll back to a savepoint, with DDL between and among rows; a deadlock is
one more rollback. A session learns the columns under a lock, so that what it writes is right at that moment. Writers
and storm wait for each other's progress, never for a time.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.errors

from tests.support.storm_kinds import KINDS, meant_for
from tests.support.storm_tables import Cursor, Tables

EXPECTED = (
    psycopg2.errors.DeadlockDetected,
    psycopg2.errors.LockNotAvailable,
    psycopg2.errors.SerializationFailure,  # the row went to another partition
)


class Pace:
    """Keeps the writers and the storm together: each waits for the other's progress, not for a time."""

    def __init__(self, writes_per_change: int) -> None:
        self._writes_per_change = writes_per_change
        self._changed = threading.Condition()
        self._writes = self._changes = 0
        self.is_over = False

    def wrote(self) -> bool:
        """A writer's transaction more. False when there is nothing left to write beside."""
        with self._changed:
            self._writes += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self.is_over or self._writes < (self._changes + 2) * self._writes_per_change
            )
            return not self.is_over

    def wait_for_writes(self) -> None:
        """The storm's side: until there were rows since the last change."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_over or self._writes >= self._changes * self._writes_per_change
            )
            self._changes += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let go of everybody."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()


class Session:
    """A connection of its own; `run` is for a thread."""

    def __init__(self, tables: Tables, pace: Pace, seed: str) -> None:
        self.tables, self.pace = tables, pace
        self.dice = random.Random(seed)
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """Work until it is over; a failure ends all."""
        try:
            with closing(psycopg2.connect(self.tables.dsn)) as connection, connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '100ms'; SET lock_timeout = '5s'")
                connection.commit()
                self.work(connection, cursor)
        finally:
            self.pace.end()

    def work(self, connection: Any, cursor: Cursor) -> None:
        """What the session is for."""
        raise NotImplementedError

    def rows(self, cursor: Cursor, table: str, count: int) -> None:
        """Change rows of a table whose columns stay as they are meanwhile."""
        cursor.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        for _ in range(count):
            self.tables.change_row(self.dice, cursor, table)


class Writer(Session):
    """Changes rows of several tables in a transaction; some roll back, as a whole or to a savepoint."""

    def work(self, connection: Any, cursor: Cursor) -> None:
        """Transaction after transaction."""
        while self.pace.wrote():
            try:
                for table in self.dice.sample(self.tables.names, self.dice.randrange(1, 4)):
                    is_undone = self.dice.random() < 0.1
                    cursor.execute("SAVEPOINT here")
                    self.rows(cursor, table, self.dice.randrange(1, 6))
                    cursor.execute(f"{'ROLLBACK TO' if is_undone else 'RELEASE'} SAVEPOINT here")
            except EXPECTED as error:
                connection.rollback()
                self.done[type(error).__name__] += 1
                continue
            is_undone = self.dice.random() < 0.1
            connection.rollback() if is_undone else connection.commit()
            self.done["rolled back" if is_undone else "committed"] += 1


class Storm(Session):
    """Changes tables: each kind of DDL `rounds` times, in any order. `between(turn)` is called before each turn."""

    def __init__(
        self, tables: Tables, pace: Pace, seed: str, rounds: int, between: Callable[[int], None]
    ) -> None:
        super().__init__(tables, pace, seed)
        self._between = between
        self._left = [kind for kind in KINDS for _ in range(rounds)]

    @property
    def turns_left(self) -> int:
        """How many changes are to be made yet."""
        return len(self._left)

    def work(self, connection: Any, cursor: Cursor) -> None:
        """One transaction after another until all kinds had their turns."""
        turn = 0
        while self._left and not self.pace.is_over:
            self._between(turn)
            self.pace.wait_for_writes()
            turn += 1
            self.dice.shuffle(self._left)
            kinds = self._left[: self.dice.randrange(1, 4)]
            made: list[str] = []
            try:
                for kind in kinds:
                    made += [kind] if self._change(cursor, kind) else []
                is_kept = self.dice.random() < 0.9
            except EXPECTED as error:
                self.done[type(error).__name__] += 1
                is_kept = False
            connection.commit() if is_kept else connection.rollback()
            self.tables.ended(is_committed=is_kept)
            self.done["committed" if is_kept else "rolled back"] += 1
            if is_kept:
                self.done.update(made)
                for kind in made:
                    self._left.remove(kind)

    def _change(self, cursor: Cursor, kind: str) -> bool:
        """Make one change, with rows around it. False where the table has nothing for it yet: another time."""
        table = self.dice.choice(meant_for(kind, self.tables))
        cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        if self.dice.random() < 0.6:
            self.rows(cursor, table, 2)
        if self.dice.random() < 0.2:
            coming = list(self.tables.coming)
            cursor.execute("SAVEPOINT undone")
            KINDS[kind](self.dice, cursor, self.tables, table)
            self.rows(cursor, table, 1)
            cursor.execute("ROLLBACK TO SAVEPOINT undone")
            self.tables.coming = coming
        is_made = KINDS[kind](self.dice, cursor, self.tables, table)
        if self.dice.random() < 0.6:
            self.rows(cursor, table, 2)
        return is_made
