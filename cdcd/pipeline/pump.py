"""Turn items from the walsender into chunks of records for the writer.

In: items of one walsender session.  Out: chunks, in commit order.
Invariant: a batch of complete transactions is encoded at once where its bytes suffice, and otherwise event by event,
with the same records. The end LSN to confirm never passes the oldest undecided PREPARE (F33), while the commit LSN,
which detects a replay, advances: a commit position has both.
Must not: talk to Kafka or PostgreSQL itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.ack.shutdown import ShutdownWatch
from cdcd.avro.encode import EncodedTransactions, encode_transaction_batch
from cdcd.avro.transaction import TransactionContext
from cdcd.clock import monotonic_us
from cdcd.errors import SourceUnavailable, UnsafeStreaming
from cdcd.lsn import Lsn
from cdcd.model import Item, Keepalive, PlainItem, TransactionBatch, TransactionInfo
from cdcd.pipeline.event_encoder import RECORD_OVERHEAD_BYTES, EventEncoder
from cdcd.pipeline.event_queue import EventQueue
from cdcd.pipeline.hold import Hold
from cdcd.pipeline.interfaces import Buffers, Counts, NewContext, Output, Plans
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import Event, Rows, TransactionBegun
from cdcd.txn.transaction_batch import expand

TURN_US = 10_000
"""How long the pump may run before it yields to the event loop (F14)."""

AnyRolledBack = Callable[[Collection[int]], Awaitable[bool]]


class Pump:
    """Turns one session's items into chunks.

    The pump yields to the event loop every `TURN_US`, so that status updates continue during a replay, which is one
    item of any size (F14).
    """

    _clock_us = staticmethod(monotonic_us)
    _new_encoder: type[EventEncoder] = EventEncoder

    def __init__(
        self,
        assembler: Assembler,
        plans: Plans,
        output: Output,
        new_context: NewContext,
        counts: Counts,
        progress: StreamProgress,
        *,
        buffers: Buffers | None = None,
        any_rolled_back: AnyRolledBack | None = None,
    ) -> None:
        self.progress = progress
        self._assembler = assembler
        self._plans = plans
        self._output = output
        self._new_context = new_context
        self._counts = counts
        self._buffers = buffers
        self._any_rolled_back = any_rolled_back
        self._queue = EventQueue()
        self._encoder = self._new_encoder(plans, output, new_context, counts, progress, self._queue)
        self._hold: Hold | None = None
        self._before_item: CommitPosition | None = None
        """With a hold, the position before the item that is processed."""
        self._is_feeding = False
        """Also after an error or a cancellation inside `feed`: what was received is not written completely then."""
        self.fed = asyncio.Event()
        """Set after each call of `feed`."""
        self._shutdown = ShutdownWatch()
        self._gave_way_us = self._clock_us()

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
        is_complete = self._is_outside_transactions and not self._is_feeding
        return is_complete and self.progress.partial.pending is None

    @property
    def _is_outside_transactions(self) -> bool:
        return not self._encoder.is_in_transaction and not self._assembler.in_transaction

    # --- a stream that waits for a blocking snapshot ---

    def hold_before(self, lsn: Lsn) -> Hold:
        """Let the stream wait before the first transaction whose commit LSN is `lsn` or higher.

        To be called before the stream has passed `lsn`.
        """
        self._hold = Hold(lsn)
        return self._hold

    async def _wait_after_item(self, hold: Hold) -> None:
        if self._is_outside_transactions and self.progress.covered_lsn >= hold.lsn:
            await hold.wait(self.progress.without_copies())
        if hold.is_over:
            self._hold = None

    async def _wait_before(self, event: TransactionBegun) -> None:
        if self._hold is not None and event.info.commit_lsn >= self._hold.lsn:
            # F33: not the present position: the assembler does not count this transaction as prepared any more.
            assert self._before_item is not None
            await self._hold.wait(self._before_item)

    # --- batches of complete transactions ---

    async def _feed_whole(self, item: TransactionBatch) -> None:
        """Encode a transaction batch at once; item by item if one of them needs more than its own bytes."""
        first = self._context_of_all(item)
        written_lsn = self.progress.commit_lsn
        while first is not None:
            plans = self._plans.by_relid
            found = encode_transaction_batch(item, plans, self._context_of, first, written_lsn)
            if isinstance(found, EncodedTransactions):
                self._assembler.passed_whole(item)
                if self.progress.copies.is_watching:
                    self.progress.copies.note_transactions(item, plans, written_lsn)
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
        if not self._assembler.takes_whole or self.progress.partial.pending is not None:
            return None
        first_lsn, last_lsn = item.commit_lsns
        is_held = self._hold is not None and last_lsn >= self._hold.lsn
        if is_held or self.progress.floors.concern(first_lsn):
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
        self.progress.position.committed(found.commit_lsn, found.end_lsn, found.last_us)
        self._counts.whole(found)
        records = found.records
        commit_position = self.progress.commit_position(transactions=transactions)
        size_bytes = size_bytes + RECORD_OVERHEAD_BYTES * len(records) if records else 0
        await self._output.add(RecordChunk(records, size_bytes, commit_position))
        await self._give_way()

    # --- other items, event by event ---

    async def _feed_plain(self, item: PlainItem) -> None:
        await self._ask_before(item)
        if self._hold is not None:
            self._before_item = self.progress.without_copies()
        self._queue.begin(self._assembler.feed(item))
        while (event := self._queue.next()) is not None:
            await self._handle(event)
        if self._buffers is not None and self._buffers.is_over:
            await self._buffers.relieve()

    async def _handle(self, event: Event) -> None:
        if isinstance(event, TransactionBegun):
            await self._wait_before(event)
        await self._encoder.handle(event)
        # The writer takes the records of a row batch before the next one is encoded.
        is_encoded = isinstance(event, Rows) and self._encoder.is_in_transaction
        if is_encoded or self._is_time_to_give_way:
            await self._give_way()

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

    # --- keepalives ---

    def _keepalive(self, keepalive: Keepalive) -> None:
        # Inside a transaction the WAL end does not prove that earlier transactions are complete (F6, F11).
        if not self._assembler.in_transaction:
            idle = self.progress.idle(keepalive.wal_end_lsn)
            self._output.idle(idle, is_urgent=keepalive.reply_requested)
        if keepalive.reply_requested and self._assembler.oldest_prepared is not None:
            self._leave_at_shutdown(keepalive.wal_end_lsn)

    def _leave_at_shutdown(self, wal_end_lsn: Lsn) -> None:
        if self._shutdown.reply_requested(wal_end_lsn, self._clock_us()):  # F13, F33
            raise SourceUnavailable(
                "the server is shutting down and would wait for a position that a prepared transaction holds back",
                hint="no action is needed: when the server is back, it sends the prepared transactions again",
            )
