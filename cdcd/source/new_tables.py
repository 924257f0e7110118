"""Find the new tables of which the stream has every row, so that no copy is needed. Blocking.

In: a SQL connection, the publications before and now, the tables that joined in between.  Out: some of these tables.
Invariant: a table is returned only if it was published at each moment since its creation, and was created after the
earlier state. It is: the publication has all tables, or the table's schema, has had them before, and was not altered;
and the table never changed its schema, its kind or its file: its type still has the row version that it was created
with, in the same command as the system columns; the table's own row is of the same transaction; its file has its oid.
Why not by age: a transaction id says nothing about tables that were filled before they joined.
Must not: wait for a lock.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cdcd.source.connection import fetch
from cdcd.source.publication_diff import Publication, Published

# SET SCHEMA and RENAME write the type's row; SET LOGGED, ATTACH and DETACH the table's. The system column's row
# remains as it was created.
_UNCHANGED = """
    SELECT c.oid::int8 FROM pg_class c
    JOIN pg_type t ON t.oid = c.reltype
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'ctid' AND a.attnum < 0
    WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition
          AND c.relfilenode = c.oid AND c.xmin = a.xmin AND t.xmin = a.xmin AND t.cmin = a.cmin
"""


def with_every_row(
    connection: Any, before: Published, now: Published, relids: Collection[int]
) -> frozenset[int]:
    """Return the tables that were published since they were created, after `before`. Raises Source errors."""
    candidates = [
        relid
        for relid in relids
        if any(_is_by_rule(before.get(name), publication, relid) for name, publication in now.items())
    ]
    if not candidates:
        return frozenset()
    return frozenset(relid for (relid,) in fetch(connection, _UNCHANGED, (candidates,)))


def _is_by_rule(was: Publication | None, now: Publication, relid: int) -> bool:
    """Return whether a publication that was not altered has the table as one of all tables, or by its schema."""
    table = now.tables.get(relid)
    if was is None or table is None or (was.oid, was.version) != (now.oid, now.version):
        return False
    is_known = table.entry == 0 or any(one.entry == table.entry for one in was.tables.values())
    return is_known and "insert" in now.operations
