"""The columns that old tuples of a partitioned table may lack, compared with the record's key.

In: the partitions' replica identities, the columns of the record's key.  Out: an `OldTuples`, or None where no column
may be missing.
Invariant: with publish_via_partition_root PostgreSQL sends the root's Relation message and the root's letter (`K`,
`O`), but the partition's replica identity determined the tuple in the WAL (F78). A column is certainly in the tuple
only if it is in the identity of every partition from which the row may have come; a null is certainly NULL only where
all of them are FULL.
Must not: report a partition without an identity: PostgreSQL refuses UPDATE and DELETE on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """A partition's replica identity: FULL, or the columns of its index that are sent, None without one.

    `name`: quoted for SQL. `is_sure`: the identity is known to be that of the time of the changes.
    """

    name: str
    is_full: bool
    columns: frozenset[str] | None = None
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class OldTuples:
    """The columns that old tuples of a table may lack.

    `partial`: the identities of partitions that are not FULL: in an old tuple with exactly these columns, a null may
    be an omitted value; `is_sure`: there are no others. `short`: the names of the partitions whose identity does not
    identify a row: it lacks columns of the record's key, or the records have no key.
    """

    partial: frozenset[frozenset[str]]
    short: tuple[str, ...]
    is_sure: bool = True


def old_tuples(partitions: Iterable[PartitionIdentity], key: Collection[str]) -> OldTuples | None:
    """Return the columns that may be missing; None: all partitions are FULL, or get no UPDATE and DELETE.

    `key`: the columns of the record's key, empty without one.
    """
    partial = [(one, one.columns) for one in partitions if not one.is_full and one.columns is not None]
    if not partial:
        return None
    short = sorted(one.name for one, columns in partial if not key or not columns.issuperset(key))
    is_sure = all(one.is_sure for one, _ in partial)
    return OldTuples(frozenset(columns for _, columns in partial), tuple(short), is_sure)


def full_identity_sql(names: Iterable[str]) -> str:
    """Return the statements that make these tables' identities FULL; the names are quoted for SQL."""
    return "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names)
