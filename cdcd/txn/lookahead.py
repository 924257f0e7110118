"""Find the relations that have rows in data received ahead, so that slow work is done for all of them at once.

In: events of a replay, or items of the wire, that are not processed yet.  Out: the relids that have rows, and their
last descriptions there.
Invariant: no event or item is removed. Rows are not encoded by the descriptions found here, but by the events later.
A relation without rows is left out: the server also describes a partition whose rows are published as its root's.
Must not: decode a row, or be called for each row.
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
    """The relids with rows, and the last description of each described relation."""

    relids: set[int]
    described: dict[int, Relation]


def of_events(events: Iterable[Event]) -> Lookahead:
    """Return the relations in these events. Raises MessageTruncated."""
    ahead = Lookahead(set(), {})
    for event in events:
        if isinstance(event, Rows):
            ahead.relids.update(relid for relid, _ in count_operations(event.batch))
        elif isinstance(event, RelationSeen):
            ahead.described[event.relation.relid] = event.relation
    return ahead


def of_items(items: Iterable[Item]) -> Lookahead:
    """Return the relations in these items up to the first stream segment, which may be rolled back."""
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
    # Outside streams a Relation message has the same format in each protocol version.
    message = decode(item.payload, in_stream=False, protocol_version=1, streaming_parallel=False)
    assert isinstance(message, messages.Relation)
    return relation_of(message)
