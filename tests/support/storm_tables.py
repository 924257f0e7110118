"""The tables of a DDL storm, and rows that fit their current columns.

In: a seeded generator, a cursor that holds a lock on the table.  Out: INSERT, UPDATE and DELETE.
Invariant: columns come from the catalog, so a row fits the current table. A column whose name begins with j has
JSON, as text or jsonb.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2

Cursor = Any
SCRIPT = """
CREATE TYPE mood AS ENUM ('sad', 'so-so', 'quo"ted, {odd}');
CREATE TABLE orders (id int PRIMARY KEY, a_state mood, b_amount numeric(8,2), c_note varchar(40), d_qty int, e real);
CREATE TABLE papers (id varchar(20) PRIMARY KEY, a_body text, j_doc text, b_yes boolean NOT NULL, c_words text);
CREATE TABLE parts (id int PRIMARY KEY, a_text text, b_n int) PARTITION BY RANGE (id);
CREATE TABLE log (n int NOT NULL, a_what varchar(20), b_rate real, c_state mood);
CREATE TABLE twice (n int NOT NULL, a_what text);
ALTER TABLE log REPLICA IDENTITY FULL;
ALTER TABLE twice REPLICA IDENTITY FULL;
"""
PARTITION_IDS = 1_000_000
TEXTS = ("", " ", "NULL", "\\N", "a\tb\nc", "it's", "Zürich", "東京🛒", "{a,b}", "back\\slash")
DOCUMENTS = ("null", "{}", '{"b": [1, 2.50, null], "a": "ü"}', '{"a":1,  "a":2}', " [ 1 , 2 ] ", '"text"')
NUMBERS = ("NaN", "Infinity", "-Infinity", "-0", "0.1", "3.4028235e+38", "1e-40", "16777217")


@dataclass(frozen=True)
class Column:
    """A column as in the current catalog."""

    name: str
    type: str
    is_not_null: bool


def columns_of(cursor: Cursor, table: str) -> list[Column]:
    """Return the columns; the first one identifies a row."""
    cursor.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table,),
    )
    return [Column(*row) for row in cursor.fetchall()]


def value(dice: random.Random, column: Column, labels: list[str]) -> str | None:
    """Return a literal of the column's type, often an edge case. `labels` are those of the enum."""
    if not column.is_not_null and dice.random() < 0.15:
        return None
    kind = column.type.partition("(")[0]
    if column.name.startswith("j"):
        large = json.dumps([dice.randbytes(4000).hex()])
        return large if dice.random() < 0.1 else dice.choice(DOCUMENTS)
    if kind == "mood":
        return dice.choice(labels)
    if kind == "numeric":
        return (
            "NaN" if dice.random() < 0.1 else f"{dice.randrange(-999_999, 999_999)}.{dice.randrange(100):02d}"
        )
    if kind == "text" and dice.random() < 0.2:
        return dice.randbytes(5000).hex()  # large enough to be stored out of line
    others: dict[str, Callable[[], object]] = {
        "integer": lambda: dice.randrange(-(2**31), 2**31),
        "bigint": lambda: dice.randrange(-(2**63), 2**63),
        "real": lambda: dice.choice(NUMBERS),
        "double precision": lambda: dice.choice(NUMBERS),
        "boolean": lambda: dice.random() < 0.5,
        "character varying": lambda: dice.choice(TEXTS),
        "text": lambda: dice.choice(TEXTS),
    }
    return str(others[kind]())


class Tables:
    """The committed tables, labels and partitions. `parts` is the number of partitions.

    `coming`: the objects that the storm's open transaction has created.
    """

    def __init__(self, dsn: str, rows: int) -> None:
        self.dsn = dsn
        self.names = ["orders", "papers", "parts", "log", "twice"]
        self.parts = 2
        self.labels = ["sad", "so-so", 'quo"ted, {odd}']
        self.coming: list[tuple[str, str]] = []
        self._next = 0
        self._lock = threading.Lock()
        with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(SCRIPT)
            for number in range(self.parts):
                cursor.execute(self.partition(number))
            for table in self.names:
                for _ in range(rows):
                    self.insert(random.Random(table), cursor, table)

    def partition(self, number: int) -> str:
        """Return the DDL of a partition."""
        ids = f"FROM ({number * PARTITION_IDS}) TO ({(number + 1) * PARTITION_IDS})"
        return f"CREATE TABLE parts_{number} PARTITION OF parts FOR VALUES {ids}"

    def partitions(self) -> list[str]:
        """Return the partitions, including those of the open transaction."""
        coming = [name for what, name in self.coming if what == "partition"]
        return [f"parts_{number}" for number in range(self.parts)] + coming

    def leaves(self) -> list[str]:
        """Return the tables that store rows; each has a topic."""
        return [name for name in self.names if name != "parts"] + self.partitions()

    def ended(self, *, is_committed: bool) -> None:
        """Add the objects of the storm's transaction if it is committed, else discard them."""
        for what, name in self.coming if is_committed else ():
            self.names += [name] if what == "table" else []
            self.labels += [name] if what == "label" else []
            self.parts += what == "partition"
        self.coming = []

    def value(self, dice: random.Random, column: Column) -> str | None:
        """Return a literal for a column."""
        return value(dice, column, self.labels)

    def number(self) -> int:
        """Return a number that no session has received before."""
        with self._lock:
            self._next += 1
            return self._next

    def new_name(self, dice: random.Random, table: str) -> str:
        """Return the identifier of a new row; in the table `twice` it is not unique."""
        if table == "twice":
            return str(dice.randrange(20))
        number = self.number()
        if table.startswith("parts"):
            partition = table.removeprefix("parts").removeprefix("_") or dice.randrange(self.parts)
            return str(int(partition) * PARTITION_IDS + number)
        return str(number)

    def insert(self, dice: random.Random, cursor: Cursor, table: str) -> None:
        """Insert a row with a value for each column."""
        first, *others = columns_of(cursor, table)
        values = [self.new_name(dice, table), *(self.value(dice, one) for one in others)]
        names = ", ".join(one.name for one in (first, *others))
        cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join(['%s'] * len(values))})", values)

    def change_row(self, dice: random.Random, cursor: Cursor, table: str) -> None:
        """Insert a row, update some columns or the key of a row, or delete a row."""
        kind = dice.choices(("insert", "update", "key", "delete"), (4, 5, 1, 1))[0]
        if kind == "insert":
            return self.insert(dice, cursor, table)
        first, *others = columns_of(cursor, table)
        cursor.execute(
            f"SELECT {first.name}::text FROM {table} ORDER BY md5({first.name}::text || %s) LIMIT 1",
            (str(dice.random()),),
        )
        (here,) = cursor.fetchone() or (None,)
        if kind == "delete":
            cursor.execute(f"DELETE FROM {table} WHERE {first.name} = %s", (here,))
        elif kind == "key" or not others:
            there = self.new_name(dice, table)
            cursor.execute(f"UPDATE {table} SET {first.name} = %s WHERE {first.name} = %s", (there, here))
        else:
            chosen = dice.sample(others, dice.randrange(1, len(others) + 1))
            values = [self.value(dice, one) for one in chosen]
            assignments = ", ".join(f"{one.name} = %s" for one in chosen)
            cursor.execute(f"UPDATE {table} SET {assignments} WHERE {first.name} = %s", (*values, here))
        return None
