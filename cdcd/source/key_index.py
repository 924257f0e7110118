"""The unique indexes of a table that may be its records' key, and whether they are unique at every moment.

In: a SQL connection, oids of tables.  Out: `TableKeys` by oid, from the current catalog. Blocking.
Invariant: an index has no flaw only if no statement can leave two rows with the same key for a moment: the index is
valid and not DEFERRABLE, also in every partition. A constraint that is checked at the end of the statement or at
commit allows `UPDATE t SET id = 3 - id`, whose last record is a tombstone for a row that still exists (F82).
Must not: decide which key a topic has (schema/keys.py does), or wait for a lock on a user's table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.model import ReplicaIdentity
from cdcd.source.connection import fetch

# INCLUDE columns follow after indnkeyatts. Partitions of an index may be DEFERRABLE although the index is not, and
# PostgreSQL 18 accepts an invalid one as an identity. `is_total`: the index distinguishes all rows, also with nulls,
# which a column may have although its NOT NULL constraint exists: NOT VALID (contype n, since PostgreSQL 18).
# The last column is `has_nulls`.
_KEY_INDEXES = """
    SELECT i.indrelid, i.indisprimary, i.indisreplident,
           ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                 WHERE k.place <= i.indnkeyatts ORDER BY k.place),
           i.indimmediate AND (i.indisvalid OR {takes_invalid} AND i.indisprimary AND c.relkind = 'p'),
           (SELECT format('index %%s is %%s', l.indexrelid::regclass,
                          CASE WHEN l.indisvalid THEN 'DEFERRABLE' ELSE 'not valid' END)
            FROM (WITH RECURSIVE tree (relid) AS (
                      SELECT i.indexrelid UNION ALL
                      SELECT h.inhrelid FROM tree JOIN pg_inherits h ON h.inhparent = tree.relid)
                  SELECT relid FROM tree) t
            JOIN pg_index l ON l.indexrelid = t.relid
            WHERE NOT (l.indisvalid AND l.indimmediate)
            ORDER BY l.indisvalid DESC, l.indexrelid LIMIT 1),
           i.indexprs IS NULL AND i.indpred IS NULL AND ({nulls_not_distinct} OR NOT nullable.has_nulls),
           nullable.has_nulls
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
            WHERE k.place <= i.indnkeyatts AND (NOT a.attnotnull OR EXISTS (
                SELECT FROM pg_constraint n WHERE n.conrelid = i.indrelid AND n.contype = 'n'
                  AND NOT n.convalidated AND n.conkey[1] = k.attnum)))) AS nullable(has_nulls)
    WHERE i.indrelid = ANY(%s::oid[]) AND i.indisunique
    ORDER BY i.indrelid, i.indexrelid
"""
_NULLS_NOT_DISTINCT_SINCE = 150_000
_TAKES_INVALID_SINCE = 180_000


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """A unique index. `columns` in its order, without expressions; `flaw`: why two rows may share a key, else None.

    `is_identity`: named by REPLICA IDENTITY USING INDEX. `is_sent`: if the index is the identity, the Relation
    message flags its columns. `is_total`: no expressions, no WHERE, and no two rows with the same nulls.
    `has_nulls`: a column may be null in a row.
    """

    is_primary: bool
    is_identity: bool
    columns: tuple[str, ...]
    is_sent: bool
    flaw: str | None
    is_total: bool
    has_nulls: bool = False


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The unique indexes of one table."""

    indexes: tuple[KeyIndex, ...] = ()

    def of(self, identity: ReplicaIdentity) -> KeyIndex | None:
        """Return the index that is the record key for this replica identity, with or without a flaw (F45)."""
        if identity is ReplicaIdentity.NOTHING:
            return None
        is_by_index = identity is ReplicaIdentity.INDEX
        wanted = (one for one in self.indexes if (one.is_identity if is_by_index else one.is_primary))
        return next(wanted, None)

    def enforced(self, identity: ReplicaIdentity) -> tuple[str, ...]:
        """Return the columns of the record key's index if they are unique at every moment, else ()."""
        index = self.of(identity)
        return index.columns if index is not None and index.flaw is None else ()

    def sent(self, identity: ReplicaIdentity) -> tuple[str, ...]:
        """Return the columns that PostgreSQL logs of an old row and flags in the Relation message; () for FULL."""
        index = None if identity is ReplicaIdentity.FULL else self.of(identity)
        return index.columns if index is not None and index.is_sent else ()

    def is_unique(self, columns: Collection[str]) -> bool:
        """Return whether two rows can never have the same values, nulls included, in these columns."""
        has = set(columns)
        return any(one.flaw is None and one.is_total and has.issuperset(one.columns) for one in self.indexes)

    def is_order(self, columns: Collection[str]) -> bool:
        """Return whether every row has its own place in the order of these columns, so that it can be read by them.

        As `KEY_COLUMNS` of the incremental snapshots: an index of just these columns, in which no row has a null.
        """
        return any(
            one.flaw is None and one.is_total and not one.has_nulls and set(one.columns) == set(columns)
            for one in self.indexes
        )


def table_keys(connection: Connection, relids: Iterable[int]) -> dict[int, TableKeys]:
    """Return the unique indexes of the tables that have any. Raises Source errors."""
    has_option = connection.server_version >= _NULLS_NOT_DISTINCT_SINCE
    query = _KEY_INDEXES.format(
        nulls_not_distinct="i.indnullsnotdistinct" if has_option else "false",
        takes_invalid="true" if connection.server_version >= _TAKES_INVALID_SINCE else "false",
    )
    found: dict[int, list[KeyIndex]] = {}
    for relid, is_primary, is_identity, columns, *rest in fetch(connection, query, (list(relids),)):
        found.setdefault(relid, []).append(KeyIndex(is_primary, is_identity, tuple(columns), *rest))
    return {relid: TableKeys(tuple(indexes)) for relid, indexes in found.items()}
