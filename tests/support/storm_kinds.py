"""The kinds of compatible DDL of a storm.

In: a table that the session has locked.  Out: DDL, and the writes that must follow it.
Invariant: DDL can change values of rows that PostgreSQL does not send again: values under a new name, a default, the
null of a column that was dropped and added again. The transaction of the DDL writes such values explicitly. It writes
no other values, so that the test also compares rows from before the change. A name never gets another type.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.support.storm_tables import Column, Cursor, Tables, columns_of

KEYLESS = ("log", "twice")
WIDER = {
    "integer": "bigint",
    "real": "double precision",
    "character varying": "text",
    "numeric(8,2)": "numeric(12,2)",
}
TYPES = (
    *("integer", "bigint", "real", "double precision", "boolean"),
    *("text", "character varying(30)", "numeric(8,2)", "mood"),
)

ChangeKind = Callable[[random.Random, Cursor, Tables, str], bool]


def meant_for(kind: str, tables: Tables) -> list[str]:
    """Return the tables that this kind of change may be applied to."""
    if kind in ("default", "rename", "unseen"):
        # Duplicate rows cannot be distinguished, so the test could not match the row that was sent again.
        return [name for name in tables.names if name != "twice"]
    if kind == "jsonb":
        return [name for name in tables.names if name not in KEYLESS]
    if kind == "identity":
        return [name for name in tables.leaves() if name not in KEYLESS]
    if kind == "partition":
        return ["parts"]
    if kind == "truncate":
        return [name for name in tables.names if name == "twice" or name.startswith("new_")]
    return tables.names


def _new_name(tables: Tables, prefix: str = "c") -> str:
    return f"{prefix}{tables.number()}"


def _add(cursor: Cursor, tables: Tables, table: str, kind: str) -> None:
    """Add a column without a default."""
    cursor.execute(f"ALTER TABLE {table} ADD {_new_name(tables)} {kind}")


def _write_again(cursor: Cursor, table: str, name: str) -> None:
    """Update every row with the column's own value; force a new value where TOAST would leave it unchanged."""
    kind = next(one.type for one in columns_of(cursor, table) if one.name == name)
    again = {"text": f"{name} || ''", "jsonb": f"{name}::text::jsonb"}.get(kind, name)
    cursor.execute(f"UPDATE {table} SET {name} = {again}")


def _chosen(dice: random.Random, cursor: Cursor, table: str) -> Column | None:
    """Return a random column other than the first, None if the table has too few."""
    others = columns_of(cursor, table)[1:]
    return dice.choice(others) if len(others) > 1 else None


def _add_plain(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    _add(cursor, tables, table, dice.choice(TYPES))
    return True


def _add_default(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    name, kind = _new_name(tables), dice.choice(TYPES)
    given = None
    while given is None or len(given) > 100:
        given = tables.value(dice, Column(name, kind, True))
    is_not_null = dice.choice(("NOT NULL", ""))
    cursor.execute(f"ALTER TABLE {table} ADD {name} {kind} {is_not_null} DEFAULT %s", (given,))
    _write_again(cursor, table, name)
    return True


def _drop(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    column = _chosen(dice, cursor, table)
    if column is None:
        _add(cursor, tables, table, "text")
        return False
    cursor.execute(f"ALTER TABLE {table} DROP {column.name}")
    return True


def _rename(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    column = _chosen(dice, cursor, table)
    if column is None:
        return False
    name = _new_name(tables, "j" if column.name.startswith("j") else "r")
    cursor.execute(f"ALTER TABLE {table} RENAME {column.name} TO {name}")
    _write_again(cursor, table, name)
    return True


def _again_seen(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    """Drop a column, write a row, add the column again: the row shows cdcd that the column was missing."""
    column = _chosen(dice, cursor, table)
    if column is None:
        return False
    cursor.execute(f"ALTER TABLE {table} DROP {column.name}")
    _sent_row(dice, cursor, tables, table)
    cursor.execute(f"ALTER TABLE {table} ADD {column.name} {column.type}")
    return True


def _again_unseen(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    """Drop and add a column without a row in between; not for keyless tables, whose rows could not be matched."""
    column = _chosen(dice, cursor, table)
    if column is None or table in KEYLESS:
        return False
    cursor.execute(f"ALTER TABLE {table} DROP {column.name}, ADD {column.name} {column.type}")
    _write_again(cursor, table, column.name)
    return True


def _sent_row(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> None:
    """Insert a row into the table, or into each partition, because each partition has its own topic."""
    for leaf in tables.leaves():
        if leaf == table or (table == "parts" and leaf.startswith("parts_")):
            tables.insert(dice, cursor, leaf)


def _widen(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    found = [
        (one.name, wider)
        for one in columns_of(cursor, table)[1 if table == "parts" else 0 :]
        if (wider := WIDER.get(one.type) or WIDER.get(re.sub(r"\(.*", "", one.type)))
    ]
    if not found:
        _add(cursor, tables, table, dice.choice(("integer", "real", "character varying(20)", "numeric(8,2)")))
        return False
    name, wider = dice.choice(found)
    cursor.execute(f"ALTER TABLE {table} ALTER {name} TYPE {wider}")
    return True


def _jsonb(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    found = [one.name for one in columns_of(cursor, table) if one.name.startswith("j") and one.type == "text"]
    if not found:
        cursor.execute(f"ALTER TABLE {table} ADD {_new_name(tables, 'j')} text")
        return False
    name = dice.choice(found)
    cursor.execute(f"ALTER TABLE {table} ALTER {name} TYPE jsonb USING {name}::jsonb")
    return True


def _label(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    label = f"label {tables.number()}, 'ü'"
    cursor.execute("ALTER TYPE mood ADD VALUE %s", (label,))
    tables.coming.append(("label", label))
    return True


def _not_null(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    column = _chosen(dice, cursor, table)
    if column is None:
        return False
    if column.is_not_null:
        cursor.execute(f"ALTER TABLE {table} ALTER {column.name} DROP NOT NULL")
        return True
    given = tables.value(dice, Column(column.name, column.type, True))
    cursor.execute(f"UPDATE {table} SET {column.name} = %s WHERE {column.name} IS NULL", (given,))
    cursor.execute(f"ALTER TABLE {table} ALTER {column.name} SET NOT NULL")
    return True


def _identity(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    cursor.execute("SELECT relreplident FROM pg_class WHERE oid = %s::regclass", (table,))
    is_full = cursor.fetchone() == ("f",)
    cursor.execute(f"ALTER TABLE {table} REPLICA IDENTITY {'DEFAULT' if is_full else 'FULL'}")
    return True


def _table(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    name = f"new_{tables.number()}"
    cursor.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a_words text, b_n int, c_rate real)")
    for _ in range(5):
        tables.insert(dice, cursor, name)
    tables.coming.append(("table", name))
    return True


def _partition(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    number = len(tables.partitions())
    cursor.execute(tables.partition(number))
    tables.insert(dice, cursor, f"parts_{number}")
    tables.coming.append(("partition", f"parts_{number}"))
    return True


def _truncate(dice: random.Random, cursor: Cursor, tables: Tables, table: str) -> bool:
    cursor.execute(f"TRUNCATE {table}")
    return True


KINDS: dict[str, ChangeKind] = {
    "add": _add_plain,
    "default": _add_default,
    "drop": _drop,
    "rename": _rename,
    "seen": _again_seen,
    "unseen": _again_unseen,
    "widen": _widen,
    "jsonb": _jsonb,
    "label": _label,
    "not null": _not_null,
    "identity": _identity,
    "table": _table,
    "partition": _partition,
    "truncate": _truncate,
}
