"""A storm of compatible DDL under load: sessions that change rows, and a session that changes the tables.

In: tables, a seed.  Out: threads, each with its own connection.
Invariant: transactions commit, roll back, or roll back to a savepoint, with DDL and rows mixed; a deadlock counts as
a rollback. A session reads the columns under a lock, so that its rows fit the table at that moment. The writers and
the storm wait for each other's progress, never for a fixed time.
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
    psycopg2.errors.SerializationFailure,  # the row moved to another partition
)


class Pace:
    """Synchronizes the writers and the storm: each waits for the other's progress, not for a fixed time."""

    def __init__(self, writes_per_change: int) -> None:
        self._writes_per_change = writes_per_change
        self._changed = threading.Condition()
        self._writes = self._changes = 0
        self.is_over = False

    def wrote(self) -> bool:
        """Count a writer's transaction; wait for the storm. Return False when the storm is over."""
        with self._changed:
            self._writes += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self.is_over or self._writes < (self._changes + 2) * self._writes_per_change
            )
            return not self.is_over

    def wait_for_writes(self) -> None:
        """Let the storm wait until the writers have changed rows since the last DDL."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_over or self._writes >= self._changes * self._writes_per_change
            )
            self._changes += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Release all waiting threads."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()


class Session:
    """A session with its own connection; `run` is the target of a thread."""

    def __init__(self, tables: Tables, pace: Pace, seed: str) -> None:
        self.tables, self.pace = tables, pace
        self.dice = random.Random(seed)
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        """Work until the storm is over; a failure ends all sessions."""
        try:
            with closing(psycopg2.connect(self.tables.dsn)) as connection, connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '100ms'; SET lock_timeout = '5s'")
                connection.commit()
                self.work(connection, cursor)
        finally:
            self.pace.end()

    def work(self, connection: Any, cursor: Cursor) -> None:
        """Do the session's work."""
        raise NotImplementedError

    def rows(self, cursor: Cursor, table: str, count: int) -> None:
        """Change rows of a table under a lock that prevents DDL."""
        cursor.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        for _ in range(count):
            self.tables.change_row(self.dice, cursor, table)


class Writer(Session):
    """Changes rows of several tables in a transaction; some roll back, as a whole or to a savepoint."""

    def work(self, connection: Any, cursor: Cursor) -> None:
        """Run transactions until the storm is over."""
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
    """Changes tables: each kind of DDL `rounds` times, in random order. Calls `between(turn)` before each turn."""

    def __init__(
        self, tables: Tables, pace: Pace, seed: str, rounds: int, between: Callable[[int], None]
    ) -> None:
        super().__init__(tables, pace, seed)
        self._between = between
        self._left = [kind for kind in KINDS for _ in range(rounds)]

    @property
    def turns_left(self) -> int:
        """The number of changes still to be made."""
        return len(self._left)

    def work(self, connection: Any, cursor: Cursor) -> None:
        """Run transactions until each kind of DDL was applied `rounds` times."""
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
                is_committed = self.dice.random() < 0.9
            except EXPECTED as error:
                self.done[type(error).__name__] += 1
                is_committed = False
            connection.commit() if is_committed else connection.rollback()
            self.tables.ended(is_committed=is_committed)
            self.done["committed" if is_committed else "rolled back"] += 1
            if is_committed:
                self.done.update(made)
                for kind in made:
                    self._left.remove(kind)

    def _change(self, cursor: Cursor, kind: str) -> bool:
        """Make one change, with rows before and after it. Return False if it does not apply to the table yet."""
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
