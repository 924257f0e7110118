"""The tables of the generated workload, their publications, and the facts about them that a reader needs.

In: a major.  Out: SQL, and each table's key.
Invariant: published columns, rows and names follow from the definitions here, without a query to the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.matrix.cells import Cell

MAIN, ODD, ROOT, LEAVES = "main", 'odd "name", with, commas', "root", "leaves"
FILTERED_OUT = 3
"""The row filter of `filtered` excludes the ids that are divisible by this number."""
PARTITIONS = {"parted_a": (0, 1000), "parted_b": (1000, 2000), "parted_c": (2000, 3000)}
MARK = "matrix"
"""Prefix of the messages by which the workload informs the witness of an attached or detached partition."""

KEYS: dict[str, tuple[str, ...]] = {
    "plain": ("id",),
    "wide": ("part", "id"),
    "entire": (),
    "indexed": ("code",),
    "nothing": (),
    "parted": ("id", "k"),
    "parent": ("id",),
    "child": ("id",),
    "listed": ("id",),
    "filtered": ("id",),
    "swap": ("id",),
    "bulk": ("id",),
    "last": ("id",),
}

COLUMNS = "id int, v text, n numeric, b boolean, at timestamptz, many int[]"
SWAP = f"CREATE TABLE swap ({COLUMNS}, PRIMARY KEY (id))"


def key_of(table: str) -> tuple[str, ...]:
    """Return the key columns of a table's records; `swap_3` and `parted_a` have those of their family."""
    return KEYS[family(table)]


def family(table: str) -> str:
    """Return the table whose definition this one copies."""
    return re.sub("_.*", "", table)


def schema(major: int) -> Iterator[str]:
    """Return the statements that create the tables."""
    yield f"CREATE TABLE plain ({COLUMNS}, PRIMARY KEY (id))"
    yield "CREATE TABLE wide (id bigint, part text, big text, small int, raw bytea, PRIMARY KEY (part, id))"
    yield "ALTER TABLE wide ALTER COLUMN big SET STORAGE EXTERNAL, ALTER COLUMN raw SET STORAGE EXTERNAL"
    # The same columns as the primary keys, because the key of a topic must not change.
    yield "ALTER TABLE plain ADD CONSTRAINT plain_again UNIQUE (id)"
    yield "ALTER TABLE wide ADD CONSTRAINT wide_again UNIQUE (part, id)"
    yield "CREATE TABLE entire (id int, v text, f double precision)"
    yield "ALTER TABLE entire REPLICA IDENTITY FULL"
    yield "CREATE TABLE indexed (id int, code text NOT NULL, v text, CONSTRAINT codes UNIQUE (code))"
    yield "ALTER TABLE indexed REPLICA IDENTITY USING INDEX codes"
    yield "CREATE TABLE nothing (id int, v text)"
    yield "ALTER TABLE nothing REPLICA IDENTITY NOTHING"
    yield (
        "CREATE TABLE parted (id int, k int, v text, big text, PRIMARY KEY (id, k),"
        " CONSTRAINT parted_again UNIQUE (id, k)) PARTITION BY RANGE (k)"
    )
    for name, (first, end) in PARTITIONS.items():
        yield f"CREATE TABLE {name} PARTITION OF parted FOR VALUES FROM ({first}) TO ({end})"
        yield f"ALTER TABLE {name} ALTER COLUMN big SET STORAGE EXTERNAL"
    yield "CREATE TABLE parent (id int PRIMARY KEY, v text)"
    yield "CREATE TABLE child (id serial PRIMARY KEY, parent int REFERENCES parent, v text)"
    yield "CREATE TABLE listed (id int PRIMARY KEY, a text, hidden text)"
    yield "CREATE TABLE filtered (id int PRIMARY KEY, v text)"
    yield SWAP
    yield "CREATE TABLE bulk (id int PRIMARY KEY, v text)"
    yield "CREATE TABLE last (id int PRIMARY KEY)"
    yield from _publications(major)


def publications(cell: Cell) -> list[str]:
    """Return the names of the publications that a cell reads."""
    return [MAIN, ODD, ROOT if cell.via_root else LEAVES]


def sent_columns(table: str, major: int) -> frozenset[str] | None:
    """Return the published columns of a table with a column list, otherwise None."""
    return frozenset({"id", "a"}) if table == "listed" and major >= 15 else None


def _publications(major: int) -> Iterator[str]:
    odd = ODD.replace('"', '""')
    listed, filtered = "listed", "filtered"
    if major >= 15:
        listed, filtered = "listed (id, a)", f"filtered WHERE (id % {FILTERED_OUT} <> 0)"
    main = "plain, wide, entire, indexed, nothing, parent, child, swap, bulk, last"
    yield f"CREATE PUBLICATION {MAIN} FOR TABLE {main}"
    yield f'CREATE PUBLICATION "{odd}" FOR TABLE {listed}, {filtered}'
    # A partition is listed too, so that it is published also while it is detached.
    leaves = ", ".join(PARTITIONS)
    if major >= 13:
        yield f"CREATE PUBLICATION {ROOT} FOR TABLE parted, {leaves} WITH (publish_via_partition_root = true)"
        yield f"CREATE PUBLICATION {LEAVES} FOR TABLE parted, {leaves}"
    else:
        yield f"CREATE PUBLICATION {LEAVES} FOR TABLE {leaves}"
