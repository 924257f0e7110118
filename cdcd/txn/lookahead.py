"""Which relations have rows in what has come already, so that what takes time for each is done for all at once.

In: events of a replay, or items of the wire, that are not handled yet.  Out: the relids that have rows, and how they
are described there.
Invariant: nothing is taken away, and nothing found here is a description to encode by: that comes in its turn.
A relation without a row is none: a partition is described along with the root that its rows are published as.
Must not: look into a row, or be asked for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cdcd.model import Control, Item, Relation, RowBatch
from cdcd.pgoutput import messages
from cdcd.pgoutput.decode import decode
from cdcd.txn.events import Event, RelationSeen, Rows
from cdcd.txn.frames import count_operations
from cdcd.txn.relations import relation_of

MOST_EVENTS = 4_096
MOST_BYTES = 1 << 20
_OUTSIDE_OF_STREAMS = frozenset(b"BORYCTM")
_RELATION = b"R"


class Lookahead(NamedTuple):
    """What is found: relids with rows, and the last description of each relation that has one."""

    relids: set[int]
    described: dict[int, Relation]


def of_events(events: Iterable[Event]) -> Lookahead:
    """Return what is in these events."""
    ahead = Lookahead(set(), {})
    for event in events:
        if isinstance(event, Rows):
            ahead.relids.update(relid for relid, _ in count_operations(event.batch))
        elif isinstance(event, RelationSeen):
            ahead.described[event.relation.relid] = event.relation
    return ahead


def of_items(items: Iterable[Item]) -> Lookahead:
    """Return what is in these items, up to the first segment of a stream: that may be rolled back."""
    ahead = Lookahead(set(), {})
    for item in items:
        if isinstance(item, RowBatch):
            if item.xid is not None:
                break
            ahead.relids.update(relid for relid, _ in count_operations(item))
        elif isinstance(item, Control):
            if item.payload[0] not in _OUTSIDE_OF_STREAMS:
                break
            if item.payload[:1] == _RELATION:
                relation = _relation(item)
                ahead.described[relation.relid] = relation
    return ahead


def _relation(item: Control) -> Relation:
    # Outside of streams it has the same form in each version.
    message = decode(item.payload, in_stream=False, protocol_version=1, streaming_parallel=False)
    assert isinstance(message, messages.Relation)
    return relation_of(message)
