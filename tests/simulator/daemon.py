"""The daemon's core in one session: assembler, pump, writer, groups, safe LSN; Kafka is a model.

In: items of one walsender session.  Out: durable transactions in `Kafka`, and the confirmed positions.
Invariant: changes that are not durable at the end of the session are lost, as in a crash; the clock is the model's.
Must not: make a decision of the core; only the encoding is replaced: a record is the decoded row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

from cdcd.ack.group import NO_LIMITS, CommitPosition, GroupLimits, LargeLimits
from cdcd.ack.position_tracker import PositionTracker
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError, PreparedMissing, UnsafeStreaming
from cdcd.model import Item, PlainItem, PreparedBefore, Relation, RowBatch, SourceIdentity, TransactionInfo
from cdcd.pgoutput import messages as m
from cdcd.pgoutput.decode import decode
from cdcd.pipeline.event_encoder import EventEncoder
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.writer import Writer, WriterOptions
from cdcd.session.background_tasks import BackgroundTasks, in_background
from cdcd.source.settings import StreamOptions
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import (
    Event,
    LogicalMessage,
    RelationSeen,
    Rows,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
)
from tests.simulator.kafka import LOOSE, Kafka, MessageFields, Sink


class _Watched(Assembler):
    """An assembler that checks its events: their order, and that no event comes before its commit was sent."""

    _visible: set[int]
    _open: TransactionInfo | None = None

    def feed(self, item: PlainItem) -> Iterator[Event]:
        """Record the commit in the item, if any, and check the events."""
        self._visible = getattr(self, "_visible", set())
        payload = getattr(item, "payload", b" ")
        at = {b"B": 1, b"c": 6, b"K": 2}.get(payload[:1])
        if at is not None:
            self._visible.add(int.from_bytes(payload[at : at + 8], "big"))
        return self._checked(super().feed(item))

    def _checked(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, TransactionBegun):
                assert self._open is None, "a transaction within another"
                assert event.info.commit_lsn in self._visible, "an event before the commit was sent"
                self._open = event.info
            elif isinstance(event, LogicalMessage):
                assert event.transactional == (self._open is not None)
            elif not isinstance(event, RelationSeen):  # a prepared transaction may have one, too (F33)
                assert self._open is not None, "a change outside a transaction"
            if isinstance(event, TransactionCommitted):
                assert event.info == self._open
                self._open = None
            yield event


def _clock_us() -> int:
    """Return the model's time: with the machine's clock, runs would differ, and pauses would be too short."""
    return int(asyncio.get_running_loop().time() * 1e6)


class _Encoder(EventEncoder):
    """The encoder with other records: pairs of the transaction and the row, decoded with the columns at that time."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.relations: dict[int, Relation] = {}

    async def _relation(self, event: RelationSeen) -> None:
        self.relations[event.relation.relid] = event.relation

    async def _row_batch(self, event: Rows) -> None:
        if self._tx is not None:
            await self._write(_rows(event.batch, self.relations))

    async def _truncated(self, event: Truncated) -> None:
        tables = tuple((one.relid, tuple(c.name for c in one.columns)) for one in event.relations)
        if self._tx is not None:
            await self._write([("T", tables, event.cascade, event.restart_identity)])

    async def _write(self, changes: Iterable[MessageFields]) -> None:
        assert self._tx is not None
        records: list[Any] = []
        for change in changes:
            self._tx.tx_seq += 1
            if not self._partial.covers(self._tx.tx_seq):
                records.append((self._tx.info, change))
        if records:
            await self._hand_on(records, len(records))


class _Pump(Pump):
    """The pump with the model's clock and records."""

    _clock_us = staticmethod(_clock_us)
    _new_encoder = _Encoder


class _Plans:
    """Record plans, which the pump needs for logical messages."""

    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Any:
        if tx is None:
            return (LOOSE, message.content)
        tx.tx_seq += 1
        return (tx.info, ("M", message.content))


class _Uncounted:
    """Metrics that are not recorded."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


@dataclass(frozen=True)
class Daemon:
    """The daemon's state apart from the stream: possible losses (F33), and rolled back subtransactions."""

    prepared_before: PreparedBefore
    rolled_back: frozenset[int]

    async def any_rolled_back(self, xids: Collection[int]) -> bool:
        """Return whether any of these subtransactions was rolled back."""
        return not self.rolled_back.isdisjoint(xids)


class _Writer(Writer):
    """The daemon's writer. Its progress is the commit position itself, its threads and its clock are the model's."""

    _clock_us = staticmethod(_clock_us)

    def __init__(self, sink: Sink, *arguments: Any, **named: Any) -> None:
        self._start = sink.start
        sink.committing = self._make_durable
        super().__init__(sink, *arguments, **named)

    def progress(self, commit_position: CommitPosition) -> Any:
        """Return the commit position itself, for the judge."""
        return SimpleNamespace(commit_position=commit_position, offsets={})


class Session:
    """One session of the daemon, from its start to the loss of its connection, within `clock.run`."""

    def __init__(
        self,
        kafka: Kafka,
        sink: Sink,
        options: StreamOptions,
        start_lsn: int,
        random: Random,
        check: Callable[[int], None],
        daemon: Daemon | None = None,
    ) -> None:
        """`check` is called with each confirmed position. Without `daemon` the core has its widest options."""
        self._random = random
        written_lsn = kafka.progress.commit_lsn
        self.assembler = _Watched(
            options.protocol_version,
            streaming_parallel=options.streaming == "parallel",
            two_phase=options.two_phase,
            written_commit_lsn=written_lsn,
            refuse_unsafe_streaming=daemon is not None,
            prepared_before=None if daemon is None else daemon.prepared_before,
        )
        large = random.choice([NO_LIMITS, LargeLimits(random.choice([1, 3, 50]), 0, 0, allows_parts=True)])
        limits = GroupLimits(random.choice([1, 5, 1000]), 1 << 20, random.choice([0, 3000, 30_000]), large)
        self._writer = _Writer(
            sink,
            SourceIdentity("1", 1, "s", "s"),
            WriterOptions(limits, waiting_limit_bytes=random.choice([0, 1000, 1 << 20])),
            confirm=check,
            observer=_Uncounted(),
            durable_lsn=kafka.progress.end_lsn,
        )
        self._writer.begin_at(
            CommitPosition(
                written_lsn,
                max(start_lsn, kafka.progress.end_lsn),
                0,
                0,
                prepared_before=self.assembler.prepared_before,
                part=kafka.progress.part,
            )
        )
        self._pump = _Pump(
            self.assembler,
            _Plans(),  # type: ignore[arg-type]
            self._writer,
            lambda info: TransactionContext(info, timeline=1, name="s", database="s", now_us=0, version="s"),
            _Uncounted(),
            StreamProgress(self.assembler, PositionTracker(start_lsn, written_lsn), part=kafka.progress.part),
            any_rolled_back=None if daemon is None else daemon.any_rolled_back,
        )
        self._pace_s = random.choice([0.0, 0.0005, 0.01, 15.0])

    async def run(self, batches: Iterable[list[Item]], *, is_stopped: bool) -> CdcdError | None:
        """Process the batches; return an error that ended the session early. `is_stopped`: drain all of it first."""
        async with in_background(self._writer.run()) as background:
            try:
                is_unsafe = await self._fed(batches, background)
                if is_stopped:
                    self._writer.drop_partial_tail()
                    await background.or_failure(self._writer.drain())
            except CdcdError as error:
                if self._random.random() < 0.5:
                    await self._closed()
                return error
        return is_unsafe

    async def _fed(self, batches: Iterable[list[Item]], background: BackgroundTasks) -> CdcdError | None:
        try:
            for items in batches:
                await background.or_failure(self._pump.feed(items))
                await background.or_failure(asyncio.sleep(self._random.uniform(0, self._pace_s)))
        except (UnsafeStreaming, PreparedMissing) as error:
            return error
        return None

    async def _closed(self) -> None:
        """End the session as the daemon does it; without this the session ends as by SIGKILL."""
        with contextlib.suppress(CdcdError):
            await self._writer.close()


def _rows(batch: RowBatch, relations: dict[int, Relation]) -> Iterator[MessageFields]:
    at = 0
    while at < len(batch.frames):
        end = at + 12 + int.from_bytes(batch.frames[at : at + 4], "big")
        row = decode(batch.frames[at + 12 : end], in_stream=batch.xid is not None, protocol_version=4)
        at = end
        assert isinstance(row, m.Insert | m.Update | m.Delete)
        data = row.old.data if isinstance(row, m.Delete) else row.new
        values = tuple((column.value or b"").decode() for column in data.columns)
        columns = tuple(column.name for column in relations[row.relid].columns)
        yield (type(row).__name__[0], row.relid, columns, values)
