"""Detect whether a publication was changed after the snapshot was taken, or a table attached to a published one.

In: two cursors, one inside the snapshot.  Out: row versions of the publications, equal if no publication was changed;
the attachments of partitions.
Why: the server decodes each change by the publications at the time of the change (F42). If a table is added after the
snapshot was taken, neither the stream nor the snapshot has the changes in between.
Must not: lock a table, as the server's own view of published tables does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

# A catalog row that was updated, or deleted and inserted again, has the transaction id of that change as its xmin.
_VERSIONS = """
    SELECT p.pubname::text, 'publication', p.oid::int8, p.xmin::text
    FROM pg_publication p WHERE p.pubname = ANY(%(names)s)
    UNION ALL
    SELECT p.pubname::text, 'table', r.prrelid::int8, r.xmin::text
    FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = ANY(%(names)s)
    {schemas}
    ORDER BY 1, 2, 3
"""
_SCHEMAS = """
    UNION ALL
    SELECT p.pubname::text, 'schema', s.pnnspid::int8, s.xmin::text
    FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = ANY(%(names)s)
"""
# Tables that inherit without being partitions are published by themselves.
_ATTACHED = """
    WITH RECURSIVE attachments (child, parent, version) AS (
        SELECT i.inhrelid, i.inhparent, i.xmin::text FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relispartition),
    above (relid, child, parent, version) AS (
        SELECT child, child, parent, version FROM attachments WHERE child = ANY(%(relids)s::oid[])
        UNION SELECT a.relid, t.child, t.parent, t.version FROM above a JOIN attachments t ON t.child = a.parent),
    below (relid, child, parent, version) AS (
        SELECT parent, child, parent, version FROM attachments WHERE parent = ANY(%(relids)s::oid[])
        UNION SELECT b.relid, t.child, t.parent, t.version FROM below b JOIN attachments t ON t.parent = b.child)
    SELECT relid::int8, child::int8, parent::int8, version FROM above
    UNION SELECT relid::int8, child::int8, parent::int8, version FROM below
"""
# The row type of a table is as old as the table; pg_class is written again when it is attached.
_CREATED_EMPTY = """
    SELECT i.inhrelid::int8, i.inhparent::int8, i.xmin::text
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_type t ON t.oid = c.reltype
    WHERE i.inhrelid = ANY(%s::oid[]) AND t.xmin = i.xmin AND NOT EXISTS (
        SELECT FROM pg_partition_tree(i.inhrelid) p JOIN pg_class f ON f.oid = p.relid
        WHERE f.relkind NOT IN ('r', 'p') OR pg_relation_size(f.oid) > 0)
"""
_SCHEMAS_SINCE_VERSION = 150_000


def publication_versions(cursor: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the row version (xmin) of each publication, its tables and its schemas. Raises psycopg2 errors."""
    has_schemas = cursor.connection.server_version >= _SCHEMAS_SINCE_VERSION
    cursor.execute(_VERSIONS.format(schemas=_SCHEMAS if has_schemas else ""), {"names": list(names)})
    return list(cursor.fetchall())


def attached_to(cursor: Any, relids: Sequence[int]) -> set[tuple[Any, ...]]:
    """Return the attachments of partitions that these tables are published by, or consist of. Raises psycopg2 errors.

    A partition is published with its partitioned table from the moment when it is attached (F42). An attachment is
    the oid of the table, those of partition and partitioned table, and the transaction that made it.
    """
    cursor.execute(_ATTACHED, {"relids": list(relids)})
    return set(cursor.fetchall())


def with_rows(cursor: Any, attachments: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Return attachments without those of partitions that were created so and are empty. Raises psycopg2 errors.

    All rows of such a partition are in the stream: it had none before it was attached, and has none yet.
    """
    found = set(attachments)
    cursor.execute(_CREATED_EMPTY, ([child for _, child, *_ in found],))
    empty = set(cursor.fetchall())
    return {one for one in found if one[1:] not in empty}
