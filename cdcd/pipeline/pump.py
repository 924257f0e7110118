"""Turn items from the walsender into chunks of records for the writer.

In: items of one walsender session.  Out: chunks; the last chunk of each transaction has its commit position.
Invariant: transactions leave in commit order. A transaction whose commit LSN was written already is dropped after its
Relation messages were read (F4, F43). The number of a change is the same on every replay. The end LSN to confirm
never passes the oldest undecided PREPARE (F33), while the commit LSN, which detects a replay, advances: a commit
position has both. If a part of a transaction is written already, its changes are dropped.
Must not: talk to Kafka or PostgreSQL itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from cdcd.ack.group import Chunk, CommitPosition
from cdcd.ack.position_tracker import PositionTracker
from cdcd.ack.shutdown import ShutdownWatch
from cdcd.avro.encode import EncodedTransactions, encode_batch, encode_transaction_batch, encode_truncate
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.clock import monotonic_us
from cdcd.errors import SourceUnavailable, UnsafeStreaming
from cdcd.failpoints import hit
from cdcd.lsn import Lsn
from cdcd.model import (
    HEARTBEAT_PREFIX,
    POSTGRES_EPOCH_US,
    Item,
    Keepalive,
    PartPosition,
    PlainItem,
    Record,
    Relation,
    TransactionBatch,
    TransactionInfo,
)
from cdcd.pipeline.event_queue import EventQueue
from cdcd.pipeline.floors import Floors, without
from cdcd.pipeline.hold import Hold
from cdcd.pipeline.partial_transaction import PartialTransaction
from cdcd.pipeline.table_copies import TableCopies
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import (
    Event,
    LogicalMessage,
    RelationSeen,
    Rows,
    Skipped,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
    TypeSeen,
)
from cdcd.txn.frames import count_operations
from cdcd.txn.lookahead import Lookahead
from cdcd.txn.transaction_batch import expand


class Plans(Protocol):
    """The plans, one for each relation that the server has described."""

    by_relid: dict[int, RelationPlan]

    def describe(self, relation: Relation) -> None: ...  # noqa: D102
    async def ready(self, relids: Iterable[int]) -> None: ...  # noqa: D102
    def has_prepared(self, relids: Iterable[int]) -> bool: ...  # noqa: D102
    async def prepare(self, ahead: Lookahead) -> None: ...  # noqa: D102
    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Record: ...  # noqa: D102
    async def metadata(self, tx: TransactionContext, *, is_end: bool) -> Record: ...  # noqa: D102


class Output(Protocol):
    """The consumer of the chunks: the writer."""

    async def add(self, chunk: Chunk) -> None: ...  # noqa: D102
    def idle(self, commit_position: CommitPosition, *, is_urgent: bool) -> None: ...  # noqa: D102


class Counts(Protocol):
    """Receives the pump's reports, one for each event."""

    def relation(self, relid: int, table: str) -> None: ...  # noqa: D102
    def began(self, commit_us: int) -> None: ...  # noqa: D102
    def rows_encoded(self, operations: Mapping[tuple[int, int], int]) -> None: ...  # noqa: D102
    def truncated(self, table: str) -> None: ...  # noqa: D102
    def ended(self, end_lsn: Lsn, *, is_empty: bool) -> None: ...  # noqa: D102
    def whole(self, encoded: EncodedTransactions) -> None: ...  # noqa: D102
    def duplicates(self, count: int) -> None: ...  # noqa: D102


class Buffers(Protocol):
    """The memory budget of open transactions."""

    @property
    def is_over(self) -> bool: ...  # noqa: D102
    async def relieve(self) -> None: ...  # noqa: D102


TURN_US = 10_000
"""How long the pump may run before it yields to the event loop (F14)."""

NewContext = Callable[[TransactionInfo], TransactionContext]
AnyRolledBack = Callable[[Collection[int]], Awaitable[bool]]


class Pump:
    """Turns one session's items into chunks.

    The pump yields to the event loop every `TURN_US`, so that status updates continue during a replay, which is one
    item of any size (F14).
    """

    _clock_us = staticmethod(monotonic_us)

    def __init__(
        self,
        assembler: Assembler,
        plans: Plans,
        output: Output,
        new_context: NewContext,
        counts: Counts,
        position: PositionTracker,
        *,
        buffers: Buffers | None = None,
        any_rolled_back: AnyRolledBack | None = None,
        part: PartPosition | None = None,
        floors: Floors | None = None,
        copies: TableCopies | None = None,
    ) -> None:
        self._assembler = assembler
        self._plans = plans
        self._output = output
        self._add = output.add
        self._new_context = new_context
        self._counts = counts
        self._buffers = buffers
        self._any_rolled_back = any_rolled_back
        self._position = position
        self._partial = PartialTransaction(part)
        self._floors = floors or Floors()
        self._copies = copies or TableCopies()
        self._hold: Hold | None = None
        self._before_item: CommitPosition | None = None
        """With a hold, the position before the item that is processed."""
        self._is_feeding = False
        """Also after an error or a cancellation inside `feed`: what was received is not written completely then."""
        self.fed = asyncio.Event()
        """Set after each call of `feed`."""
        self._shutdown = ShutdownWatch()
        self._tx: TransactionContext | None = None
        self._rows = 0
        self._gave_way_us = self._clock_us()
        self._queue = EventQueue()
        self._handlers: dict[type, Callable[..., Awaitable[None]]] = {
            TransactionBegun: self._begun,
            Rows: self._row_batch,
            Truncated: self._truncated,
            LogicalMessage: self._message,
            RelationSeen: self._relation,
            TypeSeen: self._nothing,
            TransactionCommitted: self._committed,
            Skipped: self._nothing,
        }

    async def feed(self, items: list[Item]) -> None:
        """Give the chunks of all `items` to the writer, in order."""
        self._is_feeding = True
        for at, item in enumerate(items):
            self._queue.reads(items, at)
            if isinstance(item, Keepalive):
                self._keepalive(item)
            elif isinstance(item, TransactionBatch):
                await self._feed_whole(item)
            else:
                await self._feed_plain(item)
            if self._hold is not None:
                await self._wait_after_item(self._hold)
        if self._is_time_to_give_way:
            await self._give_way()
        self._is_feeding = False
        self.fed.set()

    @property
    def is_between_transactions(self) -> bool:
        """Whether records of another source may be written: every transaction so far is written completely."""
        is_complete = self._tx is None and not self._assembler.in_transaction and not self._is_feeding
        return is_complete and self._partial.pending is None

    @property
    def commit_lsn(self) -> Lsn:
        """The commit LSN of the last transaction that was passed on."""
        return self._position.commit_lsn

    @property
    def covered_lsn(self) -> Lsn:
        """The LSN up to which everything committed was received, also above an undecided PREPARE (F33)."""
        return self._position.end_lsn

    def hold_before(self, lsn: Lsn) -> Hold:
        """Let the stream wait before the first transaction whose commit LSN is `lsn` or higher.

        To be called before the stream has passed `lsn`.
        """
        self._hold = Hold(lsn)
        return self._hold

    async def _wait_after_item(self, hold: Hold) -> None:
        is_between = self._tx is None and not self._assembler.in_transaction
        if is_between and self._position.end_lsn >= hold.lsn:
            await hold.wait(self._position_now())
        if hold.is_over:
            self._hold = None

    async def _feed_whole(self, item: TransactionBatch) -> None:
        """Encode a transaction batch at once; item by item if one of them needs more than its own bytes."""
        first = self._context_of_all(item)
        while first is not None:
            found = encode_transaction_batch(
                item, self._plans.by_relid, self._context_of, first, self._position.commit_lsn
            )
            if isinstance(found, EncodedTransactions):
                self._assembler.passed_whole(item)
                if self._copies.is_watching:
                    self._copies.note_transactions(item, self._plans.by_relid, self._position.commit_lsn)
                await self._passed(found, len(item.frames))
                return
            if found is None:
                break
            await self._plans.ready((found,))
            if found not in self._plans.by_relid:
                break  # the encoder raises RelationUnknown, with the details of the row (F43)
        for plain in expand(item):
            await self._feed_plain(plain)

    def _context_of_all(self, item: TransactionBatch) -> TransactionContext | None:
        """Return the context for all transactions of a batch, None if they differ or need contexts of their own."""
        if not self._assembler.takes_whole or self._partial.pending is not None:
            return None
        first_lsn, last_lsn = item.commit_lsns
        if self._floors.concern(first_lsn) or (self._hold is not None and last_lsn >= self._hold.lsn):
            return None
        first = self._context_of(0, first_lsn, 0)
        last = first if first_lsn == last_lsn else self._context_of(0, last_lsn, 0)
        return first if first.timeline == last.timeline and first.counts is None else None

    def _context_of(self, xid: int, commit_lsn: Lsn, commit_pg_us: int) -> TransactionContext:
        return self._new_context(TransactionInfo(xid, commit_lsn, commit_pg_us))

    async def _passed(self, found: EncodedTransactions, size_bytes: int) -> None:
        self._counts.duplicates(found.dropped)
        transactions = found.with_rows + found.empty
        if transactions == 0:
            return
        self._position.committed(found.commit_lsn, found.end_lsn, found.last_us)
        self._counts.whole(found)
        records = found.records
        commit_position = self.commit_position(transactions=transactions)
        await self._add(Chunk(records, size_bytes + 128 * len(records) if records else 0, commit_position))
        await self._give_way()

    async def _feed_plain(self, item: PlainItem) -> None:
        await self._ask_before(item)
        if self._hold is not None:
            self._before_item = self._position_now()
        self._queue.begin(self._assembler.feed(item))
        while (event := self._queue.next()) is not None:
            await self._handle(event)
            if self._is_time_to_give_way:
                await self._give_way()
        if self._buffers is not None and self._buffers.is_over:
            await self._buffers.relieve()

    async def _ready(self, relids: Collection[int]) -> None:
        """Make the plans of these relations. If one's topic is missing, create the topics of later relations as well.

        Topics that a look-ahead has found are not handled again: each of many new tables has the others ahead of it,
        and the server describes a root again with each of its partitions.
        """
        if not self._plans.by_relid.keys() >= set(relids):
            if not self._plans.has_prepared(relids):
                await self._plans.prepare(self._queue.look_ahead(relids))
            await self._plans.ready(relids)

    async def _ask_before(self, item: PlainItem) -> None:
        """Raise UnsafeStreaming if `item` ends a stream with a subtransaction rolled back without a Stream Abort."""
        xids = self._assembler.subtransactions_ended_by(item)
        if xids and self._any_rolled_back is not None and await self._any_rolled_back(xids):
            raise UnsafeStreaming(
                "the server streamed a subtransaction and rolled it back without a Stream Abort"
            )

    @property
    def _is_time_to_give_way(self) -> bool:
        return self._clock_us() - self._gave_way_us > TURN_US

    async def _give_way(self) -> None:
        await asyncio.sleep(0)
        self._gave_way_us = self._clock_us()

    async def _handle(self, event: Event) -> None:
        await self._handlers[type(event)](event)

    def _keepalive(self, keepalive: Keepalive) -> None:
        # Inside a transaction the WAL end does not prove that earlier transactions are complete (F6, F11).
        if not self._assembler.in_transaction:
            self._position.idle(keepalive.wal_end_lsn)
            self._partial.passed(self._position.end_lsn)
            idle = self.commit_position()
            self._output.idle(idle, is_urgent=keepalive.reply_requested)
        if keepalive.reply_requested and self._assembler.oldest_prepared is not None:
            self._leave_at_shutdown(keepalive.wal_end_lsn)

    def _leave_at_shutdown(self, wal_end_lsn: Lsn) -> None:
        if self._shutdown.reply_requested(wal_end_lsn, self._clock_us()):  # F13, F33
            raise SourceUnavailable(
                "the server is shutting down and would wait for a position that a prepared transaction holds back",
                hint="no action is needed: when the server is back, it sends the prepared transactions again",
            )

    def commit_position(self, *, transactions: int = 0) -> CommitPosition:
        """Return the position after everything received, if no transaction is open."""
        return self.with_copies(self._position_now(transactions))

    def with_copies(self, position: CommitPosition) -> CommitPosition:
        """Return a position with the present state of the copies."""
        copy = self._copies.state_at(position.end_lsn)
        return position if copy is None else replace(position, copy=copy)

    def _position_now(self, transactions: int = 0) -> CommitPosition:
        oldest = self._assembler.oldest_prepared
        return self._position.position(
            transactions=transactions,
            prepared_lsn=None if oldest is None else oldest.oldest_lsn,
            prepared_before=self._assembler.prepared_before,
            part=self._partial.pending,
        )

    async def _begun(self, event: TransactionBegun) -> None:
        if self._hold is not None and event.info.commit_lsn >= self._hold.lsn:
            # F33: not the present position: the assembler does not count this transaction as prepared any more.
            assert self._before_item is not None
            await self._hold.wait(self._before_item)
        self._rows = 0
        # F4: the last committed progress record covers the transaction; its relations still have to be read.
        is_written = self._position.covers(event.info.commit_lsn)
        self._tx = None if is_written else self._new_context(event.info)
        if not is_written:
            self._partial.began(event.info.commit_lsn)
            self._counts.began(event.info.commit_pg_us + POSTGRES_EPOCH_US)

    async def _row_batch(self, event: Rows) -> None:
        if self._tx is None:
            return
        batch, operations = event.batch, count_operations(event.batch)
        if self._floors.concern(self._tx.info.commit_lsn):
            dropped = self._floors.dropped({relid for relid, _ in operations}, self._tx.info.commit_lsn)
            self._copies.note_dropped(self._tx.info.xid, dropped)
            above = without(batch, dropped)
            if above is None:
                return
            batch, operations = above, count_operations(above)
        await self._ready({relid for relid, _ in operations})
        if self._copies.is_watching:
            self._copies.note_rows(self._tx.info.xid, batch, self._plans.by_relid)
        begin = await self._begin_of(self._tx)
        if self._tx.tx_seq < self._partial.tx_seq:
            rest = self._partial.unwritten_rows(batch, self._plans.by_relid, self._tx)
            if rest is None:
                return
            batch, operations = rest, count_operations(rest)
        records = begin + encode_batch(batch, self._plans.by_relid, self._tx)
        self._counts.rows_encoded(operations)
        await self._hand_on(records, len(batch.frames))
        hit("in_transaction")
        # The writer takes the records of this batch before the next batch is encoded.
        await self._give_way()

    async def _truncated(self, event: Truncated) -> None:
        if self._tx is None:
            return
        relids = [relation.relid for relation in event.relations]
        dropped = self._floors.dropped(relids, self._tx.info.commit_lsn)
        relations = [relation for relation in event.relations if relation.relid not in dropped]
        self._copies.note_truncate(self._tx.info.xid, relids)
        await self._ready([relation.relid for relation in relations])
        for relation in relations:
            plan = self._plans.by_relid[relation.relid]
            begin = await self._begin_of(self._tx)
            records = begin + encode_truncate(
                plan,
                lsn=event.lsn,
                cascade=event.cascade,
                restart_identity=event.restart_identity,
                tx=self._tx,
            )
            if self._partial.covers(self._tx.tx_seq):
                continue
            self._counts.truncated(plan.table)
            await self._hand_on(records, 512 * len(records))

    async def _message(self, event: LogicalMessage) -> None:
        if event.transactional:
            if self._tx is not None and not event.is_wal_flush:
                begin = await self._begin_of(self._tx)
                record = await self._plans.logical_message(event, self._tx)
                if not self._partial.covers(self._tx.tx_seq):
                    await self._hand_on([*begin, record], len(event.content))
        elif event.prefix != HEARTBEAT_PREFIX and not self._position.covers(
            event.lsn - 1
        ):  # F12: a heartbeat is no data
            await self._message_at_once(event)

    async def _message_at_once(self, event: LogicalMessage) -> None:
        record = await self._plans.logical_message(event, None)
        self._position.message(event.lsn)
        await self._add(Chunk([record], len(event.content) + 256, self.commit_position()))

    async def _relation(self, event: RelationSeen) -> None:
        relation = event.relation
        self._plans.describe(relation)
        self._copies.described(relation)
        self._counts.relation(relation.relid, f"{relation.schema}.{relation.name}")

    async def _nothing(self, event: TypeSeen | Skipped) -> None:
        """Ignore the event. The plans read types from the catalog, which has their structure too (F44)."""

    async def _begin_of(self, tx: TransactionContext) -> list[Record]:
        """Return the transaction's BEGIN record before its first change, if it is wanted and not written yet."""
        if tx.counts is None or tx.tx_seq > 0 or self._partial.tx_seq > 0:
            return []
        return [await self._plans.metadata(tx, is_end=False)]

    async def _hand_on(self, records: list[Record], size_bytes: int) -> None:
        assert self._tx is not None
        self._rows += len(records)
        reached = PartPosition(self._tx.info.commit_lsn, self._tx.tx_seq)
        await self._add(Chunk(records, size_bytes + 128 * len(records), reached=reached))

    async def _committed(self, event: TransactionCommitted) -> None:
        if self._tx is None:
            self._counts.duplicates(1)
            return
        tx, self._tx = self._tx, None
        self._copies.committed(tx.info.xid)
        self._partial.ended(tx.tx_seq)
        commit_us = event.info.commit_pg_us + POSTGRES_EPOCH_US
        self._position.committed(event.info.commit_lsn, event.end_lsn, commit_us)
        self._counts.ended(event.end_lsn, is_empty=self._rows == 0)
        end = [await self._plans.metadata(tx, is_end=True)] if tx.counts else []
        await self._add(Chunk(end, 256 * len(end), self.commit_position(transactions=1)))
