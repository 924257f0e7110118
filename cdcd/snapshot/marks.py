"""Whether a publication is still as the snapshot saw it.

In: two cursors, one inside the snapshot.  Out: marks of the publications, equal where nothing was changed.
Invariant: what the stream has is published by the publications of then (F42): of a table that was added after the
snapshot it misses the changes from before, and a snapshot that was taken before them has them neither.
Must not: take a lock of a table, as the server's own view of published tables does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# A row that was changed, or deleted and made again, is a new one, with the transaction id of that change.
_MARKS = """
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
_SCHEMAS_SINCE = 150_000


def publication_marks(cursor: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return a mark of each publication, and of each table and schema in its list. Raises psycopg2 errors."""
    has_schemas = cursor.connection.server_version >= _SCHEMAS_SINCE
    cursor.execute(_MARKS.format(schemas=_SCHEMAS if has_schemas else ""), {"names": list(names)})
    return list(cursor.fetchall())
