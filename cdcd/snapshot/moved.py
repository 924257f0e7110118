"""Whether a snapshot still sees the rows of a table that has another file than when the snapshot was taken (F81).

In: a cursor inside the snapshot whose transaction has locked the table.  Out: what became of the table.
Invariant: what is not proven harmless is STALE. TRUNCATE, ALTER TABLE, VACUUM FULL, CLUSTER, pg_repack, pg_squeeze
and REPACK all give a table another file and leave the same traces in the catalog. The proof is in the file itself:
nothing is in it, so there is nothing to miss; or the snapshot sees a row in it, and then it sees them all. That is
because a file which was made after the snapshot has rows that are older only where they were moved with their
transaction ids, as VACUUM FULL, CLUSTER and SET TABLESPACE do; what inserts them again does so with its own.
Must not: take a lock of its own, or look into the stream for a TRUNCATE.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from psycopg2 import sql


class Fate(enum.Enum):
    """What became of a table since the snapshot was taken."""

    SAME = "same"
    """The snapshot sees its rows."""
    EMPTIED = "emptied"
    """It has no rows any more: their TRUNCATE or DELETEs are in the stream."""
    STALE = "stale"
    """It may have rows that neither the snapshot nor the stream has."""


class MovedFile(NamedTuple):
    """One table or partition with another file, its own or its TOAST table's.

    `may_be_anothers`: the file may have been another table's when the snapshot was taken, and may have rows of that
    time in another state. `sees_rows`: the snapshot sees a row in it; False also where it cannot be asked.
    """

    is_own: bool
    is_empty: bool
    may_be_anothers: bool
    sees_rows: bool


def fate_of(moved: Iterable[MovedFile]) -> Fate:
    """Return what became of a table that consists of these and of others that have their file still."""
    fates = {_fate_of_file(file) for file in moved}
    return next((fate for fate in (Fate.STALE, Fate.EMPTIED) if fate in fates), Fate.SAME)


def _fate_of_file(file: MovedFile) -> Fate:
    if file.is_empty:
        return Fate.EMPTIED
    # Only the rows tell. Values in a new TOAST file of rows that stayed where they are were put there by an unknown.
    is_kept = file.is_own and file.sees_rows and not file.may_be_anothers
    return Fate.SAME if is_kept else Fate.STALE


# pg_class is read as of the snapshot, the functions answer for now. Roots and foreign tables have no file, and a
# partition dropped since has no rows any more. `given_away`: another table has another file or is gone, so the new
# file may have been its: pg_repack may have begun before the snapshot was taken.
_MOVED = """
    WITH RECURSIVE copied(relid) AS (
        SELECT %(relid)s::oid
        UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN copied ON i.inhparent = copied.relid
        WHERE %(is_partitioned)s)
    SELECT c.oid::regclass::text, c.relfilenode <> pg_relation_filenode(c.oid), pg_relation_size(c.oid) = 0,
           (SELECT EXISTS (SELECT FROM pg_class o
                           WHERE o.relkind IN ('r', 'm') AND o.relpersistence <> 't' AND o.relfilenode <> 0
                             AND o.relfilenode IS DISTINCT FROM pg_relation_filenode(o.oid)
                             AND NOT EXISTS (SELECT FROM copied WHERE copied.relid = o.oid))) AS given_away,
           has_schema_privilege(c.relnamespace, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
               AND NOT row_security_active(c.oid)
    FROM copied JOIN pg_class c ON c.oid = copied.relid LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.relkind = 'r' AND pg_relation_filenode(c.oid) IS NOT NULL
      AND (c.relfilenode <> pg_relation_filenode(c.oid) OR t.relfilenode IS DISTINCT FROM pg_relation_filenode(t.oid))
"""

# Both are of tables that the snapshot knows; pg_partition_tree answers for now. What was dropped has no rows.
_REGROUPED = """
    WITH RECURSIVE before(relid) AS (
        SELECT %(relid)s::oid
        UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN before ON i.inhparent = before.relid),
    now(relid) AS (SELECT relid::oid FROM pg_partition_tree(%(relid)s::oid))
    SELECT EXISTS (
        SELECT FROM pg_class c
        WHERE c.relkind = 'r' AND pg_relation_filenode(c.oid) IS NOT NULL
          AND (c.oid IN (SELECT relid FROM before)) <> (c.oid IN (SELECT relid FROM now)))
"""


def is_regrouped(cursor: Any, relid: int) -> bool:
    """Return whether a table was attached to this root, or detached from it, since. Raises psycopg2 errors.

    A copy reads the partitions of now: it would lack the rows of one that is away for a moment, and have those alone
    of a new one that the snapshot sees.
    """
    cursor.execute(_REGROUPED, {"relid": relid})
    return bool(cursor.fetchone()[0])


def moved_files(cursor: Any, relid: int, *, is_partitioned: bool) -> list[MovedFile]:
    """Return those of a table's files that are others by now. Raises psycopg2 errors.

    It reads a table through where the snapshot sees no row of it; that is as long as its copy would take.
    """
    cursor.execute(_MOVED, {"relid": relid, "is_partitioned": is_partitioned})
    files = []
    for name, is_own, is_empty, may_be_anothers, may_ask in cursor.fetchall():
        is_asked = is_own and not is_empty and not may_be_anothers and may_ask
        sees_rows = is_asked and _sees_rows(cursor, name)
        files.append(MovedFile(is_own, is_empty, may_be_anothers, sees_rows))
    return files


def _sees_rows(cursor: Any, quoted_name: str) -> bool:
    cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM ONLY {})").format(sql.SQL(quoted_name)))
    return bool(cursor.fetchone()[0])
