"""Relations that a session has described, and those that each streamed transaction has (F29, F43).

In: Relation messages with the order in which they came.  Out: `model.Relation`s by relid.
Invariant: a streamed transaction's relations touch nothing but its own cache until it commits; then, of
two descriptions of a relid the one that came later on the wire is the session's, as that is the last one the
server believes to have sent.
Must not: outlive its walsender session; relids are described again in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdcd.errors import RelationUnknown
from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.pgoutput import messages


def relation_of(message: messages.Relation) -> Relation:
    """Return the Relation message as the rest of cdcd knows it: an empty namespace means pg_catalog."""
    return Relation(
        relid=message.relid,
        schema=schema_of(message.namespace),
        name=message.name,
        identity=ReplicaIdentity(message.identity),
        columns=tuple(Column(c.name, c.type_oid, c.typmod, c.is_key) for c in message.columns),
    )


def schema_of(namespace: str) -> str:
    """Return the schema's name for a namespace on the wire."""
    return namespace or "pg_catalog"


class RelationCache:
    """Relations by relid, each with the ordinal of the message that described it last.

    Caches made `shared_with` one another hold one object of what they describe alike: there may be many open streams,
    and what they describe stays in memory while their rows are on disk.
    """

    __slots__ = ("_described", "_partitions", "_seen")

    def __init__(self, shared_with: RelationCache | None = None) -> None:
        self._seen: dict[int, tuple[int, Relation]] = {}
        self._described: dict[int, Relation] = {} if shared_with is None else shared_with._described
        self._partitions: dict[int, set[int]] = {}

    def see(self, relation: Relation, ordinal: int) -> None:
        """Remember a description; it replaces the relid's former one."""
        described = self._described.get(relation.relid)
        if described is None or described != relation:
            described = self._described[relation.relid] = relation
        self._note(relation.relid, (ordinal, described))

    def as_published(self, relation: Relation) -> Relation:
        """Return a new description with what rows have shown of this relid so far: as which table they come (F78)."""
        seen = self._seen.get(relation.relid)
        return relation if seen is None else replace(relation, published_as=seen[1].published_as)

    def partitions_of(self, relids: Iterable[int]) -> tuple[int, ...]:
        """Return the relids whose rows come as those of one of these tables (F78)."""
        return tuple(sorted(set().union(*(self._partitions.get(relid, ()) for relid in relids))))

    def resolve(self, relids: tuple[int, ...]) -> tuple[Relation, ...]:
        """Return the relations of these relids; RelationUnknown for one that was not described (F43)."""
        for relid in relids:
            if relid not in self._seen:
                raise RelationUnknown(f"relation {relid} was not described before its use", relid=relid)
        return tuple(self._seen[relid][1] for relid in relids)

    def __contains__(self, relid: int) -> bool:
        """Whether the relid was described."""
        return relid in self._seen

    def adopt(self, relids: tuple[int, ...], other: RelationCache) -> tuple[Relation, ...]:
        """Take over what the other cache knows of these relids and return it; RelationUnknown as `resolve`."""
        adopted = other.resolve(relids)
        for relid in relids:
            self._note(relid, other._seen[relid])
        return adopted

    def says(self, relation: Relation) -> bool:
        """Whether this is how the relid is described here now."""
        found = self._seen.get(relation.relid)
        return found is not None and found[1] == relation

    def merge(self, overlay: RelationCache) -> Iterator[Relation]:
        """Take in what a committed stream described; yield the relations where this cache's differ and stay.

        Those came later on the wire than the stream's, so they are in force after the stream's replay again.
        """
        for relid, (ordinal, relation) in overlay._seen.items():
            mine = self._seen.get(relid)
            if mine is None or mine[0] < ordinal:
                self._note(relid, (ordinal, relation))
            elif mine[1] != relation:
                yield mine[1]

    def _note(self, relid: int, seen: tuple[int, Relation]) -> None:
        was, now = self._seen.get(relid), seen[1].published_as
        if was is not None and was[1].published_as is not None:
            self._partitions[was[1].published_as].discard(relid)
        if now is not None:
            self._partitions.setdefault(now, set()).add(relid)
        self._seen[relid] = seen
