"""Changes of every kind on two tables, by several sessions at once, with DDL between them.

In: a database, a seed.  Out: transactions until `stop`.
Kinds: inserts, updates with unchanged TOASTed values, deletes, changes of keys, rollbacks to savepoints, prepared
transactions that are open for a while, truncates; columns that are added (with a default), dropped, renamed, widened.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg2
import psycopg2.errors

from cdcd.demo.stack.postgres import PostgresServer

TABLES = (
    "CREATE TABLE account (id int PRIMARY KEY, owner text, balance numeric(12,2), changed timestamptz, note text)",
    "CREATE TABLE item (code text, place int, price float8, tags text[], doc jsonb, big text,"
    " PRIMARY KEY (code, place))",
)
_ROWS = 400
_LONG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"
_RETRIED = (
    psycopg2.errors.DeadlockDetected,
    psycopg2.errors.UniqueViolation,
    psycopg2.errors.UndefinedColumn,
    psycopg2.errors.LockNotAvailable,
    psycopg2.errors.DuplicateColumn,
)


class Load:
    """Sessions that change the tables, and one that alters them."""

    def __init__(self, server: PostgresServer, database: str, seed: int, sessions: int = 3) -> None:
        self._server, self._database = server, database
        self._over = threading.Event()
        self.transactions = 0
        self.alterations = 0
        self.failures: list[Exception] = []
        loops: list[Callable[[Any, random.Random], None]] = [self._change] * sessions + [self._alter]
        self._threads = [
            threading.Thread(target=self._run, args=(loop, seed + number), daemon=True)
            for number, loop in enumerate(loops)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all sessions. Raises the first failure of one."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _run(self, loop: Callable[[Any, random.Random], None], seed: int) -> None:
        draw = random.Random(seed)
        try:
            with contextlib.closing(psycopg2.connect(self._server.dsn(self._database))) as connection:
                cursor = connection.cursor()
                cursor.execute("SET lock_timeout = '5s'")
                connection.commit()
                while not self._over.is_set():
                    try:
                        loop(connection, draw)
                    except _RETRIED:
                        connection.rollback()
        except (psycopg2.Error, AssertionError) as error:
            self.failures.append(error)

    def _change(self, connection: Any, draw: random.Random) -> None:
        cursor = connection.cursor()
        for _ in range(draw.choice((1, 1, 1, 5, 20))):
            self._statement(cursor, draw)
        if draw.random() < 0.1:
            cursor.execute("SAVEPOINT s")
            self._statement(cursor, draw)
            cursor.execute(draw.choice(("ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s")))
        if draw.random() < 0.05:
            gid = f"g{threading.get_ident()}"
            cursor.execute(f"PREPARE TRANSACTION '{gid}'")
            connection.commit()
            self._over.wait(draw.random())
            connection.autocommit = True
            cursor.execute(f"{draw.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'")
            connection.autocommit = False
        elif draw.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
        self.transactions += 1
        self._over.wait(draw.random() / 50)

    def _statement(self, cursor: Any, draw: random.Random) -> None:
        row, place = draw.randrange(_ROWS), draw.randrange(3)
        chosen = draw.random()
        if chosen < 0.3:
            cursor.execute(
                "INSERT INTO account (id, owner, balance, changed) VALUES (%s, 'x', random() * 1000, now())"
                " ON CONFLICT (id) DO UPDATE SET balance = account.balance + 1, changed = now()",
                (row,),
            )
        elif chosen < 0.55:
            cursor.execute(
                "INSERT INTO item (code, place, price, tags, doc, big)"
                f" VALUES (%s, %s, random(), ARRAY['a b', NULL], '{{\"a\": 1}}', {_LONG})"
                " ON CONFLICT (code, place) DO UPDATE SET price = random() * 1e20",
                (f"c{row}", place),
            )
        elif chosen < 0.7:
            cursor.execute("UPDATE item SET doc = to_jsonb(random()) WHERE code = %s", (f"c{row}",))
        elif chosen < 0.8:
            cursor.execute("DELETE FROM item WHERE code = %s AND place = %s", (f"c{row}", place))
        elif chosen < 0.9:
            cursor.execute("DELETE FROM account WHERE id = %s", (row,))
        elif chosen < 0.9995:
            cursor.execute("UPDATE account SET id = %s WHERE id = %s", (row + _ROWS, row))
        else:
            cursor.execute(f"TRUNCATE {draw.choice(('account', 'item'))}")

    def _alter(self, connection: Any, draw: random.Random) -> None:
        cursor = connection.cursor()
        kind = draw.choice("it")  # of two kinds: a column of another type would halt cdcd
        name = f"{kind}{draw.randrange(3)}"
        declared = {"i": f"int DEFAULT {draw.randrange(100)}", "t": "text"}[kind]
        statement = draw.choice(
            (
                f"ALTER TABLE account ADD COLUMN {name} {declared}",
                f"ALTER TABLE account ADD COLUMN {name} {declared}",
                f"ALTER TABLE account DROP COLUMN {name}",
                f"ALTER TABLE account RENAME COLUMN {name} TO d{draw.randrange(1000)}",
                f"ALTER TABLE item ADD COLUMN {name} {declared}",
                f"ALTER TABLE item DROP COLUMN {name}",
                "ALTER TABLE account ALTER COLUMN note TYPE varchar(100)",
                "ALTER TABLE account ALTER COLUMN note TYPE text",
                "VACUUM account",
            )
        )
        connection.autocommit = statement.startswith("VACUUM")
        cursor.execute(statement)
        if not connection.autocommit:
            connection.commit()
        connection.autocommit = False
        self.alterations += 1
        self._over.wait(draw.random() * 12)
