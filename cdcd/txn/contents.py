"""Convert the messages of a transaction that are not rows to events: live, stored and replayed messages alike.

In: a decoded message, the relations that it may refer to.  Out: its event.
Invariant: a relation that a message refers to was described before (F43); a Message is transactional if and only if
it is inside a transaction.
Must not: have state of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from cdcd.model import Control, TransactionInfo
from cdcd.pgoutput import messages
from cdcd.pgoutput.messages import AnyMessage
from cdcd.txn.events import LogicalMessage, RelationSeen, Truncated, TypeSeen
from cdcd.txn.relations import RelationCache, relation_of, schema_of
from cdcd.txn.states import State, out_of_order

M = TypeVar("M")


def event_of(
    item: Control, message: AnyMessage, relations: RelationCache, ordinal: int, state: State
) -> RelationSeen | TypeSeen | Truncated | LogicalMessage:
    """Return the event of a message; a Relation is added to `relations` with `ordinal`. Raises RelationUnknown."""
    if isinstance(message, messages.Relation):
        relation = relations.as_published(relation_of(message))
        relations.see(relation, ordinal)
        return RelationSeen(relation, item.lsn)
    if isinstance(message, messages.Type):
        return TypeSeen(message.type_oid, schema_of(message.namespace), message.name)
    if isinstance(message, messages.Truncate):
        truncated = relations.resolve(message.relids)
        return Truncated(truncated, message.cascade, message.restart_identity, item.lsn)
    return logical_message(expect(message, messages.Message), state)


def logical_message(message: messages.Message, state: State) -> LogicalMessage:
    """Return the event of a Message. Raises MessageOutOfOrder if its transactional flag contradicts the state."""
    if message.transactional == (state is State.OUTSIDE):
        name = "a transactional Message" if message.transactional else "a non-transactional Message"
        raise out_of_order(state, name)
    return LogicalMessage(message.transactional, message.lsn, message.prefix, message.content)


def with_origin(info: TransactionInfo, origin: messages.Origin) -> TransactionInfo:
    """Return the info with an Origin's name and LSN."""
    # The origin's LSN is 0 if the server does not know it, as always at the start of a stream.
    return replace(info, origin=origin.name, origin_lsn=origin.commit_lsn or None)


def expect(value: object, cls: type[M]) -> M:
    """Return the value with the type that the state table guarantees."""
    assert isinstance(value, cls), f"{type(value).__name__} where the state table allows {cls.__name__}"
    return value
