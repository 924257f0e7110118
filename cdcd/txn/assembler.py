"""Assemble transactions, in commit order, from the items of one walsender session.

In: Runs, Controls and Keepalives in the order of the wire.  Out: events.
A transaction that came with Begin is committed already and flows through as it arrives; a streamed one waits
in its ChangeStore until Stream Commit and is replayed through the same code.
Invariant: nothing of a streamed transaction leaves before its Stream Commit, nothing of an aborted one at all
(F26, F28); an error leaves the assembler unusable, its session ends and a new one begins with a new one,
which forgets all open streams and relations (F27, F43).
Must not: look into a Run. That a row's relid was described is checked by the encoder's plan look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cdcd.errors import FeatureUnsupported, ProtocolError
from cdcd.lsn import Lsn
from cdcd.model import Control, Item, Run, TransactionInfo
from cdcd.pgoutput import messages
from cdcd.pgoutput.decode import decode, format_of
from cdcd.pgoutput.messages import AnyMessage, MessageFormat
from cdcd.txn.events import (
    Event,
    LogicalMessage,
    RelationSeen,
    Rows,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
    TypeSeen,
)
from cdcd.txn.relations import RelationCache, relation_of, schema_of
from cdcd.txn.states import ROW_TYPES, STEPS, Action, State, out_of_order, step
from cdcd.txn.store import ChangeStore, MemoryStore

_PROTOCOL_VERSIONS = range(1, 5)
_ROW = ROW_TYPES[0]

M = TypeVar("M")


@dataclass(slots=True)
class _Stream:
    """One transaction that the server is sending in segments."""

    xid: int
    store: ChangeStore
    relations: RelationCache = field(default_factory=RelationCache)
    origin: messages.Origin | None = None


class Assembler:
    """The transactions of one walsender session."""

    def __init__(
        self,
        protocol_version: int,
        streaming_parallel: bool = False,
        two_phase: bool = False,
        *,
        new_store: Callable[[], ChangeStore] = MemoryStore,
    ) -> None:
        """Take the options that the session was started with; FeatureUnsupported for two_phase."""
        if protocol_version not in _PROTOCOL_VERSIONS:
            raise ValueError(f"protocol version {protocol_version}")
        if two_phase:
            raise FeatureUnsupported("two_phase cannot be requested yet")
        self._protocol_version = protocol_version
        self._streaming_parallel = streaming_parallel
        self._new_store = new_store
        self._state = State.OUTSIDE
        self._info: TransactionInfo | None = None
        self._is_begun_held = False
        self._session_relations = RelationCache()
        self._relation_ordinal = 0
        # Keyed by xid alone: within one session no two transactions in progress share one (F27).
        self._streams: dict[int, _Stream] = {}
        self._segment: _Stream | None = None
        self._is_replaying = False

    @property
    def in_transaction(self) -> bool:
        """True between Begin and Commit and during a replay: then a keepalive confirms nothing (F11)."""
        return self._state is State.IN_TRANSACTION or self._is_replaying

    @property
    def open_streams(self) -> int:
        """The number of streamed transactions that are neither committed nor aborted."""
        return len(self._streams)

    def feed(self, item: Item) -> Iterator[Event]:
        """Return the events of one item; they have to be consumed before the next item is fed.

        Raises ProtocolError for what the protocol does not allow, FeatureUnsupported for what is prepared.
        """
        if self._is_replaying:
            raise RuntimeError("the replay of a streamed transaction was not consumed")
        if isinstance(item, Run):
            return self._run(item)
        if isinstance(item, Control):
            return self._control(item)
        return iter(())

    # --- rows ---------------------------------------------------------------------------------------------

    def _run(self, run: Run) -> Iterator[Event]:
        found = STEPS.get((self._state, _ROW))
        if found is None:
            raise out_of_order(self._state, "a run of rows")
        if self._segment is None:
            if run.xid is not None:
                raise out_of_order(self._state, "a run of rows", "it carries the xid of a stream")
            return self._released(Rows(run))
        if run.xid is None:
            raise out_of_order(self._state, "a run of rows", "it carries no xid")
        self._segment.store.append(run)
        return iter(())

    # --- control messages ---------------------------------------------------------------------------------

    def _control(self, item: Control) -> Iterator[Event]:
        try:
            row = format_of(item.payload)
            if row.type_byte in ROW_TYPES:
                raise out_of_order(self._state, row.name, "rows come in runs")
            next_state, action = step(self._state, row)
            events = self._act(action, item, row)
        except (ProtocolError, FeatureUnsupported) as error:
            error.context.setdefault("lsn", item.lsn)
            raise
        self._state = next_state
        return events

    def _act(self, action: Action, item: Control, row: MessageFormat) -> Iterator[Event]:
        # Before decoding: a slot made for two-phase sends these to a session of any version (F35).
        if action is Action.UNSUPPORTED:
            raise FeatureUnsupported(
                f"{row.name}: prepared transactions are not supported yet",
                hint="use a slot that was created without two_phase",
                message_name=row.name,
            )
        return _ACTIONS[action](self, item, self._decode(item, in_stream=self._segment is not None))

    def _decode(self, item: Control, *, in_stream: bool) -> AnyMessage:
        return decode(
            item.payload,
            in_stream=in_stream,
            protocol_version=self._protocol_version,
            streaming_parallel=self._streaming_parallel,
        )

    def _begin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        begin = _expect(message, messages.Begin)
        self._info = TransactionInfo(begin.xid, begin.final_lsn, begin.commit_pg_us)
        self._is_begun_held = True  # until it is known that no Origin follows
        return iter(())

    def _origin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        origin = _expect(message, messages.Origin)
        info = _expect(self._info, TransactionInfo)
        if self._is_begun_held and info.origin is None:
            self._info = _with_origin(info, origin)
        return iter(())

    def _content(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        event = self._event_of(item, message, self._session_relations, self._state)
        return self._released(event)

    def _commit(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        commit = _expect(message, messages.Commit)
        info = _expect(self._info, TransactionInfo)
        if commit.commit_lsn != info.commit_lsn:
            raise ProtocolError(
                "Commit does not end the transaction of the last Begin",
                begin_commit_lsn=info.commit_lsn,
                commit_commit_lsn=commit.commit_lsn,
            )
        events = self._released(TransactionCommitted(info, commit.end_lsn))
        self._info = None
        return events

    def _loose_message(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        return iter((_logical_message(_expect(message, messages.Message), State.OUTSIDE),))

    def _released(self, event: Event) -> Iterator[Event]:
        if not self._is_begun_held:
            return iter((event,))
        self._is_begun_held = False
        return iter((TransactionBegun(_expect(self._info, TransactionInfo)), event))

    # --- streamed transactions ----------------------------------------------------------------------------

    def _stream_start(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        start = _expect(message, messages.StreamStart)
        if start.is_first_segment:
            # The server sends the whole transaction anew: what came before must not stay (F27).
            self._streams[start.xid] = _Stream(start.xid, self._new_store())
        self._segment = self._stream(start.xid, "Stream Start")
        return iter(())

    def _stream_origin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        segment = _expect(self._segment, _Stream)
        if segment.origin is None:
            segment.origin = _expect(message, messages.Origin)
        return iter(())

    def _store(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        segment = _expect(self._segment, _Stream)
        self._event_of(item, message, segment.relations, self._state)  # its errors belong to this moment
        segment.store.append(item)
        return iter(())

    def _stream_stop(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        self._segment = None
        return iter(())

    def _stream_abort(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        abort = _expect(message, messages.StreamAbort)
        stream = self._stream(abort.xid, "Stream Abort")
        if abort.subxid == abort.xid:
            del self._streams[abort.xid]
        else:
            stream.store.abort_subtransaction(abort.subxid)  # nested ones come one by one (F26)
        return iter(())

    def _stream_commit(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        commit = _expect(message, messages.StreamCommit)
        stream = self._stream(commit.xid, "Stream Commit")
        del self._streams[commit.xid]
        info = TransactionInfo(commit.xid, commit.commit_lsn, commit.commit_pg_us)
        if stream.origin is not None:
            info = _with_origin(info, stream.origin)
        self._is_replaying = True
        return self._replay(stream, info, commit.end_lsn)

    def _replay(self, stream: _Stream, info: TransactionInfo, end_lsn: Lsn) -> Iterator[Event]:
        yield TransactionBegun(info)
        relations = RelationCache()  # filled again in order, so that a Truncate names what was true there
        for item in stream.store.replay():
            if isinstance(item, Run):
                yield Rows(item)
            else:
                yield self._event_of(item, self._decode(item, in_stream=True), relations, State.IN_STREAM)
        for relation in self._session_relations.merge(stream.relations):
            yield RelationSeen(relation, info.commit_lsn)
        self._is_replaying = False
        yield TransactionCommitted(info, end_lsn)

    def _stream(self, xid: int, message_name: str) -> _Stream:
        stream = self._streams.get(xid)
        if stream is None:
            raise out_of_order(self._state, message_name, f"transaction {xid} has no first segment")
        return stream

    # --- contents, live, stored and replayed --------------------------------------------------------------

    def _event_of(
        self, item: Control, message: AnyMessage, relations: RelationCache, state: State
    ) -> RelationSeen | TypeSeen | Truncated | LogicalMessage:
        if isinstance(message, messages.Relation):
            relation = relation_of(message)
            self._relation_ordinal += 1
            relations.see(relation, self._relation_ordinal)
            return RelationSeen(relation, item.lsn)
        if isinstance(message, messages.Type):
            return TypeSeen(message.type_oid, schema_of(message.namespace), message.name)
        if isinstance(message, messages.Truncate):
            truncated = relations.resolve(message.relids)
            return Truncated(truncated, message.cascade, message.restart_identity, item.lsn)
        return _logical_message(_expect(message, messages.Message), state)


def _expect(value: object, cls: type[M]) -> M:
    """Return the value as what the state table guarantees it to be."""
    assert isinstance(value, cls), f"{type(value).__name__} where the state table allows {cls.__name__}"
    return value


def _with_origin(info: TransactionInfo, origin: messages.Origin) -> TransactionInfo:
    # Its LSN is 0 where the server does not know it, as always at the start of a stream.
    return replace(info, origin=origin.name, origin_lsn=origin.commit_lsn or None)


def _logical_message(message: messages.Message, state: State) -> LogicalMessage:
    if message.transactional == (state is State.OUTSIDE):
        name = "a transactional Message" if message.transactional else "a non-transactional Message"
        raise out_of_order(state, name)
    return LogicalMessage(message.transactional, message.lsn, message.prefix, message.content)


_ACTIONS: dict[Action, Callable[[Assembler, Control, AnyMessage], Iterator[Event]]] = {
    Action.BEGIN: Assembler._begin,
    Action.ORIGIN: Assembler._origin,
    Action.CONTENT: Assembler._content,
    Action.COMMIT: Assembler._commit,
    Action.LOOSE_MESSAGE: Assembler._loose_message,
    Action.STREAM_START: Assembler._stream_start,
    Action.STREAM_ORIGIN: Assembler._stream_origin,
    Action.STORE: Assembler._store,
    Action.STREAM_STOP: Assembler._stream_stop,
    Action.STREAM_ABORT: Assembler._stream_abort,
    Action.STREAM_COMMIT: Assembler._stream_commit,
}
