"""The relations that a session has described: their order on the wire, and the one described last.

In: messages and row batches in the order of the wire.  Out: events; the relation as its rows show it.
Invariant: each Relation message gets a higher ordinal than all before it, live or replayed.
Must not: know which transaction is open.
"""

from __future__ import annotations

from dataclasses import replace

from cdcd.lsn import INVALID_LSN
from cdcd.model import Control, Relation, RowBatch
from cdcd.pgoutput import messages
from cdcd.pgoutput.messages import AnyMessage
from cdcd.txn.contents import event_of
from cdcd.txn.events import LogicalMessage, RelationSeen, Truncated, TypeSeen
from cdcd.txn.frames import first_relid
from cdcd.txn.relations import RelationCache
from cdcd.txn.states import State


class Descriptions:
    """The descriptions of one walsender session."""

    def __init__(self) -> None:
        self.relations = RelationCache()
        """Those that apply to the whole session."""
        self.ordinal = 0
        """The number of Relation messages so far."""
        self.last: Relation | None = None
        """The relation that the last message described, if it was a Relation message."""

    def shown_by(self, batch: RowBatch) -> Relation | None:
        """Return the last described relation with the `published_as` that the next batch shows; None if unchanged.

        The server describes a row's own table last, after the partitioned table under which the row is published. If
        the row names another relid than the last described one, the row's relid is that partitioned table (F78).
        """
        described, self.last = self.last, None
        if described is None:
            return None
        relid = first_relid(batch)
        published_as = None if relid == described.relid else relid
        return (
            None if published_as == described.published_as else replace(described, published_as=published_as)
        )

    def see(self, shown: Relation | None) -> tuple[RelationSeen, ...]:
        """Store a description that applies to the whole session; return its event."""
        if shown is None:
            return ()
        self.relations.see(shown, self.ordinal)
        return (RelationSeen(shown, INVALID_LSN),)

    def event_of(
        self, item: Control, message: AnyMessage, relations: RelationCache, state: State
    ) -> RelationSeen | TypeSeen | Truncated | LogicalMessage:
        """Return the event of a message that is not a row; a Relation gets the next ordinal."""
        self.ordinal += isinstance(message, messages.Relation)
        return event_of(item, message, relations, self.ordinal, state)
