"""Load for the faults: sessions with all kinds of committed, rolled back and prepared transactions.

In: a DSN, a seed.  Out: threads that write until `stop`, over real connections.
Invariant: the seed decides the statements of a transaction; its result is not recorded here, because a client that
loses its connection does not know the result. The triggers' history has it (`truth`).
"""

from __future__ import annotations

import io
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg2
import psycopg2.errors

from tests.faults.truth import INSERT_ONLY
from tests.support.waiting import eventually

Cursor = Any
EXPECTED = (
    psycopg2.errors.DeadlockDetected,
    psycopg2.errors.LockNotAvailable,
    psycopg2.errors.UniqueViolation,
    psycopg2.errors.ObjectInUse,
    psycopg2.errors.ConfigurationLimitExceeded,  # max_prepared_transactions is reached
    psycopg2.errors.OutOfMemory,
    psycopg2.errors.UndefinedColumn,  # another session dropped it a moment ago
    psycopg2.errors.UndefinedObject,  # another session decided the prepared transaction
    psycopg2.errors.FeatureNotSupported,  # "cached plan must not change result type"
)
AWAY = (psycopg2.OperationalError, psycopg2.InterfaceError)
NOTES = ("", " ", "it's", "a\tb\nc", "NULL", "\\N", "Zürich 東京🛒", 'quo"ted')


class Writer(threading.Thread):
    """One session. `kinds`: weights of the kinds of transactions; `big_rows`: rows of a large transaction.

    No transaction begins while `has_room` returns False; those of the kind "prepared" are decided before.
    """

    def __init__(
        self,
        dsn: str,
        seed: str,
        kinds: dict[str, int],
        big_rows: int = 600,
        pause_s: float = 0.01,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(name=f"writer {seed}", daemon=True)
        self._dsn = dsn
        self._dice = random.Random(seed)
        self._seed = seed
        self._big_rows = big_rows
        self._pause_s = pause_s
        self._has_room = has_room
        self._kinds = [KINDS[name] for name in kinds]
        self._weights = list(kinds.values())
        self._over = threading.Event()
        self._may_go = threading.Event()
        self._may_go.set()
        self._idle = threading.Event()
        self._connection: Any = None
        self.number = 0
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None

    # --- called by other threads ---

    def run(self) -> None:
        """Write until `stop`."""
        try:
            while not self._over.wait(self._pause_s):
                if not self._may_go.is_set():
                    self._idle.set()
                    self._may_go.wait(0.5)
                    continue
                if not self._has_room():
                    self._idle.set()
                    continue
                self._idle.clear()
                self.once()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that joins
            self.failure = error
        finally:
            self._idle.set()

    def rest(self) -> None:
        """Pause after the transaction that is open now, and wait for its end."""
        self._idle.clear()
        self._may_go.clear()
        eventually(lambda: self._idle.is_set() or not self.is_alive(), "the writer has paused", 60)
        if self.failure is not None:
            raise self.failure

    def go_on(self) -> None:
        """Continue to write."""
        self._may_go.set()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._may_go.set()
        self.join(60)

    # --- one transaction ---

    def once(self, kind: Callable[..., None] | None = None) -> None:
        """Run one transaction; errors of the server are counted."""
        if kind is None:
            kind = self._dice.choices(self._kinds, self._weights)[0]
        self.number += 1
        try:
            if self._connection is None:
                self._connect()
            with self._connection.cursor() as cursor:
                kind(self, cursor, self._dice)
            self._connection.commit()
            self.done[kind.__name__] += 1
        except EXPECTED:
            self.done["refused"] += 1
            self._give_up()
        except AWAY:
            self.done["away"] += 1
            self._connection = None
            self._over.wait(0.05)

    def _connect(self) -> None:
        self._connection = psycopg2.connect(self._dsn, connect_timeout=5, application_name="writer")
        with self._connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '300ms'; SET deadlock_timeout = '50ms'")
        self._connection.commit()

    def _give_up(self) -> None:
        try:
            self._connection.rollback()
        except AWAY:
            self._connection = None

    @property
    def big_rows(self) -> int:
        """Rows of a large transaction."""
        return self._big_rows

    def gid(self) -> str:
        """Return an identifier for a prepared transaction."""
        return f"{self._seed} {self.number}"

    def prepare(self, cursor: Cursor) -> str:
        """End the open transaction with PREPARE TRANSACTION."""
        gid = self.gid()
        cursor.execute("PREPARE TRANSACTION %s", (gid,))
        self._connection.commit()
        return gid

    def decide(self, gid: str, how: str) -> None:
        """COMMIT or ROLLBACK PREPARED."""
        self._connection.autocommit = True
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"{how} PREPARED %s", (gid,))
        finally:
            if not self._connection.closed:
                self._connection.autocommit = False

    def abandon(self) -> None:
        """ROLLBACK."""
        self._connection.rollback()


# --- single changes ------------------------------------------------------------------------------------------


def one_change(cursor: Cursor, dice: random.Random) -> None:
    """Make a random change of one row."""
    dice.choices((insert, update, move, delete, say), (5, 5, 1, 3, 1))[0](cursor, dice)


def note(dice: random.Random) -> str | None:
    return dice.choice((None, *NOTES, dice.randbytes(8).hex()))


def insert(cursor: Cursor, dice: random.Random) -> None:
    text, n, amount = note(dice), dice.randrange(100), f"{dice.randrange(10**6) / 100:.2f}"
    statement, values = dice.choice(
        (
            ("plain VALUES (nextval('ids'), %s, %s, %s, %s)", (n, amount, dice.random() < 0.5, text)),
            ("whole VALUES (nextval('ids'), %s, %s, %s)", (n, amount, text)),
            ("coded VALUES (%s, 'code ' || nextval('ids'), %s, %s)", (n, n, text)),
            ("keyless VALUES (%s, %s)", (n, text)),
            ("journal VALUES (%s, %s, %s)", (n, text, dice.randbytes(5))),
            ("wide VALUES (nextval('ids'), %s, %s, %s, %s)", (n, *toasted(dice), text, dice.randbytes(9))),
            ("shape (id, n) VALUES (nextval('ids'), %s)", (n,)),
        )
    )
    cursor.execute(f"INSERT INTO {statement}", values)


def toasted(dice: random.Random) -> tuple[str]:
    return ((dice.choice(NOTES) or "x") * dice.choice((1, 3000)) + dice.randbytes(2).hex(),)


def some_row(cursor: Cursor, dice: random.Random, tables: tuple[str, ...]) -> tuple[str, str] | None:
    """Return a table and the ctid of a row in it that no other transaction has locked."""
    table = dice.choice(tables)
    cursor.execute(
        f"SELECT ctid FROM {table} ORDER BY n, hashtext(ctid::text || %s) LIMIT 1 FOR UPDATE SKIP LOCKED",
        (dice.randrange(1000),),
    )
    row = cursor.fetchone()
    return row and (table, row[0])


def update(cursor: Cursor, dice: random.Random) -> None:
    if found := some_row(cursor, dice, ("plain", "whole", "coded", "keyless", "wide", "shape")):
        assignment = "n = n + %s" if found[0] == "shape" or dice.random() < 0.6 else "note = %s"
        value = dice.randrange(1, 9) if assignment.startswith("n =") else note(dice)
        cursor.execute(f"UPDATE {found[0]} SET {assignment} WHERE ctid = %s", (value, found[1]))


def move(cursor: Cursor, dice: random.Random) -> None:
    """Update the key of a row."""
    if found := some_row(cursor, dice, ("plain", "whole", "coded", "wide", "shape")):
        assignment = "code = code || '+'" if found[0] == "coded" else "id = nextval('ids')"
        cursor.execute(f"UPDATE {found[0]} SET {assignment}, n = 0 WHERE ctid = %s", (found[1],))


def delete(cursor: Cursor, dice: random.Random) -> None:
    if found := some_row(cursor, dice, ("plain", "whole", "coded", "keyless", "wide", "shape")):
        cursor.execute(f"DELETE FROM {found[0]} WHERE ctid = %s", (found[1],))


def say(cursor: Cursor, dice: random.Random) -> None:
    cursor.execute("SELECT truth.say(%s)", (note(dice) or "-",))


# --- transactions --------------------------------------------------------------------------------------------


def small(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """A few changes."""
    for _ in range(dice.randrange(1, 7)):
        one_change(cursor, dice)


def savepoints(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Nested savepoints, released and rolled back."""
    one_change(cursor, dice)
    for name in ("a", "b", "c")[: dice.randrange(1, 4)]:
        cursor.execute(f"SAVEPOINT {name}")
        one_change(cursor, dice)
    cursor.execute(dice.choice(("ROLLBACK TO SAVEPOINT a", "RELEASE SAVEPOINT a")))
    one_change(cursor, dice)


def aborted(writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Changes that are rolled back."""
    small(writer, cursor, dice)
    writer.abandon()


def prepared(writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """A prepared transaction, decided at once or after other transactions."""
    small(writer, cursor, dice)
    gid = writer.prepare(cursor)
    try:
        if dice.random() < 0.3:
            small(writer, cursor, dice)
            writer._connection.commit()
    except EXPECTED:  # undecided, it would make the creation of a slot wait for ever (F38)
        writer.abandon()
        writer.decide(gid, "ROLLBACK")
        raise
    writer.decide(gid, dice.choice(("COMMIT", "COMMIT", "ROLLBACK")))


def big(writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """A transaction larger than logical_decoding_work_mem, so that it is streamed; often a part is rolled back."""
    rows, mark = writer.big_rows, dice.randrange(1000, 1 << 30)
    cursor.execute(
        "INSERT INTO plain SELECT nextval('ids'), %s, i, i %% 2 = 0, repeat('big', 20) FROM generate_series(1, %s) i",
        (mark, rows),
    )
    cursor.execute("SAVEPOINT a")
    cursor.execute(
        "INSERT INTO keyless SELECT %s, repeat('gone', 20) FROM generate_series(1, %s)", (mark, rows // 3)
    )
    if dice.random() < 0.6:
        cursor.execute("ROLLBACK TO SAVEPOINT a")
    cursor.execute("UPDATE plain SET note = 'changed' WHERE n = %s AND id %% 3 = 0", (mark,))
    cursor.execute("DELETE FROM plain WHERE n = %s AND id %% 50 > 0", (mark,))
    cursor.execute("DELETE FROM keyless WHERE n = %s", (mark,))
    if dice.random() < 0.2:
        writer.abandon()


def copied(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """COPY: rows that share one WAL record and therefore one LSN (F75)."""
    rows = "".join(f"{dice.randrange(100)}\tcopied {number}\n" for number in range(dice.randrange(1, 120)))
    cursor.copy_from(io.StringIO(rows), INSERT_ONLY, columns=("n", "note"))


def emptied(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """TRUNCATE, with rows before and after it; one table is never truncated, so that its snapshot is complete."""
    one_change(cursor, dice)
    tables = dice.sample(("plain", "coded", "keyless", "journal", "wide", "shape"), dice.randrange(1, 3))
    cursor.execute(f"TRUNCATE {', '.join(tables)}")
    one_change(cursor, dice)


def altered(writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """ADD or DROP COLUMN, with rows before and after it."""
    cursor.execute("LOCK TABLE shape IN ACCESS EXCLUSIVE MODE")
    cursor.execute("INSERT INTO shape (id, n) VALUES (nextval('ids'), 1)")
    cursor.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'shape'::regclass AND attnum > 2 AND NOT attisdropped"
    )
    columns = [name for (name,) in cursor.fetchall()]
    if len(columns) > 3 or (columns and dice.random() < 0.4):
        cursor.execute(f'ALTER TABLE shape DROP COLUMN "{dice.choice(columns)}"')
    else:
        name = re.sub(r"\W", "_", f"c_{writer.gid()}")  # a new name each time
        cursor.execute(f"ALTER TABLE shape ADD COLUMN {name} text DEFAULT 'of old'")
    cursor.execute("INSERT INTO shape (id, n) VALUES (nextval('ids'), 2)")


KINDS: dict[str, Callable[[Writer, Cursor, random.Random], None]] = {
    kind.__name__: kind for kind in (small, savepoints, aborted, prepared, big, copied, emptied, altered)
}
EVERYTHING = {
    "small": 50, "savepoints": 10, "aborted": 6, "prepared": 5, "big": 4, "copied": 4, "emptied": 1, "altered": 1,
}  # fmt: skip
"""The relative frequency of each kind of transaction."""


def first(_writer: Writer, cursor: Cursor, _dice: random.Random) -> None:
    """Insert some rows into every table."""
    cursor.execute(
        "INSERT INTO plain SELECT nextval('ids'), i, i, true, 'first' FROM generate_series(1, 20) i"
    )
    cursor.execute("INSERT INTO whole SELECT nextval('ids'), i, i, 'first' FROM generate_series(1, 20) i")
    cursor.execute("INSERT INTO coded SELECT i, 'first ' || i, i, NULL FROM generate_series(1, 20) i")
    cursor.execute("INSERT INTO keyless SELECT i, 'first' FROM generate_series(1, 20) i")
    cursor.execute("INSERT INTO journal SELECT i, 'first' FROM generate_series(1, 20) i")
    cursor.execute(
        "INSERT INTO wide SELECT nextval('ids'), i, repeat('first', 2000) FROM generate_series(1, 20) i"
    )
    cursor.execute("INSERT INTO shape SELECT nextval('ids'), i FROM generate_series(1, 20) i")


def fill(dsn: str, seed: str) -> None:
    """Insert some rows into every table before the daemon's first start."""
    write(dsn, seed, first, savepoints, copied, small, small, altered, small, aborted, small, big)


def write(dsn: str, seed: str, *kinds: Callable[[Writer, Cursor, random.Random], None]) -> None:
    """Run one transaction of each of these kinds, while no other session writes."""
    writer = Writer(dsn, seed, EVERYTHING)
    for kind in kinds:
        writer.once(kind)
    assert not writer.done.keys() & {"away", "refused"}, writer.done
    writer._connection.close()
