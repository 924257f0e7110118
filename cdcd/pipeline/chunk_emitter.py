"""Write the rows of chunks between the stream's transactions.

In: the rows of a chunk, the snapshot that they were read in.  Out: records of op `r`, and the position with the state
of the copy, in the same Kafka transaction.
Invariant: rows are written only where no transaction is open, and where the stream has received everything that was
committed before the chunk's end LSN. Rows that the stream has changed since are left out (F36, F40).
Must not: read rows, or delay the stream by more than one slice of a chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cdcd.ack.group import RecordChunk
from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.key_text import deletes_of
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.avro.transaction_metadata import snapshot_id, table_of
from cdcd.errors import SnapshotRefused
from cdcd.lsn import Lsn
from cdcd.model import (
    POSTGRES_EPOCH_US,
    KeyValues,
    Record,
    RowBatch,
    SnapshotMarker,
    TableCopyState,
    TransactionInfo,
)
from cdcd.pipeline.hold import Hold
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.table_copies import WatchedTable
from cdcd.snapshot.table_copy import Chunk
from cdcd.snapshot.visibility import Snapshot

ASK_INTERVAL_S = 0.02
_LOOKS_BEFORE_FLUSH = 50
"""The server is asked to write its WAL to disk at the second check, and again after this number of checks."""
GIVE_WAY = 16
"""While the stream has transactions, a copy pauses this many times as long as it works: rows also cost the server and
the broker time."""
MOST_AT_ONCE = 2
"""Tables that are copied at the same time, in this proportion."""
LONGEST_PAUSE_S = 1.0
BUSY_S = 0.1
"""The stream has transactions if the last one was so long ago at most."""
PAUSED_BYTES_PER_S = 2 * 1024 * 1024
"""A pause after n bytes takes n / PAUSED_BYTES_PER_S at most: on a busy machine a small table takes long to read,
and many small tables would wait for minutes."""
MAX_WAITING_BYTES = 256 * 1024
"""Rows of chunks are written while less than this waits for Kafka: the stream's next rows wait behind them."""

_OTHER_KEYS = "the keys in the topic differ from those that cdcd encodes from their text"
_OTHER_KEYS_HINT = (
    "report the types of the key's columns; `cdcd snapshot start --table SCHEMA.TABLE --recopy` removes "
    "deleted rows"
)

Metadata = Callable[[TransactionContext, str, int | None, int, str], Awaitable[Record]]
"""Returns BEGIN, or END with a number of rows, of a table's copy; the last arguments are the time and its id."""


class Output(Protocol):
    """The consumer of the records: the writer."""

    async def wait_until_below(self, waiting_bytes: int) -> None: ...  # noqa: D102
    async def flush(self) -> None: ...  # noqa: D102
    async def add(self, chunk: RecordChunk) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of a chunk. `after`: the end of the range that was read, None after the table's last row.

    `batch`: None without rows. `end_lsn`: everything committed before the chunk's snapshot ends below it.
    """

    chunk: Chunk
    snapshot: Snapshot
    end_lsn: Lsn
    batch: RowBatch | None
    after: KeyValues | None


class ChunkEmitter:
    """Shares the pump with the stream: `turn` is held while one of them feeds it."""

    def __init__(
        self,
        pump: Pump,
        output: Output,
        new_context: Callable[[TransactionInfo], TransactionContext],
        ask_for_position: Callable[[], None],
        metadata: Metadata | None = None,
    ) -> None:
        """`ask_for_position`: ask the server for a keepalive, with the LSN up to which it has sent everything.

        `metadata` makes the records of the topic of transactions, None if they are not wanted.
        """
        self._pump = pump
        self._copies = pump.progress.copies
        self._output = output
        self._new_context = new_context
        self._ask = ask_for_position
        self._metadata = metadata
        self.turn = asyncio.Lock()
        self._seen_lsn = pump.progress.commit_lsn
        self._seen_at_s = -BUSY_S

    async def emit(self, table: WatchedTable, plan: RelationPlan, one: Slice) -> int | None:
        """Write a slice; return the number of rows written, None if the chunk has to be read again."""
        return await self._in_turn(table, plan, one, lambda: self._emit(table, plan, one))

    async def compare(
        self, table: WatchedTable, plan: RelationPlan, keys: Mapping[bytes, KeyValues], one: Slice
    ) -> int | None:
        """Write the deletes of keys whose rows the table does not have; return their number, None: again.

        The slice has the rows that the table has. A row that readers lack although it exists is written as well.
        """
        return await self._in_turn(table, plan, one, lambda: self._compare(table, plan, keys, one))

    async def _in_turn(
        self, table: WatchedTable, plan: RelationPlan, one: Slice, write: Callable[[], Awaitable[int | None]]
    ) -> int | None:
        """Write between transactions; None if what was read is not of the table as it is now."""
        await self._output.wait_until_below(MAX_WAITING_BYTES)
        await self.between_transactions(one.end_lsn)
        began_s = time.monotonic()
        try:
            if self._copies.tables.get(plan.relation.relid) is not table:
                return None
            if not table.has_key_header(plan.key_header):
                self._copies.note_state()
                return None
            if not _is_same(table, plan):
                return None
            count = await write()
        finally:
            self.turn.release()
        await self.give_way(time.monotonic() - began_s, _size_bytes(one))
        return count

    async def give_way(self, used_s: float, size_bytes: int) -> None:
        """Leave the processors to a stream with transactions, in proportion to the time that was used for a copy."""
        # Without any pause the stream would not be read: `turn` may be free all the time.
        await asyncio.sleep(self.pause_s(used_s, size_bytes))

    def pause_s(self, used_s: float, size_bytes: int) -> float:
        """Return how long a copy has to pause after work. May be called in any thread."""
        now_s, lsn = time.monotonic(), self._pump.progress.commit_lsn
        if lsn != self._seen_lsn:
            self._seen_lsn, self._seen_at_s = lsn, now_s
        if now_s - self._seen_at_s > BUSY_S + used_s:
            return 0.0
        wanted_s = used_s * GIVE_WAY * max(1, min(len(self._copies.tables), MOST_AT_ONCE))
        return min(wanted_s, size_bytes / PAUSED_BYTES_PER_S, LONGEST_PAUSE_S)

    async def _emit(self, table: WatchedTable, plan: RelationPlan, one: Slice) -> int | None:
        covered_lsn = self._pump.progress.covered_lsn
        tx = self._context(covered_lsn)
        begin, name = await self._begin(table.copy.state, plan, tx)
        records = [] if one.batch is None else encode_batch(one.batch, {plan.relation.relid: plan}, tx)
        found = table.copy.emit(one.chunk, one.snapshot, records, one.after)
        if found is None:
            return None
        table.copy.written(len(found), tx.info.commit_lsn if begin else 0, name)
        self._copies.emitted(covered_lsn, tx.tx_seq)
        records = [*begin, *found]
        await self._output.add(RecordChunk(records, _size_bytes(one), self._pump.progress.commit_position()))
        return len(found)

    async def _compare(
        self, table: WatchedTable, plan: RelationPlan, keys: Mapping[bytes, KeyValues], one: Slice
    ) -> int | None:
        covered_lsn, plans = self._pump.progress.covered_lsn, {plan.relation.relid: plan}
        batch = one.batch or RowBatch(b"", 0)
        tx = self._context(covered_lsn)
        found = table.copy.compare(one.snapshot, keys, encode_batch(batch, plans, tx))
        if found is None:
            return None
        deletes = deletes_of(plan, (keys[key] for key in found.gone), covered_lsn)
        # The deletes precede the rows: one of these may have a key that is equal for readers, with other bytes.
        tx = self._context(covered_lsn)
        records = encode_batch(deletes, plans, tx)
        if {record.key for record in records} != set(found.gone):
            raise SnapshotRefused(_OTHER_KEYS, hint=_OTHER_KEYS_HINT, table=plan.table)
        rows = {record.key for record in found.rows}
        records += [record for record in encode_batch(batch, plans, tx) if record.key in rows]
        table.copy.written(len(rows))
        self._copies.emitted(covered_lsn, tx.tx_seq)
        size_bytes = _size_bytes(one) + 512 * len(records)
        await self._output.add(RecordChunk(records, size_bytes, self._pump.progress.commit_position()))
        return len(found.gone)

    async def _begin(
        self, state: TableCopyState, plan: RelationPlan, tx: TransactionContext
    ) -> tuple[list[Record], str]:
        """Return the BEGIN of a table's copy before its first rows, if it is wanted, and its id.

        It takes a number, so that another copy at the same position has another id.
        """
        if self._metadata is None or state.began_lsn:
            return [], ""
        name = snapshot_id(tx, plan.table, tx.tx_seq)
        tx.tx_seq += 1
        return [await self._metadata(tx, plan.table, None, _now_ms(), name)], name

    async def end_of(self, state: TableCopyState) -> list[Record]:
        """Return the END of a table's copy, which is complete or stopped, if its BEGIN was written."""
        if self._metadata is None or not state.began_lsn:
            return []
        info = TransactionInfo(0, state.began_lsn, 0, snapshot=SnapshotMarker.INCREMENTAL)
        table = table_of(state.began_as)
        return [await self._metadata(self._new_context(info), table, state.rows, _now_ms(), state.began_as)]

    async def received(self, end_lsn: Lsn, flush_wal: Callable[[], Awaitable[None]]) -> None:
        """Wait until everything committed below `end_lsn` was received. `flush_wal`: see `ChunkReader`."""
        looks = 0
        while self._pump.progress.covered_lsn < end_lsn:
            looks += 1
            if looks % _LOOKS_BEFORE_FLUSH == 2:
                await flush_wal()
            await self._wait_for_more()

    async def reached(self, hold: Hold) -> None:
        """Wait until the stream waits at this hold."""
        while not hold.reached.is_set():
            self._ask()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hold.reached.wait(), ASK_INTERVAL_S)

    def truncate(self, plan: RelationPlan) -> list[Record]:
        """Return a truncate event, so that readers lose the table's rows. `turn` is held until it is added."""
        covered_lsn = self._pump.progress.covered_lsn
        tx = self._context(covered_lsn)
        records = encode_truncate(plan, lsn=covered_lsn, cascade=False, restart_identity=False, tx=tx)
        self._copies.emitted(covered_lsn, tx.tx_seq)
        return records

    async def flush(self) -> None:
        """Wait until everything that was added is in Kafka."""
        await self._output.flush()

    async def between_transactions(self, end_lsn: Lsn = 0) -> None:
        """Take `turn` where no transaction is open, and everything below `end_lsn` was received."""
        while True:
            await self.turn.acquire()
            if self._pump.is_between_transactions and self._pump.progress.covered_lsn >= end_lsn:
                return
            self.turn.release()
            await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        """Wait until the stream was fed, or a moment."""
        self._pump.fed.clear()
        self._ask()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pump.fed.wait(), ASK_INTERVAL_S)

    def _context(self, covered_lsn: Lsn) -> TransactionContext:
        commit_lsn, tx_seq = self._copies.next_position(covered_lsn)
        now_pg_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        tx = self._new_context(TransactionInfo(0, commit_lsn, now_pg_us, snapshot=SnapshotMarker.INCREMENTAL))
        tx.tx_seq = tx_seq
        return tx


def _size_bytes(one: Slice) -> int:
    return 0 if one.batch is None else len(one.batch.frames) + 128 * one.batch.count


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_same(table: WatchedTable, plan: RelationPlan) -> bool:
    """Return whether the rows have the columns that the stream has described since they were read."""
    return table.described is None or table.described.columns == plan.relation.columns
