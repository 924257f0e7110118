"""Money that moves between the rows of two tables: what every cut of the topics has to have is a constant total.

In: a database and its servers, a seed.  Out: a world whose writers move money in one transaction each; the rows.
Invariant: each committed transaction leaves the total over both tables as it was; a part of one does not, apart from
the parts that are zero in sum by chance.
"""

from __future__ import annotations

import random
from typing import Any

from tests.faults.workload import Cursor, Writer
from tests.faults.world import World

TABLES = ("checking", "savings")
ACCOUNTS, AMOUNT = 200, 1000
TOTAL = len(TABLES) * ACCOUNTS * AMOUNT
SCRIPT = f"""
CREATE SEQUENCE account_ids START {ACCOUNTS + 1};
CREATE TABLE checking (id int PRIMARY KEY, amount bigint NOT NULL, note text);
CREATE TABLE savings (id int PRIMARY KEY, amount bigint NOT NULL, note text);
INSERT INTO checking SELECT i, {AMOUNT} FROM generate_series(1, {ACCOUNTS}) i;
INSERT INTO savings SELECT i, {AMOUNT} FROM generate_series(1, {ACCOUNTS}) i;
"""
State = dict[tuple[str, int], int]
"""The amount by table and id."""


class TransferWorld(World):
    """The tables of `World` are not written; the oracle and the samplers do not run: a reader judges."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._run(SCRIPT)
        self._run(f"ALTER PUBLICATION cdcd_{self.daemon.name} SET TABLE {', '.join(TABLES)}")

    def __enter__(self) -> TransferWorld:
        return self

    def __exit__(self, *_exc: object) -> None:
        for writer in self.writers:
            writer.stop()
        self.daemon.__exit__()

    def move_money(self, seed: str, count: int, pause_s: float = 0.03) -> None:
        """Start `count` sessions that move money."""
        for number in range(count):
            writer = Mover(self.dsn, f"{seed}.{number}", {}, pause_s=pause_s)
            self.writers.append(writer)
            writer.start()

    def state(self) -> State:
        """Return what PostgreSQL has."""
        return {
            (table, row_id): amount
            for table in TABLES
            for row_id, amount in self.server.execute(f"SELECT id, amount FROM {table}", dbname=self.dbname)
        }


class Mover(Writer):
    """A session with transactions of `KINDS`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kinds, self._weights = list(KINDS), list(KINDS.values())


def some_account(cursor: Cursor, dice: random.Random, table: str) -> int | None:
    """Return the id of an account that no other session has locked."""
    cursor.execute(
        f"SELECT id FROM {table} ORDER BY hashint4(id # %s) LIMIT 1 FOR UPDATE SKIP LOCKED",
        (dice.randrange(1 << 30),),
    )
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def add(cursor: Cursor, table: str, account: int, amount: int) -> None:
    cursor.execute(f"UPDATE {table} SET amount = amount + %s WHERE id = %s", (amount, account))


def move(cursor: Cursor, dice: random.Random, *, new_key: bool = False) -> None:
    """Move an amount from an account to another one, mostly in the other table; `new_key`: the first's id changes."""
    tables = dice.sample(TABLES, 2) if dice.random() < 0.8 else [dice.choice(TABLES)] * 2
    source, target = (some_account(cursor, dice, table) for table in tables)
    amount = dice.randrange(1, 100)
    if source is None or target is None:
        return
    add(cursor, tables[1], target, amount)
    if new_key:
        statement = f"UPDATE {tables[0]} SET amount = amount - %s, id = nextval('account_ids') WHERE id = %s"
        cursor.execute(statement, (amount, source))
    else:
        add(cursor, tables[0], source, -amount)


def transfer(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Some moves."""
    for _ in range(dice.randrange(1, 5)):
        move(cursor, dice)


def rekeyed(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """A move that changes a key, and one more of any account."""
    move(cursor, dice, new_key=True)
    move(cursor, dice)


def savepoints(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Moves, and between them half a move that a savepoint reverts."""
    move(cursor, dice)
    cursor.execute("SAVEPOINT half")
    half_a_move(cursor, dice)
    cursor.execute("ROLLBACK TO SAVEPOINT half")
    move(cursor, dice)


def aborted(writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Half a move that is rolled back."""
    half_a_move(cursor, dice)
    writer.abandon()


def half_a_move(cursor: Cursor, dice: random.Random) -> None:
    table = dice.choice(TABLES)
    if (account := some_account(cursor, dice, table)) is not None:
        add(cursor, table, account, 1)


def reopened(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """An account is deleted, and its amount opens one in the other table."""
    old, new = dice.sample(TABLES, 2)
    if (account := some_account(cursor, dice, old)) is not None:
        cursor.execute(f"DELETE FROM {old} WHERE id = %s RETURNING amount", (account,))
        cursor.execute(f"INSERT INTO {new} VALUES (nextval('account_ids'), %s)", cursor.fetchone())


def large(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Every account of both tables changes, several times: more than logical_decoding_work_mem, so it is streamed."""
    source, target = dice.sample(TABLES, 2)
    account = some_account(cursor, dice, target)
    if account is None:
        return
    for number in range(4):
        cursor.execute("SAVEPOINT part")
        cursor.execute(f"UPDATE {source} SET amount = amount - 1, note = repeat('large', %s)", (20 + number,))
        if number % 2:
            cursor.execute("ROLLBACK TO SAVEPOINT part")
        else:
            add(cursor, target, account, cursor.rowcount)


KINDS = {transfer: 60, rekeyed: 10, savepoints: 10, reopened: 8, aborted: 6, large: 4}
"""The relative frequency of each kind of transaction."""
