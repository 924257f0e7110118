"""The incremental snapshots of one session: the tables that are copied while the stream runs, and their commands.

In: the state of the progress record, commands.  Out: rows between the stream's transactions.
Invariant: a command is applied where no transaction is open, and returns when the progress record has it. A table
whose copy fails stays in the record, and does not stop the stream or another table. One that is not published any
more, or was dropped, leaves it: nothing is left to copy.
Must not: end the session because of one table, or of the connection that reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog

from cdcd.ack.group import RecordChunk
from cdcd.avro.plan import RelationPlan
from cdcd.errors import CdcdError, SinkUnavailable, SnapshotRefused, SourceSetup, SourceUnavailable
from cdcd.failpoints import hit
from cdcd.model import BlockingCopyState, CopyState, Record, TableCopyState
from cdcd.pipeline.chunk_emitter import ChunkEmitter
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.table_copies import WatchedTable
from cdcd.pipeline.writer import Writer
from cdcd.session.blocking import BlockingSnapshots
from cdcd.session.comparison import TopicKeys, check_comparable
from cdcd.session.published_tables import PublishedTables
from cdcd.session.state_size import refuse_large
from cdcd.session.table_copier import InThread, Parts, TableCopier, describe_as_received
from cdcd.snapshot.chunk_pace import ChunkPace
from cdcd.snapshot.chunk_reader import ChunkReader
from cdcd.snapshot.chunk_values import Description, NotPublished
from cdcd.snapshot.command_json import MAX_TABLES
from cdcd.snapshot.control import Action, CommandResult, SnapshotCommand
from cdcd.snapshot.load_limits import LoadGate, LoadLimits
from cdcd.snapshot.reports import TableReports
from cdcd.snapshot.selection import Selection
from cdcd.snapshot.table import SnapshotReader
from cdcd.threads import in_thread, settled, start_in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
RECONNECT_S = 1.0
CANCEL_AGAIN_S = 0.2
CANCEL_WITHIN_S = 1.0
_TOO_MANY_HINT = (
    f"one command can start {MAX_TABLES} tables at most, because each progress record has the state of each "
    "table: name fewer tables in each command, or run `cdcd resnapshot`"
)
_BLOCKED_HINT = (
    "repeat the command when `cdcd snapshot status` shows no blocking snapshot; `cdcd snapshot stop` ends the "
    "present one"
)
_UNPAUSABLE = "a blocking snapshot cannot be paused or resumed"
_UNPAUSABLE_HINT = (
    "`cdcd snapshot stop` ends the copy, `cdcd snapshot start --table SCHEMA.TABLE --blocking --recopy` "
    "begins it again"
)
_UNPUBLISHED_HINT = (
    "the copy is ended. If the table is published again, `cdcd snapshot start --table SCHEMA.TABLE --recopy` copies "
    "all of its rows; with snapshot.new_tables: snapshot, cdcd copies them automatically"
)
T = TypeVar("T")
ReleaseReader = Callable[[SnapshotReader], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of the incremental snapshots. `workers`: the number of tables that are copied at the same time."""

    workers: int
    selection: Selection = field(default_factory=Selection)
    chunk_time_s: float = 0.5
    limits: LoadLimits = field(default_factory=LoadLimits)


class IncrementalSnapshots:
    """The tables of one session. `run` works until it is cancelled; commands may come at any time."""

    def __init__(
        self,
        emitter: ChunkEmitter,
        progress: StreamProgress,
        writer: Writer,
        published: PublishedTables,
        new_reader: Callable[[], ChunkReader],
        reports: TableReports,
        blocking: Callable[[InThread, ReleaseReader], BlockingSnapshots],
        topic_keys: TopicKeys,
        options: CopyOptions,
        *,
        lag_s: Callable[[], float | None] = lambda: None,
        note_ended: Callable[[int], None] = lambda _relid: None,
    ) -> None:
        """`lag_s`: cdcd's replication lag, None if it is not known.

        `note_ended` is called with the table of each copy that ends because the table is not published.
        `blocking` makes the blocking snapshots, which use the threads of this session.
        """
        self._copies = copies = progress.copies
        self._emitter = emitter
        self._progress = progress
        self._writer = writer
        self._published = published
        self._new_reader = new_reader
        self._reports = reports
        self._workers = options.workers
        self._selection = options.selection
        self._chunk_time_s = options.chunk_time_s
        self._gate = LoadGate(options.limits)
        self._lag_s = lag_s
        self._note_ended = note_ended
        self._changed = asyncio.Event()
        self._failed: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._readers: set[ChunkReader] = set()
        self._reading: dict[WatchedTable, ChunkReader] = {}
        """The reader of each copy at work."""
        self._cancelling: set[asyncio.Task[None]] = set()
        self._threads: dict[asyncio.Future[Any], object] = {}
        """The running calls, each with the reader that it uses."""
        self._descriptions: dict[int, Description] = {}
        self._number = itertools.count()
        self._tried: dict[int, int] = {}
        """When the copy of each table was left last: a table that has to wait lets the others go first."""
        self._parts = Parts(
            copies, emitter, published.plan_of, self._in_thread, reports, self._wait_for_load, topic_keys
        )
        reports.retain([*copies.tables, *copies.blocking])
        self._blocking = blocking(self._in_thread, self._release)
        for relid, table in copies.tables.items():
            reports.begin(relid, table.copy.state)

    async def run(self) -> None:
        """Copy the tables, some at the same time, until cancelled. Raises errors that are not of the tree."""
        blocking = asyncio.create_task(self._blocking.run())
        try:
            for step in (self._name_tables, self._end_dropped):
                with contextlib.suppress(CdcdError):  # a command, or the next session, tries it again
                    await step()
            while True:
                self._changed.clear()
                self._start_tables()
                waiting = asyncio.ensure_future(self._changed.wait())
                tasks = [waiting, blocking, *self._tasks.values()]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                if blocking.done():
                    blocking.result()
                for relid, task in list(self._tasks.items()):
                    if task.done():
                        del self._tasks[relid]
                        task.result()
        finally:
            blocking.cancel()
            await asyncio.wait([blocking])
            await self._close()

    async def _end_dropped(self) -> None:
        """End the copies of tables that do not exist any more, also paused and failed ones. Raises CdcdError."""
        if not (relids := list(self.relids)):
            return
        reader = await self._in_thread(self._new_reader)  # it compares the server with that of the stream
        self._readers.add(reader)
        try:
            existing = await self._in_thread(reader.existing, relids)
        finally:
            await self._release(reader)
        if gone := tuple(relid for relid in relids if relid not in existing):
            for relid in gone:
                table = self._reports.name_of(relid)
                _LOG.warning("table_not_copied", table=table, error="the table was dropped")
            await self._stop(SnapshotCommand("stop", relids=gone))

    async def _name_tables(self) -> None:
        """Learn the names of tables that an earlier process has begun. Raises Source errors."""
        unnamed = [relid for relid in self.relids if not self._reports.is_named(relid)]
        if unnamed:
            for relid, title in (await self._in_thread(self._published.titles_of, unnamed)).items():
                self._reports.named(relid, title)

    def _start_tables(self) -> None:
        for relid, table in sorted(self._copies.tables.items(), key=lambda one: self._tried.get(one[0], -1)):
            if len(self._tasks) >= self._workers:
                return
            if relid not in self._tasks and relid not in self._failed and not table.copy.state.is_paused:
                self._tasks[relid] = asyncio.create_task(self._copy(relid, table))

    async def _copy(self, relid: int, table: WatchedTable) -> None:
        """Copy one table to its end, or until it is paused or fails."""
        reader: ChunkReader | None = None
        copier: TableCopier | None = None
        described = self._descriptions.pop(relid, None)
        try:
            reader = await self._in_thread(self._new_reader)
            self._readers.add(reader)
            self._reading[table] = reader
            pace = ChunkPace(self._chunk_time_s, self._gate.limits.most_rows(self._chunk_time_s))
            copier = TableCopier(relid, table, reader, self._parts, pace, described)
            await self._run(copier, relid, table)
        except (SourceUnavailable, SinkUnavailable) as error:
            if self._copies.tables.get(relid) is not table:
                return  # its query was cancelled
            self._reports.waits(relid, error.message)
            _LOG.warning("snapshot_interrupted", table=self._reports.name_of(relid), error=str(error))
            await asyncio.sleep(RECONNECT_S)
        except CdcdError as error:
            if self._copies.tables.get(relid) is table:  # else a command has begun another copy
                self._failed.add(relid)
                self._reports.failed(relid, error.message)
            _LOG.error(
                "table_not_copied", table=self._reports.name_of(relid), error=str(error), hint=error.advice
            )
        finally:
            self._reading.pop(table, None)
            self._tried[relid] = next(self._number)
            if copier is not None and copier.described is not None and relid not in self._descriptions:
                self._descriptions[relid] = copier.described
            if reader is not None:
                await self._release(reader)

    async def _run(self, copier: TableCopier, relid: int, table: WatchedTable) -> None:
        """Copy, and record the end if it is reached. Raises CdcdError."""
        try:
            is_complete = await copier.run()
        except NotPublished as error:
            name = self._reports.name_of(relid)
            _LOG.warning("table_not_copied", table=name, error=error.without_hint, hint=_UNPUBLISHED_HINT)
            await self._end_unpublished(relid, table)
            return
        if is_complete:
            await self._complete(relid, table)

    def _cancel(self, tables: Iterable[WatchedTable]) -> None:
        """Cancel the queries of copies that are not wanted any more: one chunk may be a scan of the whole table."""
        for table in tables:
            if (reader := self._reading.get(table)) is not None:
                task = asyncio.create_task(self._cancel_until_ended(table, reader))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

    async def _cancel_until_ended(self, table: WatchedTable, reader: ChunkReader) -> None:
        """Cancel again while the copy is at work: a request that arrives before its statement has no effect."""
        while self._reading.get(table) is reader:
            await self._in_thread(reader.cancel)
            await asyncio.sleep(CANCEL_AGAIN_S)

    async def _wait_for_load(self, relid: int, table: WatchedTable, reader: ChunkReader) -> None:
        """Wait while the load on the source is above a limit, unless the table is paused or stopped."""
        gate, is_counted = self._gate, self._gate.limits.pause_above_active_sessions is not None
        gate.was_read(reader.take_rows_read(), time.monotonic())
        while self._copies.tables.get(relid) is table and not table.copy.state.is_paused:
            sessions = await self._in_thread(reader.sessions) if is_counted else None
            wait = gate.wait(time.monotonic(), self._lag_s(), sessions)
            if wait is None:
                return
            if not table.copy.state.is_paused:
                self._reports.waits(relid, wait.reason)
            await asyncio.sleep(wait.seconds)

    async def _complete(self, relid: int, table: WatchedTable) -> None:
        await self._emitter.between_transactions()
        try:
            if self._copies.tables.get(relid) is not table or not table.copy.state.is_complete:
                return
            end = await self._emitter.end_of(table.copy.state)
            self._copies.end(relid)
            self._copies.incomplete.completes(relid, table.copy.state.topic)
            if table.copy.state.where is None:
                self._copies.note_coverage(relid, is_whole=True)
            await self._write_state(end)
        finally:
            self._emitter.turn.release()
        hit("table_copied")
        _LOG.info("table_copied", table=self._reports.name_of(relid), rows=self._reports.rows_of(relid))
        self._reports.complete(relid)

    async def _end_unpublished(self, relid: int, table: WatchedTable) -> None:
        """End the copy of a table without further rows, as a command to stop it does."""
        await self._emitter.between_transactions()
        try:
            if self._copies.tables.get(relid) is not table:
                return
            end = await self._ends_of([relid])
            self._copies.end(relid)
            self._copies.note_coverage(relid, is_whole=False)
            self._reports.end(relid)
            self._note_ended(relid)  # in the same Kafka transaction as the end
            await self._write_state(end)
        finally:
            self._emitter.turn.release()

    async def _write_state(self, records: Sequence[Record] = ()) -> None:
        """Add the position with the present state, and records with it; `turn` is held."""
        await self._writer.add(RecordChunk(records, 256 * len(records), self._progress.commit_position()))

    async def _ends_of(self, relids: Iterable[int]) -> list[Record]:
        """Return the END of each copy that is ended before its last row."""
        states = [self._copies.tables[relid].copy.state for relid in relids if relid in self._copies.tables]
        return [record for state in states for record in await self._emitter.end_of(state)]

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        thread = start_in_thread(function, *args)
        method = function.func if isinstance(function, partial) else function
        self._threads[thread] = getattr(method, "__self__", None)
        thread.add_done_callback(self._threads.pop)
        return await asyncio.shield(thread)

    async def _release(self, reader: ChunkReader | SnapshotReader) -> None:
        """Close a connection after the thread that uses it has ended: libpq's memory is freed.

        A server does not notice that the connection was lost before its statement returns a row.
        """
        threads = [thread for thread, user in self._threads.items() if user is reader]
        if isinstance(reader, ChunkReader):
            self._readers.discard(reader)
            if threads:
                await asyncio.wait([start_in_thread(reader.cancel)], timeout=CANCEL_WITHIN_S)
        reader.hang_up()
        for thread in threads:
            await settled(thread)
        reader.close()

    async def _close(self) -> None:
        ended = [*self._tasks.values(), *self._cancelling]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        for reader in self._readers:
            reader.hang_up()
        for thread in list(self._threads):
            await settled(thread)

    # --- commands ---

    async def execute(self, command: SnapshotCommand) -> CommandResult:
        """Apply a command; return the tables. Raises CdcdError; then nothing was changed."""
        if self._blocking.is_copying and not self._may_wait(command):
            raise SnapshotRefused("the stream waits for a blocking snapshot", hint=_BLOCKED_HINT)
        left_out: dict[str, str] = {}
        apply: dict[Action, Callable[[SnapshotCommand], Awaitable[Sequence[str]]]] = {
            "start": partial(self._start, left_out=left_out),
            "pause": self._pause,
            "resume": self._pause,
            "stop": self._stop,
        }
        titles = await apply[command.action](command)
        self._changed.set()
        await self._writer.flush()
        if command.is_blocking:
            hit("blocking_recorded")
            self._blocking.wake()
        _LOG.info("snapshot_command", action=command.action, tables=list(titles))
        return CommandResult(tuple(titles), left_out)

    def _may_wait(self, command: SnapshotCommand) -> bool:
        """Return whether a command may wait for a blocking snapshot: nobody waits for it, or it ends the copy."""
        is_by_itself = command.signal_offset is not None or bool(command.relids)
        return is_by_itself or (command.action == "stop" and self._concerns_blocking(command))

    def _concerns_blocking(self, command: SnapshotCommand) -> bool:
        if command.relids:
            return not self._blocking.relids.isdisjoint(command.relids)
        names = {self._reports.name_of(relid) for relid in self._blocking.relids}
        return bool(names) and (not command.tables or not names.isdisjoint(command.tables))

    async def _start(self, command: SnapshotCommand, left_out: dict[str, str]) -> Sequence[str]:
        described = await self._described(command, left_out)
        if command.compare:
            described = [one for one in described if await self._can_compare(one, command, left_out)]
        await self._emitter.between_transactions()
        try:
            records: list[Record] = []
            if not command.relids:  # a few tables of the session's own
                refuse_large(self._state_after(described, command))
            if command.is_blocking:
                await self._blocking.begin(
                    described, command, lambda relid: self._published.plan_of(relid).topic
                )
            else:
                self._blocking.refuse([one.table for one in described])
                relids = [one.table.relid for one in described]
                records, replaced = await self._ends_of(relids), self._watched(relids)
                for one in described:
                    records += self._begin(one, command)
                self._cancel(replaced)
            self._note_signal(command)
            await self._write_state(records)
        finally:
            self._emitter.turn.release()
        return [one.table.title for one in described]

    def _state_after(self, described: Iterable[Description], command: SnapshotCommand) -> CopyState:
        """Return the state with the copies that a command begins."""
        if not command.is_blocking:
            tables = {one.table.relid: self._first_state(one, command) for one in described}
            return self._copies.with_begun(tables, {})
        topics = {one.table.relid: self._published.plan_of(one.table.relid).topic for one in described}
        blocking = {relid: BlockingCopyState(topic, command.where) for relid, topic in topics.items()}
        return self._copies.with_begun({}, blocking)

    def _watched(self, relids: Iterable[int]) -> list[WatchedTable]:
        return [self._copies.tables[relid] for relid in relids if relid in self._copies.tables]

    async def _can_compare(
        self, described: Description, command: SnapshotCommand, left_out: dict[str, str]
    ) -> bool:
        """Return whether a table's rows can be compared; of a command that names tables, raise SnapshotRefused."""
        table, is_named = described.table, bool(command.tables)
        plan: RelationPlan = self._published.plan_of(table.relid)
        try:
            check_comparable(table, plan)
            if is_named:
                await in_thread(self._parts.topic_keys.ends_of, plan)
        except SnapshotRefused as refusal:
            if is_named:
                raise
            _leave_out(table.title, refusal, left_out)
            return False
        return True

    def _begin(self, described: Description, command: SnapshotCommand) -> list[Record]:
        """Begin a copy; return the truncate event, if it has one.

        It is written with the state: a copy that continues after a crash does not write it again.
        """
        relid = described.table.relid
        plan: RelationPlan = self._published.plan_of(relid)
        state = self._first_state(described, command)
        self._descriptions[relid] = described
        self._failed.discard(relid)
        if command.recopy or relid in self._copies.tables:
            self._copies.note_coverage(relid, is_whole=False)  # until all of its rows are copied
        self._copies.incomplete.begins(relid, plan.topic, is_needed=command.recopy or bool(command.relids))
        self._copies.begin(relid, state)
        self._reports.begin(relid, state, described)
        return self._emitter.truncate(plan) if command.recopy else []

    def _first_state(self, described: Description, command: SnapshotCommand) -> TableCopyState:
        return TableCopyState(
            self._published.plan_of(described.table.relid).topic,
            where=described.table.where,
            partitions=described.partitions,
            key=described.order,
            compared_from=() if command.compare else None,
            columns=described.table.wanted,
            row_filter=described.table.filter_digest,
        )

    async def _described(self, command: SnapshotCommand, left_out: dict[str, str]) -> list[Description]:
        """Describe the tables of a command. Raises CdcdError for the first that cannot be copied."""
        reader = await self._in_thread(self._new_reader)
        self._readers.add(reader)
        try:
            if not command.tables and not command.relids:
                return await self._all_described(reader, left_out)
            relids: Sequence[int] = command.relids
            if command.tables:
                relids = await self._in_thread(self._published.relids_of, command.tables)
            return [
                await describe_as_received(
                    reader, self._parts, relid, command.where, is_by_key=not command.is_blocking
                )
                for relid in dict.fromkeys(relids)
            ]
        finally:
            await self._release(reader)

    async def _all_described(self, reader: ChunkReader, left_out: dict[str, str]) -> list[Description]:
        """Describe every published table that is included and can be copied."""
        tables = self._selection.choose(await self._in_thread(self._published.all))
        if len(tables) > MAX_TABLES:
            raise SnapshotRefused(f"{len(tables)} tables are published", hint=_TOO_MANY_HINT)
        found = []
        for table in sorted(tables, key=lambda one: self._selection.rank(one, 0)):
            try:
                found.append(await describe_as_received(reader, self._parts, table.relid, table.where))
            except (SnapshotRefused, SourceSetup) as refusal:
                _leave_out(table.title, refusal, left_out)
        return found

    async def _pause(self, command: SnapshotCommand) -> Sequence[str]:
        is_paused = command.action == "pause"
        await self._name_tables()
        await self._emitter.between_transactions()
        try:
            chosen = self._chosen(command, self._copies.tables)
            for relid in chosen:
                self._failed.discard(relid)
                self._copies.pause(relid, is_paused=is_paused)
                self._reports.paused(relid, is_paused=is_paused)
            self._note_signal(command)
            await self._write_state()
        finally:
            self._emitter.turn.release()
        return list(chosen.values())

    async def _stop(self, command: SnapshotCommand) -> Sequence[str]:
        await self._name_tables()
        if not self._concerns_blocking(command):
            return await self._stop_tables(command)
        async with self._blocking.interrupted():
            return await self._stop_tables(command)

    async def _stop_tables(self, command: SnapshotCommand) -> Sequence[str]:
        await self._emitter.between_transactions()
        try:
            chosen = self._chosen(command, self.relids)
            ended, stopped = await self._ends_of(chosen), self._watched(chosen)
            for relid in chosen:
                if relid in self._blocking.relids:
                    self._blocking.stop(relid)
                self._copies.end(relid)
                self._copies.note_coverage(relid, is_whole=False)
                self._failed.discard(relid)
                self._reports.end(relid)
            self._cancel(stopped)
            self._note_signal(command)
            await self._write_state(ended)
        finally:
            self._emitter.turn.release()
        return list(chosen.values())

    @property
    def relids(self) -> Collection[int]:
        """The tables that are being copied, failed ones included."""
        return [*self._copies.tables, *self._blocking.relids]

    @property
    def live(self) -> Collection[int]:
        """Those of them that have not failed."""
        return [*(relid for relid in self._copies.tables if relid not in self._failed), *self._blocking.live]

    @property
    def blocking(self) -> Collection[int]:
        """Those of them that are copied while the stream waits."""
        return self._blocking.relids

    @property
    def signals_at(self) -> int:
        """The offset of the next signal, -1 if none was read."""
        return self._copies.signals_at

    async def pass_signals(self, next_offset: int) -> None:
        """Record that signals below this offset need nothing more."""
        await self._record(lambda: self._copies.read_signals(next_offset))

    async def note_uncopied(self, relids: Collection[int], published: Collection[int]) -> None:
        """Record that the topics of tables that have joined lack rows until all are copied.

        `published`: all published tables; of others nothing is recorded any more.
        """
        if not self._copies.partial.issuperset(relids):
            await self._record(lambda: self._copies.note_uncopied(relids, published))

    async def record_topics(self) -> None:
        """Record the topics that lack rows, at once: otherwise the next rows do so."""
        await self._record(lambda: None)

    async def _record(self, note: Callable[[], None]) -> None:
        """Note something between two transactions, and wait until the progress record has it."""
        await self._emitter.between_transactions()
        try:
            note()
            await self._write_state()
        finally:
            self._emitter.turn.release()
        await self._writer.flush()

    def _note_signal(self, command: SnapshotCommand) -> None:
        if command.signal_offset is not None:
            self._copies.read_signals(command.signal_offset + 1)

    def _chosen(self, command: SnapshotCommand, relids: Collection[int]) -> dict[int, str]:
        """Return the tables of a command that are among these, by relid. Raises SnapshotRefused."""
        copied = {relid: self._reports.name_of(relid) for relid in relids}
        if command.relids:
            return {relid: name for relid, name in copied.items() if relid in command.relids}
        named = {relid: self._meant(relid, name, command.tables) for relid, name in copied.items()}
        chosen = {relid: copied[relid] for relid, name in named.items() if not command.tables or name}
        missing = sorted(set(command.tables) - set(named.values()))
        blocking = {self._reports.name_of(relid) for relid in self._blocking.relids}
        if missing and missing[0] in blocking:
            raise SnapshotRefused(_UNPAUSABLE, hint=_UNPAUSABLE_HINT, table=missing[0])
        if missing:
            raise SnapshotRefused("the table is not being copied", table=missing[0])
        return chosen

    def _meant(self, relid: int, name: str, tables: Collection[str]) -> str:
        """Return which of these names means a table, "" if none does.

        A table that was dropped before this process began is known by its topic only.
        """
        if name in tables:
            return name
        if self._reports.is_named(relid):
            return ""
        return next((one for one in tables if name.endswith(f".{one}")), "")


def _leave_out(title: str, refusal: CdcdError, left_out: dict[str, str]) -> None:
    """Note that a command for all tables does not copy one of them."""
    _LOG.warning("table_not_copied", table=title, error=refusal.message, hint=refusal.advice)
    left_out[title] = refusal.message
