"""Read the sizes of tables and partitions, and the bounds that divide a table by its key.

In: a cursor inside the snapshot, the tables.  Out: the files of each table, and `KeyBounds`.
Invariant: a partition is read by itself only if the role may read all of it; otherwise the table is one file, read
with all of its partitions. A wrong size or a missing bound changes the speed only.
Must not: wait for the lock of a table, unless a session takes it in this moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cdcd.snapshot.chunk_sql import KEY_COLUMNS
from cdcd.snapshot.key_sql import BASE_TYPE, DESCRIBED, KeyColumn, key_columns, order_of
from cdcd.snapshot.units import CopiedTable, KeyBounds, TableFile, estimated_rows

# pg_relation_size waits for AccessShareLock, so a locked table has its last known size; of a table that was dropped
# since, the function returns NULL.
_FILES = """
    WITH RECURSIVE locked AS MATERIALIZED (
        SELECT DISTINCT l.relation FROM pg_locks l WHERE l.mode = 'AccessExclusiveLock' AND l.relation IS NOT NULL
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
    part(root, relid) AS (
        SELECT c.oid, c.oid FROM pg_class c WHERE c.oid = ANY(%s::oid[])
        UNION ALL
        SELECT part.root, i.inhrelid FROM part JOIN pg_class p ON p.oid = part.relid AND p.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = part.relid),
    sized(root, relid, pages) AS (
        SELECT part.root, c.oid, CASE WHEN c.oid IN (SELECT l.relation FROM locked l) THEN c.relpages::int8
            ELSE coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8 END
        FROM part JOIN pg_class c ON c.oid = part.relid WHERE c.relkind <> 'p')
    SELECT part.root::int8, c.oid::int8, c.oid = part.root, part.pages,
           c.oid = part.root OR c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT')
               AND has_schema_privilege(c.relnamespace, 'USAGE') AND NOT row_security_active(c.oid),
           CASE WHEN part.pages = 0 THEN 0
                WHEN c.reltuples >= 0 AND c.relpages > 0 THEN c.reltuples::int8 END,
           pg_relation_filenode(c.oid)::int8
    FROM sized part JOIN pg_class c ON c.oid = part.relid
    ORDER BY 1, 2
"""
# The first column of the primary key, whose index has the order of the statistics; the view shows the statistics of
# tables that the role may read.
_BOUNDS = f"""
    SELECT c.oid::int8, s.histogram_bounds::text::text[], {DESCRIBED}
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
    JOIN pg_type t ON t.oid = {BASE_TYPE} JOIN pg_namespace tn ON tn.oid = t.typnamespace
    JOIN pg_opclass oc ON oc.oid = i.indclass[0]
    LEFT JOIN pg_collation cl ON cl.oid = i.indcollation[0]
    LEFT JOIN pg_namespace cn ON cn.oid = cl.collnamespace
    JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
    WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'r' AND NOT s.inherited AND s.histogram_bounds IS NOT NULL
"""  # noqa: S608 - a constant


# As `chunk_reader` names them: a row of pg_inherits has the transaction that attached the partition.
_PARTITIONS = """
    WITH RECURSIVE part(root, relid, name) AS (
        SELECT c.oid, c.oid, NULL FROM pg_class c WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'p'
        UNION ALL
        SELECT part.root, i.inhrelid, i.inhrelid || ':' || i.xmin::text
        FROM part JOIN pg_inherits i ON i.inhparent = part.relid)
    SELECT root::int8, name FROM part WHERE name IS NOT NULL ORDER BY root, relid
"""


def partitions_of(cursor: Any, tables: Sequence[CopiedTable]) -> dict[int, tuple[str, ...]]:
    """Return the names of the partitions of the partitioned tables, by relid. Raises psycopg2 errors."""
    cursor.execute(_PARTITIONS, ([table.relid for table in tables if table.is_partitioned],))
    found: dict[int, tuple[str, ...]] = {}
    for root, name in cursor.fetchall():
        found[root] = (*found.get(root, ()), name)
    return found


def files_of(
    cursor: Any, tables: Sequence[CopiedTable], *, with_bounds: bool
) -> tuple[dict[int, list[TableFile]], dict[int, KeyBounds]]:
    """Return the files, and with `with_bounds` the key bounds, of the tables by relid. Raises psycopg2 errors."""
    relids = [table.relid for table in tables]
    cursor.execute(_FILES, (relids,))
    files = _by_table(cursor.fetchall())
    if not with_bounds:
        return files, {}
    cursor.execute(_BOUNDS, (relids,))
    key_of = {table.relid: table.key for table in tables}
    found: dict[int, KeyBounds] = {}
    for relid, values, *described in cursor.fetchall():
        (column,) = key_columns([described])
        found[relid] = KeyBounds(column, tuple(values), _order(cursor, relid, key_of[relid], column))
    return files, found


def _order(cursor: Any, relid: int, key: Sequence[str], first: KeyColumn) -> tuple[str, ...]:
    """Return the order of an incremental snapshot by this key, () if it does not begin with this column's."""
    cursor.execute(KEY_COLUMNS, {"relid": relid, "columns": list(key)})
    columns = key_columns(cursor.fetchall())
    return order_of(columns) if columns[:1] == (first,) else ()


def _by_table(
    rows: Iterable[tuple[int, int, bool, int, bool, int | None, int | None]],
) -> dict[int, list[TableFile]]:
    files: dict[int, list[TableFile]] = {}
    unreadable: set[int] = set()
    for root, relid, is_own, pages, may_read, estimate, node in rows:
        files.setdefault(root, []).append(TableFile(pages, None if is_own else relid, estimate, node))
        if not may_read:
            unreadable.add(root)
    for root in unreadable:
        rows_of_all = estimated_rows(files[root])
        files[root] = [TableFile(sum(file.pages for file in files[root]), rows=rows_of_all)]
    return files
