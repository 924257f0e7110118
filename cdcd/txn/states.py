"""The legal order of pgoutput messages, as a table: (state, message type) -> (next state, action).

In: a state and a type byte.  Out: a Step, or MessageOutOfOrder that names both (F31).
Source: "Logical Streaming Replication Protocol" and the order in which pgoutput calls its writers. Contents are sent
only between Begin and Commit or inside a stream segment, segments only between transactions. A non-transactional
Message is sent when it is decoded, thus only between transactions. The same messages are legal between Begin Prepare
and Prepare as between Begin and Commit.
Must not: know the effect of an action; the assembler defines it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from cdcd.errors import MessageOutOfOrder
from cdcd.pgoutput.messages import ROWS, MessageFormat


class State(enum.Enum):
    """The session's state in the message flow."""

    OUTSIDE = "outside a transaction"
    IN_TRANSACTION = "in a transaction"
    IN_STREAM = "in a stream segment"
    IN_PREPARED = "in a prepared transaction"


class Action(enum.Enum):
    """The assembler's action for a message."""

    BEGIN = "begin"
    ORIGIN = "note the origin"
    CONTENT = "pass on"
    COMMIT = "commit"
    NON_TRANSACTIONAL_MESSAGE = "pass on, non-transactional"
    STREAM_START = "open the xid's store"
    STREAM_ORIGIN = "note the xid's origin"
    STORE = "store"
    STREAM_MESSAGE = "read again without streaming"
    STREAM_STOP = "close the segment"
    STREAM_COMMIT = "replay the store"
    STREAM_ABORT = "drop from the store"
    PREPARE_BEGIN = "open the gid's store"
    PREPARED_ORIGIN = "note the gid's origin"
    PREPARED_STORE = "store under the gid"
    PREPARE = "hold"
    PREPARE_EMPTY = "hold nothing"
    STREAM_PREPARE = "hold the xid's store"
    COMMIT_PREPARED = "replay the stored messages"
    ROLLBACK_PREPARED = "drop the stored messages"


class Step(NamedTuple):
    """The result of a legal message: the next state and the action."""

    next_state: State
    action: Action


TWO_PHASE = frozenset(
    {
        Action.PREPARE_BEGIN,
        Action.PREPARE,
        Action.PREPARE_EMPTY,
        Action.STREAM_PREPARE,
        Action.COMMIT_PREPARED,
        Action.ROLLBACK_PREPARED,
    }
)
"""The actions of messages that are legal only in a session with two_phase."""

ROW_TYPES = b"IUD"
"""Type bytes of the messages that are passed in row batches."""

_OUTSIDE, _TRANSACTION, _STREAM, _PREPARED = State

_FLOW = (
    (_OUTSIDE, b"B", _TRANSACTION, Action.BEGIN),
    (_OUTSIDE, b"M", _OUTSIDE, Action.NON_TRANSACTIONAL_MESSAGE),
    (_OUTSIDE, b"S", _STREAM, Action.STREAM_START),
    (_OUTSIDE, b"c", _OUTSIDE, Action.STREAM_COMMIT),
    (_OUTSIDE, b"A", _OUTSIDE, Action.STREAM_ABORT),
    (_OUTSIDE, b"b", _PREPARED, Action.PREPARE_BEGIN),
    (_OUTSIDE, b"P", _OUTSIDE, Action.PREPARE_EMPTY),
    (_OUTSIDE, b"p", _OUTSIDE, Action.STREAM_PREPARE),
    (_OUTSIDE, b"K", _OUTSIDE, Action.COMMIT_PREPARED),
    (_OUTSIDE, b"r", _OUTSIDE, Action.ROLLBACK_PREPARED),
    (_TRANSACTION, b"O", _TRANSACTION, Action.ORIGIN),
    (_TRANSACTION, b"RYIUDTM", _TRANSACTION, Action.CONTENT),
    (_TRANSACTION, b"C", _OUTSIDE, Action.COMMIT),
    (_STREAM, b"O", _STREAM, Action.STREAM_ORIGIN),
    (_STREAM, b"RYIUDT", _STREAM, Action.STORE),
    (_STREAM, b"M", _STREAM, Action.STREAM_MESSAGE),
    (_STREAM, b"E", _OUTSIDE, Action.STREAM_STOP),
    (_PREPARED, b"O", _PREPARED, Action.PREPARED_ORIGIN),
    (_PREPARED, b"RYIUDTM", _PREPARED, Action.PREPARED_STORE),
    (_PREPARED, b"P", _OUTSIDE, Action.PREPARE),
)

STEPS = {(state, byte): Step(after, action) for state, types, after, action in _FLOW for byte in types}
"""The table by state and type byte."""


def step(state: State, message: MessageFormat) -> Step:
    """Return the step of a message in this state. Raises MessageOutOfOrder if the message is illegal there."""
    found = STEPS.get((state, message.type_byte))
    if found is None:
        raise out_of_order(state, message.name)
    return found


def out_of_order(state: State, message_name: str, why: str = "") -> MessageOutOfOrder:
    """Return the error that names a message and the state in which it is illegal."""
    reason = f": {why}" if why else ""
    return MessageOutOfOrder(
        f"{message_name} {state.value}{reason}", message_name=message_name, state=state.name.lower()
    )


def draw() -> str:
    """Return the table as Markdown: a row per message, a column per state."""

    def cell(state: State, message: MessageFormat) -> str:
        found = STEPS.get((state, message.type_byte))
        if found is None:
            return "-"
        arrow = "" if found.next_state is state else f" -> {found.next_state.value}"
        return found.action.value + arrow

    lines = ["| message | " + " | ".join(state.value for state in State) + " |", "|---" * 5 + "|"]
    lines += [f"| {row.name} | {' | '.join(cell(state, row) for state in State)} |" for row in ROWS]
    return "\n".join(lines) + "\n"
