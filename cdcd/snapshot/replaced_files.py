"""Decide whether a snapshot still sees the rows of a table whose file was replaced since the snapshot (F81).

In: a cursor inside the snapshot whose transaction has locked the table.  Out: the table's `Fate`.
Invariant: a replaced file is STALE unless it is proven harmless. TRUNCATE, ALTER TABLE, VACUUM FULL, CLUSTER,
pg_repack, pg_squeeze and REPACK all give a table another file and leave the same traces in the catalog. The file
itself has the proof: either it is empty, so that no row can be missed; or the snapshot sees a row in it, and then the
snapshot sees all rows. A file created after the snapshot has rows visible to the snapshot only if the rows were moved
with their transaction ids, as VACUUM FULL, CLUSTER and SET TABLESPACE do. Commands that insert the rows again use
their own transaction id. The snapshot of a standby has no such proof: VACUUM FULL and CLUSTER omit rows that no
transaction of the primary sees any more, although the standby's snapshot may see them.
Must not: take a lock of its own, or search the stream for a TRUNCATE.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from psycopg2 import sql


class Fate(enum.Enum):
    """What happened to a table's rows since the snapshot was taken."""

    SAME = "same"
    """The snapshot sees its rows."""
    EMPTIED = "emptied"
    """The table has no rows any more: the stream has the TRUNCATE or the DELETEs."""
    STALE = "stale"
    """The table may have rows that neither the snapshot nor the stream has."""


class ReplacedFile(NamedTuple):
    """One table or partition whose own file, or whose TOAST table's file, was replaced.

    `is_own`: the table's own file was replaced. `may_be_anothers`: the file may have belonged to another table when
    the snapshot was taken, and may have rows of that time in another state. `sees_rows`: the snapshot sees a row in
    the file; False also if this cannot be queried.
    """

    relid: int
    is_own: bool
    is_empty: bool
    may_be_anothers: bool
    sees_rows: bool


def fate_of(files: Iterable[ReplacedFile], *, is_standby: bool = False) -> Fate:
    """Return the fate of a table that consists of these files, and of others that were not replaced.

    `is_standby`: the snapshot is one of a standby.
    """
    fates = {_fate_of_file(file, is_standby=is_standby) for file in files}
    return next((fate for fate in (Fate.STALE, Fate.EMPTIED) if fate in fates), Fate.SAME)


def _fate_of_file(file: ReplacedFile, *, is_standby: bool) -> Fate:
    if file.is_empty:
        return Fate.EMPTIED
    # Only visible rows are a proof. If only the TOAST file was replaced, an unknown command wrote its values.
    is_same = file.is_own and file.sees_rows and not file.may_be_anothers and not is_standby
    return Fate.SAME if is_same else Fate.STALE


# pg_class is read as of the snapshot; the functions return the current state. Partitioned and foreign tables have no
# file, and a partition that was dropped since has no rows any more. `given_away`: the file of another table was
# replaced, or that table was dropped, so the new file may have been its: pg_repack may have begun before the
# snapshot.
_REPLACED = """
    WITH RECURSIVE copied(relid) AS (
        SELECT %(relid)s::oid
        UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN copied ON i.inhparent = copied.relid
        WHERE %(is_partitioned)s)
    SELECT c.oid::int8, c.oid::regclass::text,
           c.relfilenode <> pg_relation_filenode(c.oid), pg_relation_size(c.oid) = 0,
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

# Both sets are of tables in the snapshot's pg_class; pg_partition_tree returns the current partitions. Dropped tables
# have no rows.
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
    """Return whether a table was attached to this root, or detached, since the snapshot. Raises psycopg2 errors.

    A copy reads the current partitions: it would miss the rows of a partition that is detached for a moment, and of a
    newly attached partition it would have only the rows that the snapshot sees.
    """
    cursor.execute(_REGROUPED, {"relid": relid})
    return bool(cursor.fetchone()[0])


def replaced_files(cursor: Any, relid: int, *, is_partitioned: bool) -> list[ReplacedFile]:
    """Return the replaced files of a table. Raises psycopg2 errors.

    If the snapshot sees no row in a file, the query reads all of it, which takes as long as its copy would.
    """
    cursor.execute(_REPLACED, {"relid": relid, "is_partitioned": is_partitioned})
    files = []
    for leaf, name, is_own, is_empty, may_be_anothers, may_ask in cursor.fetchall():
        is_asked = is_own and not is_empty and not may_be_anothers and may_ask
        sees_rows = is_asked and _sees_rows(cursor, name)
        files.append(ReplacedFile(leaf, is_own, is_empty, may_be_anothers, sees_rows))
    return files


def _sees_rows(cursor: Any, quoted_name: str) -> bool:
    cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM ONLY {})").format(sql.SQL(quoted_name)))
    return bool(cursor.fetchone()[0])
