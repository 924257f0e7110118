"""The large table that is copied while it changes, and pgbench's script of its changes.

In: a backlog, a number of rows.  Out: the table, published; the script.
Invariant: `version` is from one sequence, taken by each statement under the row's lock, so the versions of a key rise
in the order of its changes. An id that was deleted or changed is never used again.
"""

from __future__ import annotations

from tests.bench.backlog import PUBLICATION, Backlog
from tests.bench.cases import TEN, Columns

TABLE = "copied"
VERSION = ("version", "bigint", "0")
COLUMNS: Columns = (*TEN, VERSION)
NAMES = tuple(name for name, _, _ in COLUMNS)
IDS, VERSIONS = f"{TABLE}_ids", f"{TABLE}_versions"
UPDATES, DELETES, NEW_KEYS = 70, 80, 90
"""Of a hundred transactions the first 70 update a row, then 10 each delete one, change its key, insert one."""


def make_table(backlog: Backlog, rows: int) -> None:
    """Create and fill the table, and publish it, unless it exists."""
    if backlog.execute("SELECT to_regclass(%s)", f"public.{TABLE}") != [(None,)]:
        return
    columns = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)
    values = ", ".join(expression for _, _, expression in COLUMNS)
    backlog.execute(f"CREATE TABLE {TABLE} ({columns}, PRIMARY KEY ({NAMES[0]}))")
    backlog.execute(f"INSERT INTO {TABLE} SELECT {values} FROM generate_series(1::bigint, {rows}) g")
    backlog.execute(f"CREATE SEQUENCE {IDS} START {rows + 1}")
    backlog.execute(f"CREATE SEQUENCE {VERSIONS}")
    backlog.execute(f"VACUUM ANALYZE {TABLE}")
    backlog.execute("CHECKPOINT")
    backlog.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {TABLE}")


def changing(rows: int, insert: str) -> str:
    """Return a script: `insert`, and a change of one of the first `rows` rows, in one transaction. Pure.

    A row that was changed before may be missing; then the transaction has only the insert.
    """
    version = f"version = nextval('{VERSIONS}')"
    values = ", ".join(
        f"nextval('{VERSIONS}')" if name == VERSION[0] else expression for name, _, expression in COLUMNS
    )
    changes = (
        (f"\\if :kind <= {UPDATES}", f"UPDATE {TABLE} SET {version}, ratio = ratio + 1 WHERE id = :id"),
        (f"\\elif :kind <= {DELETES}", f"DELETE FROM {TABLE} WHERE id = :id"),
        (
            f"\\elif :kind <= {NEW_KEYS}",
            f"UPDATE {TABLE} SET id = nextval('{IDS}'), {version} WHERE id = :id",
        ),
        ("\\else", f"INSERT INTO {TABLE} SELECT {values} FROM (SELECT nextval('{IDS}') AS g) AS new"),
    )
    branches = [f"{branch}\nWITH changed AS ({change}) {insert};\n" for branch, change in changes]
    return f"\\set kind random(1, 100)\n\\set id random(1, {rows})\n{''.join(branches)}\\endif\n"
