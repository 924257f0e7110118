"""Assemble transactions, in commit order, from the items of one walsender session.

In: row batches, Controls and Keepalives in the order of the wire.  Out: events.
A transaction that begins with Begin is already committed, and its events are returned as it arrives. A streamed or
prepared transaction is stored in its ChangeStore until Stream Commit or Commit Prepared, then replayed by the same
code.
Invariant: no event of a streamed transaction is returned before its Stream Commit, none of a prepared transaction
before its Commit Prepared, and none of an aborted one (F26, F28, F33), except Relation messages that apply to the
whole session. An error makes the assembler unusable: its session ends, and the next session has a new assembler
without open streams, prepared transactions and relations (F27, F33, F43).
Must not: read more of a row than its relid (the encoder's plan look-up checks the relid of a live row).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cdcd.errors import FeatureUnsupported, PreparedMissing, ProtocolError, UnsafeStreaming
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import (
    Control,
    PlainItem,
    PreparedBefore,
    RowBatch,
    TransactionBatch,
    TransactionInfo,
)
from cdcd.pgoutput import messages
from cdcd.pgoutput.decode import decode, format_of
from cdcd.pgoutput.messages import AnyMessage, MessageFormat
from cdcd.txn.contents import expect, logical_message, with_origin
from cdcd.txn.descriptions import Descriptions
from cdcd.txn.events import (
    Event,
    LogicalMessage,
    RelationSeen,
    Rows,
    Skipped,
    TransactionBegun,
    TransactionCommitted,
)
from cdcd.txn.frames import count_operations
from cdcd.txn.open_transactions import (
    OldestPrepared,
    OpenStreams,
    OpenTransaction,
    PreparedTransaction,
    PreparedTransactions,
)
from cdcd.txn.relations import RelationCache
from cdcd.txn.states import ROW_TYPES, STEPS, TWO_PHASE, Action, State, out_of_order, step
from cdcd.txn.store import ChangeStore, MemoryStore
from cdcd.txn.transaction_batch import xids_of
from cdcd.txn.unsafe_streaming import SUBTRANSACTIONS_LIMIT, OrphanSubxids, is_later

_PROTOCOL_VERSIONS = range(1, 5)
_ROW = ROW_TYPES[0]
_STREAM_COMMIT, _STREAM_PREPARE = b"c", b"p"


class Assembler:
    """The transactions of one walsender session.

    Transactions up to `written_commit_lsn` are not dropped here: the pump drops them (`PositionTracker.covers`).
    """

    def __init__(
        self,
        protocol_version: int,
        streaming_parallel: bool = False,
        two_phase: bool = False,
        *,
        new_store: Callable[[], ChangeStore] = MemoryStore,
        written_commit_lsn: Lsn = INVALID_LSN,
        refuse_unsafe_streaming: bool = False,
        prepared_before: PreparedBefore | None = None,
    ) -> None:
        """Take the options of the session, and the commit LSN up to which transactions were already written (F4).

        `refuse_unsafe_streaming`: raise UnsafeStreaming if a real server may decode with outdated catalog entries.
        `prepared_before`: the transactions for which a COMMIT PREPARED without rows means that rows are missing; the
        server also sends a transaction without changes like this. None: this applies to every transaction.
        """
        if protocol_version not in _PROTOCOL_VERSIONS:
            raise ValueError(f"protocol version {protocol_version}")
        self._protocol_version = protocol_version
        self._streaming_parallel = streaming_parallel
        self._two_phase = two_phase
        self._new_store = new_store
        self._written_commit_lsn = written_commit_lsn
        self._refuse_unsafe_streaming = refuse_unsafe_streaming
        self._prepared_before = prepared_before
        self._orphan_subxids = OrphanSubxids()
        self._state = State.OUTSIDE
        self._info: TransactionInfo | None = None
        self._is_begin_pending = False
        self._descriptions = Descriptions()
        self._session_relations = self._descriptions.relations
        self._streams = OpenStreams()
        self._prepared = PreparedTransactions()
        self._gathering: OpenTransaction | None = None
        """The transaction of the current stream segment, or of the current Begin Prepare."""
        self._is_replaying = False
        self.aborted = 0
        """The number of partly received transactions that were rolled back."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is being received, prepared or replayed: a keepalive confirms nothing (F11)."""
        return self._state in (State.IN_TRANSACTION, State.IN_PREPARED) or self._is_replaying

    @property
    def open_streams(self) -> int:
        """The number of streamed transactions that are neither committed nor aborted."""
        return len(self._streams)

    @property
    def oldest_prepared(self) -> OldestPrepared | None:
        """The oldest undecided prepared transaction, or None: no LSN beyond its PREPARE may be confirmed (F33)."""
        return self._prepared.oldest_prepared

    @property
    def prepared_before(self) -> PreparedBefore:
        """The undecided transactions that were prepared before cdcd used the slot, and whose rows may be missing."""
        return self._prepared_before or PreparedBefore()

    @property
    def takes_whole(self) -> bool:
        """Whether complete transactions may bypass the assembler now, because its state does not depend on them."""
        return self._state is State.OUTSIDE and not self._is_replaying

    def passed_whole(self, transactions: TransactionBatch) -> None:
        """Note complete transactions that bypassed the assembler: each Begin removes its xid from the orphans."""
        if self._orphan_subxids:
            self._orphan_subxids.difference_update(xids_of(transactions))

    def feed(self, item: PlainItem) -> Iterator[Event]:
        """Return the events of one item; they have to be consumed before the next item is fed.

        Raises ProtocolError for a violation of the protocol, PreparedMissing for a COMMIT PREPARED without its rows,
        UnsafeStreaming for a transaction that has to be read without streaming, FeatureUnsupported for a prepared
        transaction in a session without two_phase.
        """
        if self._is_replaying:
            raise RuntimeError("the replay of a transaction was not consumed")
        if isinstance(item, RowBatch):
            return self._row_batch(item)
        if isinstance(item, Control):
            return self._control(item)
        return iter(())

    def subtransactions_ended_by(self, item: PlainItem) -> frozenset[int]:
        """Return the subxids whose status has to be queried before this item is fed: empty, except at a stream's end.

        PostgreSQL 14 to 18 do not send the rollback of a subtransaction if they had spilled its changes to disk (more
        than 4096 of them) when they last streamed it. Only a query of the transaction status shows it.
        """
        if not isinstance(item, Control) or not self._streams:
            return frozenset()
        is_prepare = item.payload[:1] == _STREAM_PREPARE and self._two_phase
        if item.payload[:1] != _STREAM_COMMIT and not is_prepare:
            return frozenset()
        message = self._decode(item, in_stream=False)
        if isinstance(message, messages.StreamCommit) and message.commit_lsn <= self._written_commit_lsn:
            return frozenset()
        assert isinstance(message, messages.StreamCommit | messages.StreamPrepare)
        stream = self._streams.get(message.xid)
        return frozenset() if stream is None else frozenset(stream.subxids)

    # --- rows ---------------------------------------------------------------------------------------------

    def _row_batch(self, batch: RowBatch) -> Iterator[Event]:
        found = STEPS.get((self._state, _ROW))
        if found is None:
            raise out_of_order(self._state, "a batch of rows")
        is_of_stream = self._is_in_stream
        if is_of_stream != (batch.xid is not None):
            why = "it carries no xid" if is_of_stream else "it carries the xid of a stream"
            raise out_of_order(self._state, "a batch of rows", why)
        shown = self._descriptions.shown_by(batch)
        if self._gathering is None:
            return self._released(*self._descriptions.see(shown), Rows(batch))
        if shown is not None:
            self._gathering.relations.see(shown, self._descriptions.ordinal)
            self._gathering.published_as[-1] = shown.published_as
        if is_of_stream:
            self._note_subtransaction(self._gathering, batch.xid)
            self._gathering.store.append(batch)
            return iter(())
        self._gathering.adopt((relid for relid, _ in count_operations(batch)), self._session_relations)
        self._gathering.store.append(batch)
        return iter(self._descriptions.see(shown))

    def _note_subtransaction(self, stream: OpenTransaction, xid: int | None) -> None:
        is_new = self._streams.note(stream, xid)
        if is_new and self._refuse_unsafe_streaming and self._streams.subtransactions > SUBTRANSACTIONS_LIMIT:
            raise UnsafeStreaming("the open streams have more subtransactions than cdcd can track", xid=xid)

    @property
    def _is_in_stream(self) -> bool:
        return self._gathering is not None and self._gathering.is_streamed

    # --- control messages ---------------------------------------------------------------------------------

    def _control(self, item: Control) -> Iterator[Event]:
        try:
            row = format_of(item.payload)
            if row.type_byte in ROW_TYPES:
                raise out_of_order(self._state, row.name, "rows must be in batches")
            next_state, action = step(self._state, row)
            self._descriptions.last = None
            events = self._act(action, item, row)
        except (ProtocolError, FeatureUnsupported) as error:
            error.context.setdefault("lsn", item.lsn)
            raise
        self._state = next_state
        return events

    def _act(self, action: Action, item: Control, row: MessageFormat) -> Iterator[Event]:
        # Before decoding: a slot with two_phase sends these messages to sessions of any protocol version (F35).
        if action in TWO_PHASE and not self._two_phase:
            raise FeatureUnsupported(
                f"{row.name}: this session did not request prepared transactions",
                hint="set source.protocol.two_phase: true, or use a slot that was created without two_phase",
                message_name=row.name,
            )
        return _ACTIONS[action](self, item, self._decode(item, in_stream=self._is_in_stream))

    def _decode(self, item: Control, *, in_stream: bool) -> AnyMessage:
        return decode(
            item.payload,
            in_stream=in_stream,
            protocol_version=self._protocol_version,
            streaming_parallel=self._streaming_parallel,
        )

    def _begin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        begin = expect(message, messages.Begin)
        self._info = TransactionInfo(begin.xid, begin.final_lsn, begin.commit_pg_us)
        self._orphan_subxids.discard(begin.xid)
        self._is_begin_pending = True  # until it is known that no Origin follows
        return iter(())

    def _origin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        origin = expect(message, messages.Origin)
        info = expect(self._info, TransactionInfo)
        if self._is_begin_pending and info.origin is None:
            self._info = with_origin(info, origin)
        return iter(())

    def _content(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        event = self._descriptions.event_of(item, message, self._session_relations, self._state)
        self._note_description(event)
        return self._released(event)

    def _note_description(self, event: Event) -> None:
        if isinstance(event, RelationSeen):
            self._descriptions.last = event.relation
            if self._gathering is not None:
                self._gathering.published_as.append(event.relation.published_as)

    def _commit(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        commit = expect(message, messages.Commit)
        info = expect(self._info, TransactionInfo)
        if commit.commit_lsn != info.commit_lsn:
            raise ProtocolError(
                "Commit does not end the transaction of the last Begin",
                begin_commit_lsn=info.commit_lsn,
                commit_commit_lsn=commit.commit_lsn,
            )
        events = self._released(TransactionCommitted(info, commit.end_lsn))
        self._info = None
        return events

    def _non_transactional_message(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        return iter((logical_message(expect(message, messages.Message), State.OUTSIDE),))

    def _released(self, *events: Event) -> Iterator[Event]:
        if not self._is_begin_pending:
            return iter(events)
        self._is_begin_pending = False
        return iter((TransactionBegun(expect(self._info, TransactionInfo)), *events))

    # --- streamed transactions ----------------------------------------------------------------------------

    def _stream_start(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        start = expect(message, messages.StreamStart)
        if start.is_first_segment:
            # The server sends the whole transaction again: its earlier segments must be dropped (F27).
            self._forget(start.xid)
            is_unsafe = start.xid in self._orphan_subxids
            self._orphan_subxids.discard(start.xid)
            self._streams.open(self._open_transaction(start.xid, is_streamed=True, is_unsafe=is_unsafe))
        self._gathering = stream = self._stream(start.xid, "Stream Start")
        if stream.is_unsafe and self._refuse_unsafe_streaming:
            raise UnsafeStreaming(
                "the server continues to decode a transaction after one of its subtransactions may have been rolled "
                "back, and may use outdated catalog entries for it",
                xid=start.xid,
            )
        return iter(())

    def _gathered_origin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        gathering = expect(self._gathering, OpenTransaction)
        if gathering.origin is None:
            gathering.origin = expect(message, messages.Origin)
        return iter(())

    def _store(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        gathering = expect(self._gathering, OpenTransaction)
        event = self._descriptions.event_of(
            item, message, gathering.relations, self._state
        )  # raises its errors now
        self._note_description(event)
        if isinstance(message, messages.Truncate):
            self._note_subtransaction(gathering, message.xid)
        gathering.store.append(item)
        return iter(())

    def _stream_message(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        """Raise UnsafeStreaming: the message has the top-level xid, so a rollback of its subxid is not visible.

        A message of cdcd's own, which is not data, is left out.
        """
        gathering = expect(self._gathering, OpenTransaction)
        event = self._descriptions.event_of(item, message, gathering.relations, self._state)
        if expect(event, LogicalMessage).is_own:
            return iter(())
        raise UnsafeStreaming("a logical message was streamed without its subtransaction", xid=gathering.xid)

    def _stream_stop(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        expect(self._gathering, OpenTransaction).stopped_at_pg_us = item.sent_at_pg_us
        self._gathering = None
        return iter(())

    def _stream_abort(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        abort = expect(message, messages.StreamAbort)
        stream = self._streams.get(abort.xid)
        if abort.subxid == abort.xid:
            self.aborted += stream is not None
            self._forget(abort.xid)
            self._orphan_subxids.discard(abort.xid)
        elif stream is None:
            # PostgreSQL 18 also sends rollbacks from before the first segment: no changes have to be dropped.
            self._orphan_subxids.note(abort.xid, is_limited=self._refuse_unsafe_streaming)
        else:
            self._streams.roll_back(stream, abort.subxid)
            stream.is_unsafe |= not is_later(stream, abort, item.sent_at_pg_us)
        return iter(())

    def _stream_commit(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        commit = expect(message, messages.StreamCommit)
        stream = self._stream(commit.xid, "Stream Commit")
        self._streams.take(commit.xid)
        return self._committed_at(stream, commit)

    def _forget(self, xid: int) -> None:
        stream = self._streams.take(xid)
        if stream is not None:
            stream.store.discard()

    def _stream(self, xid: int, message_name: str) -> OpenTransaction:
        stream = self._streams.get(xid)
        if stream is None:
            raise out_of_order(self._state, message_name, f"transaction {xid} has no first segment")
        return stream

    def _open_transaction(self, xid: int, *, is_streamed: bool, is_unsafe: bool = False) -> OpenTransaction:
        relations = RelationCache(shared_with=self._session_relations)
        return OpenTransaction(xid, self._new_store(), is_streamed, relations, is_unsafe=is_unsafe)

    # --- prepared transactions ----------------------------------------------------------------------------

    def _prepare_begin(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        begin = expect(message, messages.BeginPrepare)
        self._gathering = self._open_transaction(begin.xid, is_streamed=False)
        return iter(())

    def _prepared_store(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        gathering = expect(self._gathering, OpenTransaction)
        if isinstance(message, messages.Truncate):
            gathering.adopt(message.relids, self._session_relations)
        event = self._descriptions.event_of(item, message, gathering.relations, self._state)
        self._note_description(event)
        gathering.store.append(item)
        if not isinstance(event, RelationSeen):
            return iter(())
        # Outside streams a Relation message applies to the whole session, even if the transaction is rolled back.
        self._descriptions.see(event.relation)
        return iter((event,))

    def _prepare(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        prepare = expect(message, messages.Prepare)
        gathering = expect(self._gathering, OpenTransaction)
        if prepare.xid != gathering.xid:
            raise ProtocolError(
                "Prepare does not end the transaction of the last Begin Prepare",
                begin_xid=gathering.xid,
                prepare_xid=prepare.xid,
            )
        self._gathering = None
        return self._hold(gathering, prepare)

    def _prepare_empty(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        """Note a PREPARE without Begin Prepare: PostgreSQL 18 sends none for a transaction that only locked rows."""
        prepare = expect(message, messages.Prepare)
        return self._hold(self._open_transaction(prepare.xid, is_streamed=False), prepare)

    def _stream_prepare(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        prepare = expect(message, messages.StreamPrepare)
        stream = self._stream(prepare.xid, "Stream Prepare")
        self._streams.take(prepare.xid)
        return self._hold(stream, prepare)

    def _hold(
        self, contents: OpenTransaction, by: messages.Prepare | messages.StreamPrepare
    ) -> Iterator[Event]:
        self._prepared.add(PreparedTransaction(contents, by.gid, by.prepare_lsn, by.prepare_pg_us))
        self._is_not_lost(by.xid, by.gid)
        return iter(())

    def _is_not_lost(self, xid: int, gid: str) -> None:
        if self._prepared_before is not None:
            self._prepared_before = self._prepared_before.without(xid, gid)

    def _commit_prepared(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        commit = expect(message, messages.CommitPrepared)
        contents = self._prepared.take(commit.gid, commit.xid)
        if contents is not None:
            return self._committed_at(contents, commit)
        if commit.commit_lsn <= self._written_commit_lsn:
            return iter(())  # F4: its rows were written by an earlier session, so they were not sent again
        before = self._prepared_before
        if before is not None and not before.may_have_rows(commit.xid, commit.gid, commit.commit_lsn):
            return iter(())
        raise PreparedMissing(
            "COMMIT PREPARED of a transaction whose rows the server has not sent",
            xid=commit.xid,
            commit_lsn=commit.commit_lsn,
        )

    def _rollback_prepared(self, item: Control, message: AnyMessage) -> Iterator[Event]:
        rollback = expect(message, messages.RollbackPrepared)
        contents = self._prepared.take(rollback.gid, rollback.xid)
        self._is_not_lost(rollback.xid, rollback.gid)
        if contents is not None:  # F34: a transaction that was never sent has nothing to drop
            self.aborted += 1
            contents.store.discard()
        return iter(())

    # --- the replay ---------------------------------------------------------------------------------------

    def _committed_at(
        self, contents: OpenTransaction, commit: messages.StreamCommit | messages.CommitPrepared
    ) -> Iterator[Event]:
        info = TransactionInfo(commit.xid, commit.commit_lsn, commit.commit_pg_us)
        if contents.origin is not None:
            info = with_origin(info, contents.origin)
        self._is_replaying = True
        return self._replay(contents, info, commit.end_lsn)

    def _replay(self, contents: OpenTransaction, info: TransactionInfo, end_lsn: Lsn) -> Iterator[Event]:
        yield TransactionBegun(info)
        relations = RelationCache()  # filled in order, so that a Truncate has the descriptions valid there
        for relation in contents.described_before:
            relations.see(relation, 0)
            if not self._session_relations.says(relation):
                yield RelationSeen(relation, info.commit_lsn)
        published_as = iter(contents.published_as)
        for item in contents.store.replay():
            if isinstance(item, RowBatch):
                yield Rows(item)
            elif item is None:
                yield Skipped()
            else:
                message = self._decode(item, in_stream=contents.is_streamed)
                event = self._descriptions.event_of(item, message, relations, State.IN_STREAM)
                if isinstance(event, RelationSeen):  # the rows that showed it may have been rolled back
                    event = replace(event, relation=replace(event.relation, published_as=next(published_as)))
                yield event
        contents.store.discard()
        for relation in self._session_relations.merge(contents.relations):
            yield RelationSeen(relation, info.commit_lsn)
        self._is_replaying = False
        yield TransactionCommitted(info, end_lsn)


_ACTIONS: dict[Action, Callable[[Assembler, Control, AnyMessage], Iterator[Event]]] = {
    Action.BEGIN: Assembler._begin,
    Action.ORIGIN: Assembler._origin,
    Action.CONTENT: Assembler._content,
    Action.COMMIT: Assembler._commit,
    Action.NON_TRANSACTIONAL_MESSAGE: Assembler._non_transactional_message,
    Action.STREAM_START: Assembler._stream_start,
    Action.STREAM_ORIGIN: Assembler._gathered_origin,
    Action.STORE: Assembler._store,
    Action.STREAM_MESSAGE: Assembler._stream_message,
    Action.STREAM_STOP: Assembler._stream_stop,
    Action.STREAM_ABORT: Assembler._stream_abort,
    Action.STREAM_COMMIT: Assembler._stream_commit,
    Action.PREPARE_BEGIN: Assembler._prepare_begin,
    Action.PREPARED_ORIGIN: Assembler._gathered_origin,
    Action.PREPARED_STORE: Assembler._prepared_store,
    Action.PREPARE: Assembler._prepare,
    Action.PREPARE_EMPTY: Assembler._prepare_empty,
    Action.STREAM_PREPARE: Assembler._stream_prepare,
    Action.COMMIT_PREPARED: Assembler._commit_prepared,
    Action.ROLLBACK_PREPARED: Assembler._rollback_prepared,
}
