"""Find tables whose rows PostgreSQL has changed without sending them: ADD COLUMN ... DEFAULT, ALTER TYPE.

In: a SQL connection, tables.  Out: `TableForm` of each; `rewritten(before, now)`, pure.
Invariant: a table is found if a column that it did not have before has a value in rows that were there before
(`pg_attribute.atthasmissing`), or if it has another file, and a row of the catalog that describes one of its columns
is another one: ALTER TABLE does both when it writes the rows anew. TRUNCATE, VACUUM FULL, CLUSTER and pg_repack write
another file only. So a table is found needlessly if one of these and a change of a column that leaves the rows alone
are between the same two readings; none is missed. VACUUM FULL after ADD COLUMN ... DEFAULT is such a change.
The files of a partitioned table are those of its partitions.
Must not: wait for a lock, read rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cdcd.source.connection import fetch

__all__ = ["NO_FORMS", "Forms", "FoundForms", "TableForm", "read_forms", "rewritten"]


class TableForm(NamedTuple):
    """`file`: the table's file, or a digest of its partitions and their files; `columns`: a digest of the rows of
    `pg_attribute`; `highest`: the highest number of a column that it has had.
    """

    file: str
    columns: int
    highest: int


Forms = Mapping[int, TableForm]
"""By relid."""


class FoundForms(NamedTuple):
    """The forms of tables. `with_value`: by relid, the columns that have a value in rows without them."""

    forms: Forms = MappingProxyType({})
    with_value: Mapping[int, Collection[int]] = MappingProxyType({})


NO_FORMS = FoundForms()

# A digest that PostgreSQL has in builds that allow no MD5, too.
_DIGEST = "hashtextextended(string_agg({one}, ',' ORDER BY {order}), 0) & 4294967295"
_COLUMNS = _DIGEST.format(one="a.attnum || ':' || a.xmin", order="a.attnum")
_FILES = _DIGEST.format(one="l.oid || ':' || l.relfilenode", order="l.oid")
# A column's number may be another one in a partition. OFFSET 0: without statistics that count the new columns the
# planner would compare each of them with each table.
_FORMS = f"""
    WITH RECURSIVE part(root, relid) AS (
        SELECT c.oid, c.oid FROM pg_class c WHERE c.oid = ANY(%s::oid[])
        UNION ALL
        SELECT part.root, i.inhrelid FROM part JOIN pg_class p ON p.oid = part.relid AND p.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = part.relid),
    files AS (
        SELECT part.root, CASE WHEN count(*) = 1 THEN min(l.relfilenode::int8) ELSE {_FILES} END AS file
        FROM part JOIN pg_class l ON l.oid = part.relid GROUP BY part.root),
    columns AS (
        SELECT a.attrelid, {_COLUMNS} AS digest FROM pg_attribute a
        WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 GROUP BY a.attrelid),
    given AS (
        SELECT part.root, array_agg(DISTINCT a.attnum::int4) AS attnums
        FROM part CROSS JOIN LATERAL (
            SELECT p.attname FROM pg_attribute p
            WHERE p.attrelid = part.relid AND p.attnum > 0 AND p.atthasmissing AND NOT p.attisdropped OFFSET 0) m
        JOIN pg_attribute a ON a.attrelid = part.root AND a.attname = m.attname AND a.attnum > 0
        WHERE NOT a.attisdropped GROUP BY part.root)
    SELECT c.oid::int8, files.file::text, coalesce(columns.digest, 0), c.relnatts::int4, given.attnums
    FROM pg_class c JOIN files ON files.root = c.oid
    LEFT JOIN columns ON columns.attrelid = c.oid LEFT JOIN given ON given.root = c.oid
"""  # noqa: S608 - constants


def read_forms(connection: Any, relids: Collection[int]) -> FoundForms:
    """Return the forms of the tables that exist. Blocking; raises Source errors."""
    if not relids:
        return NO_FORMS
    wanted = sorted(relids)
    forms: dict[int, TableForm] = {}
    with_value: dict[int, Collection[int]] = {}
    for relid, file, columns, count, attnums in fetch(connection, _FORMS, (wanted, wanted)):
        forms[relid] = TableForm(file, columns, count)
        if attnums:
            with_value[relid] = attnums
    return FoundForms(forms, with_value)


def rewritten(before: Forms, now: FoundForms) -> dict[int, bool]:
    """Return the tables whose rows have changed unsent, each with whether all of its rows may have.

    Else only columns have got values, which the rows did not have before.
    """
    found: dict[int, bool] = {}
    for relid, form in now.forms.items():
        was = before.get(relid)
        if was is None:
            continue
        if form.file != was.file and form.columns != was.columns:
            found[relid] = True
        elif any(attnum > was.highest for attnum in now.with_value.get(relid, ())):
            found[relid] = False
    return found
