"""The statements of the generated workload.

In: a seeded `random.Random`, a table, its columns as a session sees them.  Out: SQL text.
Invariant: a statement is a function of the seed and of the server's state; it may fail on the server.
"""

from __future__ import annotations

import re
from random import Random

from tests.matrix.tables import COLUMNS, MARK, PARTITIONS

MAX_ID = 3000
BASE = {part.split()[0] for part in COLUMNS.split(", ")}
ROW_TABLES = (
    *(
        "plain",
        "plain",
        "plain",
        "wide",
        "wide",
        "entire",
        "indexed",
        "nothing",
        "parted",
        "parted",
        "parent",
    ),
    *("child", "listed", "filtered", "swap"),
)
FIXED = {"id", "k", "part", "code"}
"""Columns of keys: never null, never altered."""
CONFLICTS = {
    "plain": "id",
    "wide": "part, id",
    "parted": "id, k",
    "listed": "id",
    "filtered": "id",
    "swap": "id",
    "parent": "id",
}
ALTERED = ("plain", "swap", "entire")
IDENTITIES = {
    "plain": ("FULL", "DEFAULT", "USING INDEX plain_again"),
    "wide": ("FULL", "DEFAULT", "USING INDEX wide_again"),
    "swap": ("FULL", "DEFAULT"),
    "nothing": ("NOTHING", "FULL", "DEFAULT"),
    "parted": ("FULL", "DEFAULT", "USING INDEX parted_again"),
    **{name: ("FULL", "DEFAULT", f"USING INDEX {name}_id_k_key") for name in PARTITIONS},
}
"""Replica identities that leave a table's key unchanged; `nothing` has none, and gets only inserts. A root's identity
does not apply to its partitions, so root and partitions seldom have the same one.
"""
ADDED = ("int", "bigint", "text", "numeric", "boolean", "double precision", "bytea", "timestamptz", "int[]")
WIDER = {"integer": "bigint", "bigint": "numeric", "numeric": "text", "boolean": "text", "bytea": "text"}
TRUNCATED = (
    "child",
    "parent CASCADE",
    "parent, plain RESTART IDENTITY CASCADE",
    "swap, wide",
    "parted",
    "entire",
)

Columns = list[tuple[str, str]]
"""Name and type (as format_type returns it) of each column, in order."""


def insert(random: Random, table: str, columns: Columns) -> str:
    """Insert rows of which some may exist: the statement fails, overwrites them, or leaves them."""
    first, rows = random.randint(1, MAX_ID), _size(random)
    names = [name for name, _ in columns if (table, name) != ("child", "id")]
    values = ", ".join(_value(random, name, kind) for name, kind in columns if name in names)
    if rows <= 5:
        tuples = (re.sub(r"\bg\b", str(number), values) for number in range(first, first + rows))
        made = "VALUES " + ", ".join(f"({one})" for one in tuples)
    else:
        made = f"SELECT {values} FROM generate_series({first}, {first + rows - 1}) g"
    statement = f"INSERT INTO {table} ({', '.join(names)}) {made}"
    way = random.random()
    if table not in CONFLICTS or way < 0.1:
        return statement
    if way < 0.5:
        return f"{statement} ON CONFLICT DO NOTHING"
    changed = [name for name in names if name not in CONFLICTS[table].split(", ")]
    sets = ", ".join(f"{name} = excluded.{name}" for name in changed)
    return f"{statement} ON CONFLICT ({CONFLICTS[table]}) DO UPDATE SET {sets}"


def update(random: Random, table: str, columns: Columns) -> str:
    """Update some columns of some rows, or their key, or their partition."""
    way = random.random()
    if way < 0.3 and table not in ("entire", "child"):
        key = {"indexed": "code = code || 'x'", "parted": f"k = (k + {random.randint(1, 2500)}) % 3000"}
        return (
            f"UPDATE {table} SET {key.get(table, f'id = id + {random.randint(1, MAX_ID)}')} {_some(random)}"
        )
    free = [(name, kind) for name, kind in columns if name not in FIXED and name != "parent"]
    chosen = random.sample(free, min(len(free), random.randint(1, 2)))
    values = [re.sub(r"\bg\b", "id", _value(random, name, kind)) for name, kind in chosen]
    sets = ", ".join(f"{name} = {value}" for (name, _), value in zip(chosen, values, strict=True))
    return f"UPDATE {table} SET {sets or 'id = id'} {_some(random)}"


def delete(random: Random, table: str) -> str:
    """Delete some rows."""
    return f"DELETE FROM {table} {_some(random)}"


def copied(random: Random, table: str) -> tuple[str, str]:
    """Return a COPY of `id, v`, and its rows."""
    first = random.randint(MAX_ID, MAX_ID * 50)
    rows = "".join(f"{number}\tcopied {number}\n" for number in range(first, first + _size(random)))
    return f"COPY {table} (id, v) FROM STDIN", rows


def alter(random: Random, table: str, columns: Columns, number: int) -> str:
    """Alter a table: add, drop or rename a column, or change its type."""
    extra = [(name, kind) for name, kind in columns if name not in BASE and name != "f"]
    way = random.random()
    wider = [(name, WIDER[kind]) for name, kind in extra if kind in WIDER]
    if wider and way < 0.25:
        name, kind = random.choice(wider)
        return f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind} USING {name}::text::{kind}"
    if extra and way < 0.5:
        return f"ALTER TABLE {table} RENAME COLUMN {random.choice(extra)[0]} TO x{number}"
    if extra and (way < 0.7 or len(extra) > 4):
        return f"ALTER TABLE {table} DROP COLUMN {random.choice(extra)[0]}"
    kind = random.choice(ADDED)
    default = " DEFAULT 7" if kind in ("int", "bigint", "numeric") and random.random() < 0.5 else ""
    return f"ALTER TABLE {table} ADD COLUMN x{number} {kind}{default}"


def identity(random: Random) -> str:
    """Set another replica identity of a table."""
    table = random.choice(list(IDENTITIES))
    return f"ALTER TABLE {table} REPLICA IDENTITY {random.choice(IDENTITIES[table])}"


def partition(random: Random, attached: set[str], number: int) -> str:
    """Attach or detach one partition; a message in the same transaction informs the witness."""
    name = random.choice(list(PARTITIONS))
    if name in attached:
        done, verb = f"ALTER TABLE parted DETACH PARTITION {name}", "detached"
    else:
        first, end = PARTITIONS[name]
        bounds = f"FOR VALUES FROM ({first}) TO ({end})"
        done, verb = f"ALTER TABLE parted ATTACH PARTITION {name} {bounds}", "attached"
    mark = f"{name} {verb} {number}"
    return f"{done}; SELECT pg_logical_emit_message(true, '{MARK}', '{mark}')"


def truncate(random: Random) -> str:
    """Truncate one table or several, with and without CASCADE and RESTART IDENTITY."""
    return f"TRUNCATE {random.choice(TRUNCATED)}"


def _size(random: Random) -> int:
    if random.random() < 0.92:
        return random.choice((1, 1, 1, 2, 5, 20, 100))
    return random.randint(500, 2500)


def _some(random: Random) -> str:
    first = random.randint(1, MAX_ID)
    return f"WHERE id BETWEEN {first} AND {first + random.choice((10, 50, 300))}"


def _value(random: Random, name: str, kind: str) -> str:
    """Return an expression of this column's type over the row's number `g`."""
    if name not in FIXED and (random.random() < 0.12 or name == "parent"):
        return "NULL"
    if name in ("big", "raw") and random.random() < 0.4:
        many = f"repeat(md5(g::text), {random.randint(80, 300)})"
        return many if name == "big" else f"decode({many}, 'hex')"
    by_name = {
        "part": "'p' || g % 3",
        "code": "'c' || g",
        "k": f"(g * {random.randint(1, 7)}) % 3000",
        "id": "g",
    }
    if name in by_name:
        return by_name[name]
    return {
        "integer": "g",
        "bigint": "g::bigint * 4000000007",
        "text": random.choice(("'v' || g", "repeat('x y ', g % 7)", "md5(g::text)", "'it''s \\ \"' || g")),
        "numeric": random.choice(("g / 8.0", "0 - g", "'NaN'::numeric", "1e30 + g")),
        "boolean": "g % 2 = 0",
        "double precision": "sqrt(g)",
        "bytea": "decode(md5(g::text), 'hex')",
        "timestamp with time zone": "'2026-01-01 00:00:00+00'::timestamptz + g * interval '1.000001 s'",
        "integer[]": "ARRAY[g, NULL, 0 - g]",
    }[kind]
