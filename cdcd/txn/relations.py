"""The relations described to a session, and those described in each streamed transaction (F29, F43).

In: Relation messages with their order of arrival.  Out: `model.Relation`s by relid.
Invariant: a streamed transaction's relations change only its own cache until it commits. Then, of two descriptions of
a relid, the later one on the wire becomes the session's, because it is the last one that the server has recorded as
sent.
Must not: outlive its walsender session; relids are described again in each session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdcd.errors import RelationUnknown
from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.pgoutput import messages


def relation_of(message: messages.Relation) -> Relation:
    """Return the `model.Relation` of a Relation message: an empty namespace means pg_catalog."""
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

    Caches that are `shared_with` one another use one object for equal descriptions: there may be many open streams,
    and their descriptions stay in memory while their rows are on disk.
    """

    __slots__ = ("_described", "_partitions", "_seen")

    def __init__(self, shared_with: RelationCache | None = None) -> None:
        self._seen: dict[int, tuple[int, Relation]] = {}
        self._described: dict[int, Relation] = {} if shared_with is None else shared_with._described
        self._partitions: dict[int, set[int]] = {}

    def see(self, relation: Relation, ordinal: int) -> None:
        """Store a description; it replaces the relid's previous one."""
        described = self._described.get(relation.relid)
        if described is None or described != relation:
            described = self._described[relation.relid] = relation
        self._note(relation.relid, (ordinal, described))

    def as_published(self, relation: Relation) -> Relation:
        """Return a new description with the `published_as` that rows of this relid have shown so far (F78)."""
        seen = self._seen.get(relation.relid)
        return relation if seen is None else replace(relation, published_as=seen[1].published_as)

    def partitions_of(self, relids: Iterable[int]) -> tuple[int, ...]:
        """Return the relids whose rows are published as those of one of these tables (F78)."""
        return tuple(sorted(set().union(*(self._partitions.get(relid, ()) for relid in relids))))

    def resolve(self, relids: tuple[int, ...]) -> tuple[Relation, ...]:
        """Return the relations of these relids. Raises RelationUnknown if one was not described (F43)."""
        for relid in relids:
            if relid not in self._seen:
                raise RelationUnknown(f"relation {relid} was not described before its use", relid=relid)
        return tuple(self._seen[relid][1] for relid in relids)

    def __contains__(self, relid: int) -> bool:
        """Return whether the relid was described."""
        return relid in self._seen

    def adopt(self, relids: tuple[int, ...], other: RelationCache) -> tuple[Relation, ...]:
        """Copy the other cache's relations of these relids and return them. Raises RelationUnknown as `resolve`."""
        adopted = other.resolve(relids)
        for relid in relids:
            self._note(relid, other._seen[relid])
        return adopted

    def says(self, relation: Relation) -> bool:
        """Return whether this is the current description of the relid here."""
        found = self._seen.get(relation.relid)
        return found is not None and found[1] == relation

    def merge(self, overlay: RelationCache) -> Iterator[Relation]:
        """Merge the descriptions of a committed stream; yield this cache's relations that differ and remain valid.

        The yielded relations were sent later than the stream's, so they are valid again after the stream's replay.
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
