"""Find the columns of old rows that the WAL lacks for partitions published via their root. Blocking.

In: a SQL connection, the roots with the keys of their records.  Out: `Shortfall`s, each with the SQL to resolve it.
Invariant: with publish_via_partition_root the rows of a partition are published as its root's, but their old tuples
depend on the partition's own replica identity, which ALTER TABLE on the root does not change (F78).
Must not: wait for a lock on a user's table: only catalog rows are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.model import ReplicaIdentity
from cdcd.schema.identity import PartitionIdentity, full_identity_sql, old_tuples
from cdcd.source.connection import fetch
from cdcd.source.key_index import TableKeys, table_keys
from cdcd.source.start import quote_identifier

_SHOWN_PARTITIONS = 3

# The same as `key_index.table_keys(...).sent(identity)`, without the search for flaws in each index, which the query
# every ten seconds does not need: 0.05 s instead of 1.5 s for 2,000 partitions.
_IDENTITY_COLUMNS = """
    ARRAY(SELECT a.attname::text FROM pg_index i
          CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
          WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indisvalid AND i.indimmediate
            AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
                                    WHEN 'n' THEN false ELSE i.indisprimary END
          ORDER BY k.place)
"""

_PARTITIONS = f"""
    WITH RECURSIVE tree (root, relid) AS (
        SELECT root, root FROM unnest(%s::oid[]) AS r (root)
        UNION ALL
        SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid
    )
    SELECT t.root, n.nspname::text, c.relname::text, c.relreplident::text, {_IDENTITY_COLUMNS}
    FROM tree t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r'
"""  # noqa: S608 - no part of it comes from outside

_ROOTS = """
    SELECT c.oid, n.nspname::text, c.relname::text, c.relreplident::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY(%s::oid[]) AND c.relkind = 'p'
"""


@dataclass(frozen=True, slots=True)
class Root:
    """A partitioned table under which the rows of its partitions are published.

    `key`: the columns of its records' key, empty without one. `name`: schema.table, not quoted.
    """

    relid: int
    name: str
    identity: ReplicaIdentity
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The data that changes in some partitions of `table` lack, and the SQL that resolves it for later changes."""

    table: str
    message: str
    hint: str


def shortfalls(connection: Connection, roots: Sequence[Root]) -> list[Shortfall]:
    """Return the shortfalls of the partitions of these roots, in the order of the roots. Raises Source errors."""
    if not roots:
        return []
    found: dict[int, list[PartitionIdentity]] = {root.relid: [] for root in roots}
    for root, schema, name, identity, columns in fetch(
        connection, _PARTITIONS, ([root.relid for root in roots],)
    ):
        is_full = ReplicaIdentity(identity) is ReplicaIdentity.FULL
        quoted = f"{quote_identifier(schema)}.{quote_identifier(name)}"
        found[root].append(PartitionIdentity(quoted, is_full, frozenset(columns) if columns else None))
    return [one for root in roots for one in judge(root, found[root.relid])]


def roots_among(connection: Connection, relids: Collection[int]) -> list[Root]:
    """Return the partitioned tables among these, with the key that the database defines.

    Raises Source errors.
    """
    if not relids:
        return []
    keys = table_keys(connection, relids)
    return [
        Root(
            relid,
            f"{schema}.{name}",
            ReplicaIdentity(letter),
            keys.get(relid, TableKeys()).enforced(ReplicaIdentity(letter)),
        )
        for relid, schema, name, letter in fetch(connection, _ROOTS, (list(relids),))
    ]


def judge(root: Root, partitions: Iterable[PartitionIdentity]) -> Iterator[Shortfall]:
    """Yield the data that may be missing in changes of these partitions; the root publishes updates and deletes."""
    partitions = sorted(partitions, key=lambda one: one.name)
    without = [one.name for one in partitions if not one.is_full and one.columns is None]
    if without:
        message = f"PostgreSQL refuses UPDATE and DELETE in partition {_listed(without)}: no replica identity"
        yield Shortfall(root.name, message, full_identity_sql(without))
    old = old_tuples(partitions, root.key)
    if old is None:
        return
    partial = [one.name for one in partitions if not one.is_full and one.columns is not None]
    if old.short:
        key = f"does not include the record's key ({', '.join(root.key)})" if root.key else "is not FULL"
        message = (
            f"an UPDATE or DELETE in partition {_listed(old.short)} halts cdcd (CDCD-REPLICA-IDENTITY): "
            f"its replica identity {key}, so the change does not identify its row"
        )
        named = "" if root.key else "; or name the columns of a key in format.key_columns"
        yield Shortfall(root.name, message, full_identity_sql(old.short) + named)
    elif root.identity is ReplicaIdentity.FULL:
        message = (
            f"changes in partition {_listed(partial)} lack the old values of columns that are not in its replica "
            "identity: they are null in `before` and named in source.special as not_logged; and a change of the key "
            "lacks its unchanged TOASTed values"
        )
        yield Shortfall(root.name, message, full_identity_sql(partial))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_PARTITIONS])
    return shown if len(names) <= _SHOWN_PARTITIONS else f"{shown} and {len(names) - _SHOWN_PARTITIONS} more"
