"""Detect whether a publication was changed after the snapshot was taken, or a table attached to a published one.

In: two cursors, one inside the snapshot.  Out: row versions of the publications, equal if no publication was changed;
the attachments of partitions.
Why: the server decodes each change by the publications at the time of the change (F42). If a table is added after the
snapshot was taken, neither the stream nor the snapshot has the changes in between.
Must not: lock a table, as the server's own view of published tables does.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_ATTACHED = """
    WITH RECURSIVE above (relid) AS (
        SELECT unnest(%(relids)s::oid[])
        UNION SELECT i.inhparent FROM above a JOIN pg_inherits i ON i.inhrelid = a.relid),
    below (relid) AS (
        SELECT unnest(%(relids)s::oid[])
        UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.relid)
    SELECT i.inhrelid::int8, i.inhparent::int8, i.xmin::text FROM pg_inherits i
    WHERE i.inhrelid IN (SELECT relid FROM above) OR i.inhparent IN (SELECT relid FROM below)
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
    the oids of both, and the transaction that made it.
    """
    cursor.execute(_ATTACHED, {"relids": list(relids)})
    return set(cursor.fetchall())
