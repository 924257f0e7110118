"""The stream of one session: items go to the pump, and positions durable in Kafka are confirmed to PostgreSQL.

In: an open replication stream, the pump and the writer behind it.  Out: records in Kafka; the safe LSN as flush LSN.
Invariant: a stream begins with its start LSN as flush LSN, which is durable already; from then on only
`send_flush_lsn` advances it. The writer calls it after a commit (F7); `begin` calls it with the end LSN of the
progress record that an earlier session committed.
Must not: decode, encode, or decide where the stream begins.
"""

from __future__ import annotations

import asyncio

from cdcd.ack.group import CommitPosition
from cdcd.failpoints import hit
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import Item
from cdcd.monitoring.status import Status
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.writer import Writer
from cdcd.source.stream import ReplicationStream
from cdcd.txn.assembler import Assembler


class Streaming:
    """Reads and confirms from `begin` to the end of the session."""

    def __init__(
        self,
        stream: ReplicationStream,
        assembler: Assembler,
        pump: Pump,
        writer: Writer,
        status: Status,
        turn: asyncio.Lock,
    ) -> None:
        """`turn`: held while the pump is fed; incremental snapshots write in between."""
        self._stream = stream
        self._assembler = assembler
        self._pump = pump
        self._writer = writer
        self._status = status
        self._turn = turn
        self._counted_bytes = self._counted_aborted = 0

    def begin(self, commit_position: CommitPosition) -> None:
        """Confirm what is durable already, let the writer confirm from now on, then set its commit position."""
        self._writer.confirm_with(self.send_flush_lsn)
        if self._writer.safe_lsn > INVALID_LSN:
            self.send_flush_lsn(self._writer.safe_lsn)
        self._writer.begin_at(commit_position)

    def send_flush_lsn(self, lsn: Lsn) -> None:
        """Send PostgreSQL a Standby Status Update: everything up to `lsn` is durable in Kafka."""
        self._stream.queue_flush_lsn(lsn)
        if self._stream.send_status():
            self._status.confirmed(lsn)

    async def run(self) -> None:
        """Read items and give them to the pump until cancelled. Raises the error that ends the stream."""
        stream, writer = self._stream, self._writer
        while True:
            if not stream.more and not stream.is_at_backlog_rate:
                await writer.pause_for_commit()
            items = await stream.read()
            hit("received")
            self._note_received()
            writer.note_backlog(stream.is_at_backlog_rate)
            async with self._turn:
                await self._pump.feed(items)
            if not stream.more:
                writer.note_drained()
            self._note_fed(items)

    def _note_received(self) -> None:
        received_bytes = self._stream.received_bytes
        self._status.received(received_bytes - self._counted_bytes)
        self._counted_bytes = received_bytes

    def _note_fed(self, items: list[Item]) -> None:
        assembler, status = self._assembler, self._status
        status.turned(
            items,
            assembler.open_streams + assembler.in_transaction,
            oldest_prepared=assembler.oldest_prepared,
            may_be_lost=len(assembler.prepared_before.undecided),
        )
        status.aborted(assembler.aborted - self._counted_aborted)
        self._counted_aborted = assembler.aborted
