"""Turn the events of transactions into chunks of records.

In: the events of the assembler, in commit order.  Out: chunks; the last chunk of each transaction has its commit
position.
Invariant: a transaction whose commit LSN was written already leaves no record, but its Relation messages are read
(F4, F43). The number of a change is the same on every replay, also of a change that is dropped: because a part of its
transaction is written already, or because a copy of its table contains it.
Must not: talk to Kafka or PostgreSQL itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from cdcd.ack.group import RecordChunk
from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.transaction import TransactionContext
from cdcd.failpoints import hit
from cdcd.model import POSTGRES_EPOCH_US, PartPosition, Record
from cdcd.pipeline.event_queue import EventQueue
from cdcd.pipeline.floors import without
from cdcd.pipeline.interfaces import Counts, NewContext, Output, Plans
from cdcd.pipeline.stream_progress import StreamProgress
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

__all__ = ["EventEncoder"]

RECORD_OVERHEAD_BYTES = 128
"""The memory of a record beyond the bytes of its row, as counted by the writer's limit."""


class EventEncoder:
    """The encoder of one session; `queue` has the events that follow, for which topics are created in advance."""

    def __init__(
        self,
        plans: Plans,
        output: Output,
        new_context: NewContext,
        counts: Counts,
        progress: StreamProgress,
        queue: EventQueue,
    ) -> None:
        self._plans = plans
        self._add, self._idle = output.add, output.idle
        self._new_context = new_context
        self._counts = counts
        self._progress = progress
        self._partial = progress.partial
        self._queue = queue
        self._tx: TransactionContext | None = None
        self._rows = 0
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

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction that is not written already has begun and has not ended."""
        return self._tx is not None

    async def handle(self, event: Event) -> None:
        """Pass on the records of one event."""
        await self._handlers[type(event)](event)

    async def _begun(self, event: TransactionBegun) -> None:
        self._rows = 0
        # F4: the last committed progress record covers the transaction; its relations still have to be read.
        is_written = self._progress.position.covers(event.info.commit_lsn)
        self._tx = None if is_written else self._new_context(event.info)
        if not is_written:
            self._partial.began(event.info.commit_lsn)
            self._counts.began(event.info.commit_pg_us + POSTGRES_EPOCH_US)

    async def _row_batch(self, event: Rows) -> None:
        if self._tx is None:
            return
        floors, copies = self._progress.floors, self._progress.copies
        batch, operations = event.batch, count_operations(event.batch)
        if floors.concern(self._tx.info.commit_lsn):
            dropped = floors.dropped({relid for relid, _ in operations}, self._tx.info.commit_lsn)
            copies.note_dropped(self._tx.info.xid, dropped)
            above = without(batch, dropped)
            if above is None:
                return
            batch, operations = above, count_operations(above)
        await self._ready({relid for relid, _ in operations})
        if copies.is_watching:
            copies.note_rows(self._tx.info.xid, batch, self._plans.by_relid)
        begin = await self._begin_of(self._tx)
        if self._tx.tx_seq < self._partial.tx_seq:
            rest = self._partial.unwritten_rows(batch, self._plans.by_relid, self._tx)
            if rest is None:
                return
            batch, operations = rest, count_operations(rest)
        self._partial.keys.note((relid for relid, _ in operations), self._plans.by_relid)
        records = begin + encode_batch(batch, self._plans.by_relid, self._tx)
        self._counts.rows_encoded(operations)
        await self._hand_on(records, len(batch.frames))
        hit("in_transaction")

    async def _truncated(self, event: Truncated) -> None:
        if self._tx is None:
            return
        relids = [relation.relid for relation in event.relations]
        dropped = self._progress.floors.dropped(relids, self._tx.info.commit_lsn)
        relations = [relation for relation in event.relations if relation.relid not in dropped]
        self._progress.copies.note_truncate(self._tx.info.xid, relids)
        await self._ready([relation.relid for relation in relations])
        self._progress.copies.emptied([relation.relid for relation in relations])
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
        if event.is_own:
            if event.is_of_comparison:
                self._idle(self._progress.idle(event.lsn), is_urgent=True)
            return
        if not event.transactional:
            if not self._progress.position.covers(event.lsn - 1):
                await self._message_at_once(event)
        elif self._tx is not None:
            begin = await self._begin_of(self._tx)
            record = await self._plans.logical_message(event, self._tx)
            if not self._partial.covers(self._tx.tx_seq):
                await self._hand_on([*begin, record], len(event.content))

    async def _message_at_once(self, event: LogicalMessage) -> None:
        record = await self._plans.logical_message(event, None)
        self._progress.position.message(event.lsn)
        await self._add(RecordChunk([record], len(event.content) + 256, self._progress.commit_position()))

    async def _relation(self, event: RelationSeen) -> None:
        relation = event.relation
        self._plans.describe(relation)
        self._progress.copies.described(relation)
        self._counts.relation(relation.relid, f"{relation.schema}.{relation.name}")

    async def _nothing(self, event: TypeSeen | Skipped) -> None:
        """Ignore the event. The plans read types from the catalog, which has their structure too (F44)."""

    async def _committed(self, event: TransactionCommitted) -> None:
        if self._tx is None:
            self._counts.duplicates(1)
            return
        tx, self._tx = self._tx, None
        self._progress.copies.committed(tx.info.xid)
        self._partial.ended(tx.tx_seq)
        commit_us = event.info.commit_pg_us + POSTGRES_EPOCH_US
        self._progress.position.committed(event.info.commit_lsn, event.end_lsn, commit_us)
        self._counts.ended(event.end_lsn, is_empty=self._rows == 0)
        end = [await self._plans.metadata(tx, is_end=True)] if tx.counts else []
        await self._add(RecordChunk(end, 256 * len(end), self._progress.commit_position(transactions=1)))

    async def _ready(self, relids: Collection[int]) -> None:
        """Make the plans of these relations. If one's topic is missing, create the topics of later relations as well.

        Topics that a look-ahead has found are not handled again: each of many new tables has the others ahead of it,
        and the server describes a root again with each of its partitions.
        """
        if not self._plans.by_relid.keys() >= set(relids):
            if not self._plans.has_prepared(relids):
                await self._plans.prepare(self._queue.look_ahead(relids))
            await self._plans.ready(relids)

    async def _begin_of(self, tx: TransactionContext) -> list[Record]:
        """Return the transaction's BEGIN record before its first change, if it is wanted and not written yet."""
        if tx.counts is None or tx.tx_seq > 0 or self._partial.tx_seq > 0:
            return []
        return [await self._plans.metadata(tx, is_end=False)]

    async def _hand_on(self, records: list[Record], size_bytes: int) -> None:
        assert self._tx is not None
        self._rows += len(records)
        reached = PartPosition(
            self._tx.info.commit_lsn, self._tx.tx_seq, keys=self._partial.keys.identified()
        )
        size_bytes += RECORD_OVERHEAD_BYTES * len(records)
        await self._add(RecordChunk(records, size_bytes, reached=reached))
