"""What the old tuples of a table's changes have, where it is not what the record's key wants.

In: the replica identities by which they were formed, the columns of the record's key.  Out: an `OldTuples`, or None
where nothing may be missing.
Invariant: with publish_via_partition_root PostgreSQL sends the root's Relation message and the root's letter (`K`,
`O`), but the tuple was written to the WAL by the partition's replica identity (F78). A column is known to be in it
only if it is in the identity of every partition from which the row may have come; a null is known to be NULL only
where all of them are FULL.
Must not: judge a partition that has no identity at all: PostgreSQL refuses UPDATE and DELETE on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """A partition's replica identity: FULL, or the columns of its index that are sent, None without one.

    `name`: quoted for SQL. `is_sure`: it is known to have been so when the changes were made.
    """

    name: str
    is_full: bool
    columns: frozenset[str] | None = None
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class OldTuples:
    """What old tuples of a table may lack. `partial`: the identities of partitions that are not FULL, so that in an
    old tuple with just these columns a null may be no NULL; `is_sure`: these are all of them. `short`: the names of
    those by whose identity a change does not name its row: columns of the record's key are not in it, or the records
    have no key.
    """

    partial: frozenset[frozenset[str]]
    short: tuple[str, ...]
    is_sure: bool = True


def old_tuples(partitions: Iterable[PartitionIdentity], key: Collection[str]) -> OldTuples | None:
    """Return what may be missing; None: all partitions are FULL, or get no UPDATE and DELETE.

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
