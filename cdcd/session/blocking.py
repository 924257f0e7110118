"""The blocking snapshots of one session: the stream waits while their tables are copied.

In: the tables of the progress record, and those of commands.  Out: their rows at one position of the stream.
Invariant: the snapshot is that of a temporary slot. The stream has passed on exactly the transactions that it sees
when the rows are written (see `Hold`), so a table needs no key, and no change of it is dropped. The progress record
has a table until all of its rows are durable: after a crash the next session copies it again, in a later snapshot.
Must not: end the session because of a table, or of the connections that read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import structlog

from cdcd.ack.group import RecordChunk
from cdcd.errors import CdcdError, Retry, SnapshotRefused, SnapshotStale
from cdcd.failpoints import hit
from cdcd.model import BlockingCopyState
from cdcd.pipeline.chunk_emitter import ChunkEmitter
from cdcd.pipeline.hold import Hold
from cdcd.session.blocking_copy import BlockingCopy, BlockingParts
from cdcd.session.slot_creation import create_slot_in_thread
from cdcd.session.stale_tables import TRIES
from cdcd.session.table_copier import InThread
from cdcd.snapshot.chunk_values import Description
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.table import SnapshotReader
from cdcd.snapshot.units import CopiedTable
from cdcd.source.slot import CreatedSlot, temporary_name
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
RETRY_S = 1.0
_TWICE_HINT = (
    "add --recopy: a truncate event then precedes the rows, so that readers have each row once; without a key, "
    "readers cannot recognize a row that they already have"
)
_FAILED_HINT = (
    "cdcd does not try again by itself, because the stream would wait again: start the copy again with "
    "`cdcd snapshot start --table {table} --blocking`, or end it with `cdcd snapshot stop --table {table}`"
)
_STOP_FIRST_HINT = "wait until the table is copied, or run `cdcd snapshot stop --table {table}` first"


class BlockingSnapshots:
    """The tables of one session. `run` copies them until it is cancelled."""

    def __init__(
        self,
        parts: BlockingParts,
        emitter: ChunkEmitter,
        in_thread: InThread,
        release: Callable[[SnapshotReader], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._copies = parts.copies
        self._emitter = emitter
        self._in_thread = in_thread
        self._release = release
        self._changed = asyncio.Event()
        self._copying: asyncio.Task[None] | None = None
        self._interruptions = 0
        self._stale: Counter[int] = Counter()
        for relid, state in self._copies.blocking.items():
            parts.reports.begin_blocking(relid, state)

    @property
    def is_copying(self) -> bool:
        """Whether the stream waits for a snapshot, or is about to."""
        return self._copying is not None and not self._copying.done()

    @property
    def relids(self) -> Set[int]:
        """The tables that are left to copy, failed ones included."""
        return self._copies.blocking.keys()

    @property
    def live(self) -> Set[int]:
        """Those of them that have not failed."""
        return {relid for relid, state in self._copies.blocking.items() if not state.has_failed}

    # --- commands ---

    def refuse(self, tables: Sequence[CopiedTable]) -> None:
        """Refuse to copy tables incrementally that are left to copy here. Raises SnapshotRefused."""
        for table in tables:
            if table.relid in self._copies.blocking:
                hint = _STOP_FIRST_HINT.format(table=table.title)
                raise SnapshotRefused(
                    "a blocking snapshot still has to copy the table", hint=hint, table=table.title
                )

    async def begin(
        self, described: Sequence[Description], command: SnapshotCommand, topic_of: Callable[[int], str]
    ) -> None:
        """Note the tables of a command; the turn of the stream is held. Raises SnapshotRefused, and Sink errors."""
        await self._parts.writer.flush()
        states = [await self._state(one.table, command, topic_of(one.table.relid)) for one in described]
        for one, state in zip(described, states, strict=True):
            self._copies.set_blocking(one.table.relid, state)
            self._copies.incomplete.begins(one.table.relid, state.topic, is_needed=bool(command.relids))
            if state.empties:
                self._copies.note_coverage(
                    one.table.relid, is_whole=False
                )  # until all of its rows are copied
            self._parts.reports.begin_blocking(one.table.relid, state, one)
            self._stale.pop(one.table.relid, None)

    async def _state(self, table: CopiedTable, command: SnapshotCommand, topic: str) -> BlockingCopyState:
        """Return the state of a table. Raises SnapshotRefused where its readers would have rows twice."""
        if table.relid in self._copies.tables:
            hint = _STOP_FIRST_HINT.format(table=table.title)
            raise SnapshotRefused("the table is being copied incrementally", hint=hint, table=table.title)
        before = self._copies.blocking.get(table.relid)
        empties = command.recopy or (before is not None and before.empties)
        state = BlockingCopyState(topic, command.where, empties)
        if not table.has_key and not empties and not state.copies_nothing:
            if command.where is not None:
                raise SnapshotRefused(
                    "the table has no key, and after an interruption its rows would arrive twice",
                    hint=_TWICE_HINT,
                    table=table.title,
                )
            if await in_thread(self._parts.has_records, topic):
                raise SnapshotRefused(
                    "the table has no key, and its topic has records: rows would arrive twice",
                    hint=_TWICE_HINT,
                    table=table.title,
                )
        return state

    def wake(self) -> None:
        """Begin to copy the tables that a command has added."""
        self._changed.set()

    @contextlib.asynccontextmanager
    async def interrupted(self) -> AsyncIterator[None]:
        """Copy nothing during the block: the stream continues. Tables that are left are copied again after it."""
        self._interruptions += 1
        try:
            await _ended(self._copying)
            yield
        finally:
            self._interruptions -= 1
            self._changed.set()

    def stop(self, relid: int) -> None:
        """Copy a table no further; `interrupted` is held, and the turn of the stream."""
        self._copies.set_blocking(relid, None)
        self._parts.reports.end(relid)

    # --- the copy ---

    async def run(self) -> None:
        """Copy until cancelled. Raises errors that are not of the tree."""
        try:
            while True:
                self._changed.clear()
                wanted = {
                    relid: state for relid, state in self._copies.blocking.items() if not state.has_failed
                }
                if not wanted or self._interruptions:
                    await self._changed.wait()
                    continue
                self._copying = asyncio.create_task(self._attempt(wanted))
                await asyncio.wait([self._copying])
                if not self._copying.cancelled():
                    self._copying.result()
        finally:
            await _ended(self._copying)

    async def _attempt(self, wanted: Mapping[int, BlockingCopyState]) -> None:
        try:
            failures = await self._copy(wanted)
        except CdcdError as error:
            failures = dict.fromkeys(wanted, error)
        failed = {relid: error for relid, error in failures.items() if not self._may_retry(relid, error)}
        if failed:
            await self._fail(failed)
        again = {relid: error for relid, error in failures.items() if relid not in failed}
        for relid, reason in again.items():
            self._parts.reports.waits(relid, reason.message)
        if again:
            _LOG.warning("snapshot_interrupted", error="; ".join(sorted(set(map(str, again.values())))))
            await asyncio.sleep(RETRY_S)

    def _may_retry(self, relid: int, error: CdcdError) -> bool:
        if isinstance(error, SnapshotStale):
            self._stale[relid] += "table" in error.context
            return self._stale[relid] < TRIES
        return error.retry is Retry.AUTO

    async def _fail(self, failed: Mapping[int, CdcdError]) -> None:
        """Leave tables to a command: the stream does not wait for them again."""
        await self._emitter.between_transactions()
        try:
            for relid, error in failed.items():
                if (state := self._copies.blocking.get(relid)) is None:
                    continue
                self._copies.set_blocking(relid, replace(state, has_failed=True))
                self._parts.reports.failed(relid, error.message)
                table = self._parts.reports.name_of(relid)
                hint = "; ".join(filter(None, (error.advice, _FAILED_HINT.format(table=table))))
                _LOG.error("table_not_copied", table=table, error=str(error), hint=hint)
            await self._parts.writer.add(RecordChunk((), 0, self._parts.pump.progress.commit_position()))
        finally:
            self._emitter.turn.release()

    async def _copy(self, wanted: Mapping[int, BlockingCopyState]) -> Mapping[int, CdcdError]:
        """Copy tables in the snapshot of a temporary slot; return the errors of those that cannot be copied."""
        created, hold = await self._hold(wanted)
        try:
            hit("slot_made")
            for relid in wanted:
                self._parts.reports.waits(relid, "the stream has not reached the snapshot yet")
            await self._emitter.reached(hold)
            hit("hold_reached")
            assert created.snapshot_name is not None
            copying = BlockingCopy(self._parts, wanted.keys(), self._in_thread, self._release)
            with self._shown_as_running(len(wanted)):
                failures = await copying.run(created.snapshot_name, hold)
            hit("snapshot_copied")
            return failures
        finally:
            hold.end()
            created.close()

    @contextlib.contextmanager
    def _shown_as_running(self, tables: int) -> Iterator[None]:
        """Show the copy in the metrics of a snapshot: alerts about a stream that waits depend on them."""
        metrics, began_s, is_complete = self._parts.status.metrics, time.monotonic(), False
        metrics.snapshot_started(tables)
        try:
            yield
            is_complete = True
        finally:
            metrics.snapshot_ended(duration_s=time.monotonic() - began_s, is_complete=is_complete)
            metrics.snapshot_remaining(0)

    async def _hold(self, wanted: Mapping[int, BlockingCopyState]) -> tuple[CreatedSlot, Hold]:
        """Create the slot while the stream is not read: what it has passed on is then below the consistent point."""
        parts = self._parts
        for relid in wanted:
            parts.reports.waits(
                relid, "PostgreSQL creates a temporary slot when older transactions have ended"
            )
        temporary = replace(
            parts.source, slot=temporary_name(parts.source.slot), failover=False, two_phase=False
        )
        await self._emitter.between_transactions()
        try:
            waits = parts.status.waits.watching("slot_creation", f"slot {temporary.slot}", is_waiting=True)
            with waits as report:
                created = await create_slot_in_thread(
                    temporary, parts.server, False, True, report, is_temporary=True
                )
            return created, parts.pump.hold_before(created.consistent_point)
        finally:
            self._emitter.turn.release()


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])
