"""The replica identities of the partitions whose rows are published as their root's (F78).

In: the server's descriptions of relations, the catalog.  Out: the old tuples that a relation's rows may have.
Invariant: after another description of a root or of a partition, the partition's identity is looked up again.
Must not: make plans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from cdcd.model import Relation, ReplicaIdentity
from cdcd.schema.identity import OldTuples, PartitionIdentity, old_tuples
from cdcd.source.key_index import TableKeys
from cdcd.source.start import quote_identifier


class Keys(Protocol):
    """The key indexes of the catalog (blocking)."""

    def keys(self, relid: int) -> TableKeys | None: ...  # noqa: D102


class PartitionIdentities:
    """The partitions that the stream has described, by their root."""

    def __init__(self, catalog: Keys) -> None:
        self._catalog = catalog
        self._partitions: dict[int, dict[int, Relation]] = {}
        self._root_of: dict[int, int] = {}
        self._identities: dict[int, PartitionIdentity] = {}

    def clear(self) -> None:
        """Forget all descriptions."""
        self._partitions.clear()
        self._root_of.clear()
        self._identities.clear()

    def forget(self, relation: Relation) -> None:
        """Forget the identities that depend on a relation whose description has changed.

        The server describes a root again with each of its partitions.
        """
        for relid in (relation.relid, *self._partitions.get(relation.relid, ())):
            self._identities.pop(relid, None)

    def note(self, relation: Relation) -> list[int]:
        """Store as which root a table's rows are published; return the roots whose plans depend on it."""
        was, root = self._root_of.pop(relation.relid, None), relation.published_as
        if was is not None:
            del self._partitions[was][relation.relid]
        if root is not None:
            self._root_of[relation.relid] = root
            self._partitions.setdefault(root, {})[relation.relid] = relation
        return [relid for relid in (was, root) if relid is not None]

    def old_tuples(self, relation: Relation, key_columns: tuple[str, ...]) -> OldTuples | None:
        """Return the forms of old tuples of a relation's rows, None if they all have the usual one (blocking)."""
        partitions = self._partitions.get(relation.relid)
        if partitions:
            return old_tuples([self._identity_of(one, relation) for one in partitions.values()], key_columns)
        # A key on a generated column, which PostgreSQL does not send up to 17, makes the table itself such a case.
        own = old_tuples([_described_identity(relation)], key_columns)
        return own if own is not None and own.short else None

    def _identity_of(self, partition: Relation, root: Relation) -> PartitionIdentity:
        """Return a partition's identity as the stream describes it or, if it cannot, as the catalog first had it.

        PostgreSQL 15 to 18 describe a partition by the attribute numbers of its root's column list, which are other
        columns if the partition has another column order. The description is right for the columns that it shows.
        """
        found = self._identities.get(partition.relid)
        if found is None:
            found = self._identities[partition.relid] = self._looked_up(partition, root)
        return found

    def _looked_up(self, partition: Relation, root: Relation) -> PartitionIdentity:
        described = _described_identity(partition)
        names = {column.name for column in partition.columns}
        is_all_shown = names == {column.name for column in root.columns}
        if described.columns is None or (is_all_shown and described.columns):
            return described
        keys = self._catalog.keys(partition.relid) or TableKeys()
        if is_all_shown:
            return described if keys.of(partition.identity) is not None else replace(described, columns=None)
        now = frozenset(keys.sent(partition.identity))
        is_as_shown = now and now & names == described.columns
        return replace(described, columns=now if is_as_shown else described.columns, is_sure=False)


def _described_identity(relation: Relation) -> PartitionIdentity:
    is_indexed = relation.identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX)
    return PartitionIdentity(
        f"{quote_identifier(relation.schema)}.{quote_identifier(relation.name)}",
        relation.identity is ReplicaIdentity.FULL,
        frozenset(column.name for column in relation.columns if column.is_key) if is_indexed else None,
    )
