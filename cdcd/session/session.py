"""One session: open the sink, decide where to begin, copy if need be, stream until something ends it.

In: the configuration's settings, a stop event.  Out: returns after an orderly stop; raises an error of the tree.
Invariant: a session is one producer epoch and one walsender connection (F9, F27): whatever ends it, the open
Kafka transaction is aborted and everything in memory is discarded. The next session reads the durable position from
Kafka (F76) and the slot's position from PostgreSQL (F3), and begins there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import structlog

from cdcd.ack.position_tracker import PositionTracker
from cdcd.avro.encode import ENCODES_TRANSACTION_BATCHES
from cdcd.avro.transaction import TransactionContext
from cdcd.config import Config
from cdcd.errors import (
    CdcdError,
    OwnedByAnother,
    SinkAuthorization,
    SinkFenced,
    SinkUnavailable,
    SlotUnusable,
    SourceMismatch,
    SourceUnavailable,
)
from cdcd.lsn import INVALID_LSN, format_lsn
from cdcd.model import Gap, PreparedBefore, Progress, Timelines, TransactionInfo
from cdcd.monitoring.retry_waits import own_topics
from cdcd.pipeline.buffers import Buffers, waiting_share
from cdcd.pipeline.chunk_emitter import ChunkEmitter
from cdcd.pipeline.dead_letters import DeadLetters
from cdcd.pipeline.floors import Floors
from cdcd.pipeline.partial_transaction import numbered_by
from cdcd.pipeline.plans import Plans
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.table_copies import TableCopies
from cdcd.pipeline.writer import COMMIT_COOLDOWN_US, Writer, WriterOptions
from cdcd.recovery.start_decision import Resume, Snapshot
from cdcd.session.background_tasks import BackgroundTasks, StopRequested, in_background, or_stop
from cdcd.session.clients import Clients
from cdcd.session.closing import Closing, commit_progress_in_time, flush_in_time
from cdcd.session.fencing import error_of_fencing, refuse_if_taken_over
from cdcd.session.gap import Markers, after_markers, gap_of_table, mark_gap, with_topics
from cdcd.session.incremental import IncrementalSnapshots
from cdcd.session.incremental_parts import background_work, new_incremental_snapshots
from cdcd.session.option_downgrade import unsafe_options
from cdcd.session.parts import SessionParts
from cdcd.session.process_state import ProcessState
from cdcd.session.queries import is_any_rolled_back, prepared_before_slot
from cdcd.session.rotation import Rotation
from cdcd.session.schema_warnings import warn_of_halts
from cdcd.session.signal_follower import first_signal
from cdcd.session.snapshot_handover import SnapshotHandover, published_now
from cdcd.session.start_state import SessionStart, StartState, position_before
from cdcd.session.streaming import Streaming
from cdcd.session.topic_watch import watch
from cdcd.sink.visible import Visibility
from cdcd.source.identity import ServerIdentity
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.settings import StreamOptions
from cdcd.source.start_lock import StartLock
from cdcd.source.stream import ReplicationStream, open_stream
from cdcd.spill.pool import SpillPool
from cdcd.threads import in_thread
from cdcd.txn.assembler import Assembler
from cdcd.version import __version__
from cdcd.waits import Blocker

_LOG = structlog.stdlib.get_logger("cdcd.session")
_PREPARED_HINT = (
    "if another consumer of this slot has confirmed the PREPARE of these transactions, the server does not send "
    "their rows, and cdcd halts at their COMMIT PREPARED; at a ROLLBACK PREPARED nothing is lost. Commit or roll "
    "back prepared transactions before cdcd starts on a slot for the first time"
)

_NOTHING_TO_COPY_HINT = (
    "cdcd has streamed from this slot already, and snapshot.mode: initial_only does not stream: set snapshot.mode: "
    "initial to continue; if you do not want to continue, `cdcd drop-slot` releases the WAL that the slot retains"
)


def _confirm_nothing(_lsn: int) -> None:
    """Do nothing: before the stream is open there is no slot to confirm to."""


class Session:
    """The parts of one session. `run` is called once. `last_error`: what ended the last session that streamed.

    `state` outlives the session.
    """

    def __init__(
        self,
        config: Config,
        state: ProcessState,
        stop: asyncio.Event,
        *,
        last_error: CdcdError | None = None,
        is_snapshot_due: bool = False,
    ) -> None:
        self._config = config
        self._state = state
        self._commands = state.commands
        self._last_error = last_error
        self._status = status = state.status
        self._publications = state.publications
        self._is_snapshot_due = is_snapshot_due
        self._stop = stop
        self._source = config.source_settings()
        self._rotation = Rotation(config)  # first, so that it hashes the files before a client reads them
        self._clients = Clients(config, state.limits, state.schemas)
        self._plans = Plans(
            self._clients.catalog,
            self._clients.topics,
            state.schemas,
            name=config.name,
            template=config.sink.topics.template,
            policies=config.format.policies(),
            subjects=config.registry.subjects,
            incompatible=config.registry.incompatible,
            waiting=status.waits.on,
            note_written=self._publications.incomplete.written,
            note_altered=self._publications.incomplete.altered,
        )
        status.waits.blocker_queries["kafka"] = status.waits.blocker_queries["back_pressure"] = (
            self._who_holds_kafka_up
        )
        self._database = ""
        self._timelines = Timelines(0, {})
        self._durable_us = 0
        """Commit time of the last transaction that is durable before the stream (Unix epoch), 0: not known."""
        self._writer: Writer | None = None
        self._spill: SpillPool | None = None
        self._buffers: Buffers | None = None
        self._own_pid: int | None = None
        self._failed = asyncio.Event()
        self._failure: CdcdError | None = None
        self._loop = asyncio.get_running_loop()
        self._start_lock = StartLock(self._source, self._fail_from_thread)
        self.has_begun_copy = False
        """Whether the session has begun a snapshot, or continued an interrupted one."""
        self.has_streamed = False
        """Whether the session has opened the stream."""
        self.asked_us: int | None = None
        """When the session asked for the stream, by the server's clock (Unix epoch); None: it has not asked yet."""

    @property
    def durable_lsn(self) -> int:
        """The end LSN that is durable in Kafka, 0 before the session knows it."""
        return INVALID_LSN if self._writer is None else self._writer.safe_lsn

    @property
    def has_begun(self) -> bool:
        """Whether the session has decided where it begins: a later error may change the next session's decision."""
        return self._writer is not None

    @property
    def has_advanced(self) -> bool:
        """Whether the session has made anything of the stream durable."""
        return self._writer is not None and self._writer.has_advanced

    def fail(self, error: CdcdError) -> None:
        """End the session with an error that a monitor or another thread has found."""
        self._failure = error
        self._failed.set()

    def _fail_from_thread(self, error: CdcdError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the session with it
            self._loop.call_soon_threadsafe(self.fail, error)

    async def run(self) -> None:
        """Run the session; return when `stop` is set and everything durable is confirmed."""
        is_memory_short = False
        self._status.source.begins()
        try:
            start_state, to_try = await self._start()
            await self._work(start_state, to_try)
        except StopRequested:
            _LOG.info("stopped_before_streaming", hint="the next start repeats all work that is not complete")
        except SinkFenced as error:
            raise await self._cause_of_fencing(error) from error
        except CdcdError as error:
            self._note_whose_slot(error)
            self._status.state("backoff", error)  # closing may take long; /status shows the reason meanwhile
            raise
        except MemoryError:
            # Closing takes threads, and a thread takes memory: the process ends at once.
            is_memory_short = True
            raise
        finally:
            self._publications.is_on = False
            self._status.source.ends()
            if not is_memory_short:
                await self._close()

    async def _start(self) -> tuple[StartState, Mapping[str, PublishedTable | None]]:
        """Check, fence and decide; return the state, and the tables whose schemas are to be tried."""
        session_start = SessionStart(
            self._config,
            self._clients,
            self._status,
            self._publications,
            self._last_error,
            self._state.crashes,
            is_snapshot_due=self._is_snapshot_due,
        )
        async with in_background(self._raise_failure()) as background:
            # F69: before the sink is opened. That would fence a daemon that copies, when no session holds the slot.
            pid = await background.or_failure(or_stop(in_thread(self._start_lock.acquire), self._stop))
            self._status.own_pids = {pid}
            await background.or_failure(or_stop(session_start.run_checks(), self._stop))
            # F79: from here on the start changes something.
            self._spill = await in_thread(SpillPool, self._config.spill_settings(), self._status)
            start_state = await background.or_failure(or_stop(session_start.fence_and_decide(), self._stop))
        self._clients.catalog.expect(start_state.server)
        self._database, self._timelines = start_state.server.database, start_state.timelines
        self._durable_us = 0 if start_state.stored is None else start_state.stored.commit_us
        return start_state, session_start.to_try_in_background

    async def _work(self, start_state: StartState, to_try: Mapping[str, PublishedTable | None]) -> None:
        """Write the markers of a gap, copy if need be, and stream."""
        self._writer = writer = self._new_writer(start_state)
        self._status.writing(writer)
        async with in_background(
            writer.run(),
            self._raise_failure(),
            watch(self._clients.topics, self._clients.schemas, self._plans),
            warn_of_halts(self._config, to_try, self._clients.schemas, self._clients.topics.has_records),
            self._rotation.keep(writer, self._clients.renew, self._status),
        ) as background:
            position = await background.or_failure(or_stop(self._begin(start_state, writer), self._stop))
            if position is not None:
                await self._stream(position, start_state, writer, background)

    async def _begin(self, start_state: StartState, writer: Writer) -> Resume | None:
        """Return where the stream begins, after a copy if need be; None if no stream follows."""
        position = start_state.verdict
        if start_state.stored is not None and start_state.stored.gap is not None:
            markers = await self._mark_gap(start_state, start_state.stored, start_state.stored.gap, writer)
            self._state.ended_gaps.clear()
            self._state.ended_gaps.update(markers.ended)
            if isinstance(position, Resume):
                position = replace(position, copy=after_markers(position.copy, markers.lsn, markers.tx_seq))
            elif isinstance(position, Snapshot):
                begun = with_topics(position.begun_topics, markers.ended.values())
                position = replace(position, begun_topics=begun)
        if self._config.snapshot.mode == "no_data" and start_state.is_first:
            await self._describe_tables()
        if isinstance(position, Snapshot):
            return await self._copy(position, start_state, writer)
        if self._config.snapshot.mode == "initial_only":
            _LOG.info("nothing_to_copy", slot=self._source.slot, hint=_NOTHING_TO_COPY_HINT)
            return None
        return position

    def _note_whose_slot(self, error: CdcdError) -> None:
        """Record what the error that ends this session proves about the slot's owner (F80).

        While Kafka cannot be asked, the slot counts as our own: the WAL guard has to act at such a time, too.
        """
        if isinstance(error, (OwnedByAnother, SlotUnusable, SourceMismatch)):
            self._status.is_slot_anothers = True
        elif self._status.is_slot_anothers is None and isinstance(
            error, (SinkUnavailable, SinkAuthorization)
        ):
            self._status.is_slot_anothers = False

    async def _cause_of_fencing(self, error: SinkFenced) -> CdcdError:
        """Return the error for the cause: another cdcd, or the broker's timeout."""
        find_cause = partial(
            error_of_fencing,
            age_s=self._clients.sink.age_s,
            own_pid=self._own_pid,
            own_offset=self._clients.sink.progress_offset,
        )
        try:
            return await or_stop(
                in_thread(find_cause, error, self._source, self._clients.sink_settings), self._stop
            )
        except StopRequested:
            return error

    async def _raise_failure(self) -> None:
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure

    def _new_writer(self, start_state: StartState) -> Writer:
        return Writer(
            self._clients.sink,
            start_state.identity,
            self._writer_options(),
            confirm=_confirm_nothing,
            observer=self._status,
            durable_lsn=start_state.durable_lsn,
            ahead=self._clients.schema_topic,
            too_large=DeadLetters(self._plans, self._status, self._config.dead_letter_topic),
            waiting=partial(self._status.waits.on, "kafka", "the records of a group"),
            before_renewal=lambda: refuse_if_taken_over(self._source, self._own_pid),
            is_record_due=lambda: self._publications.incomplete.is_unwritten,
        )

    def _writer_options(self) -> WriterOptions:
        config, is_exactly_once = self._config, self._clients.is_exactly_once
        return WriterOptions(
            config.group_limits(),
            waiting_limit_bytes=waiting_share(config.buffer.memory),
            numbered_by=numbered_by(config),
            commit_cooldown_us=COMMIT_COOLDOWN_US if is_exactly_once else 0,
            is_at_least_once=not is_exactly_once,
        )

    def _parts(self, writer: Writer) -> SessionParts:
        return SessionParts(
            self._config,
            self._clients,
            self._plans,
            writer,
            self._status,
            self._commands.table_reports,
            self._new_context,
        )

    def _new_context(self, info: TransactionInfo) -> TransactionContext:
        return self._context_on(info, self._timelines.at(info.commit_lsn))

    def _context_on(self, info: TransactionInfo, timeline: int) -> TransactionContext:
        return TransactionContext(
            info,
            timeline=timeline,
            name=self._config.name,
            database=self._database,
            now_us=time.time_ns() // 1000,
            version=__version__,
            has_block=self._config.format.transactions and not info.snapshot,
        )

    async def _mark_gap(self, start_state: StartState, stored: Progress, gap: Gap, writer: Writer) -> Markers:
        """Mark an accepted gap in the topics; from then on the progress record has no gap."""
        tables = await published_now(self._source, self._clients.catalog, self._status)
        chosen = self._config.snapshot.selection().choose(table for table, _ in tables)
        copied = {table.relid for table in chosen if self._config.snapshot.copies_tables}
        wal_lsn = start_state.server.wal_lsn
        marked = [
            (relation, gap_of_table(gap, wal_lsn, is_copied=table.relid in copied))
            for table, relation in tables
        ]
        return await mark_gap(stored, gap, marked, self._plans, writer, self._timelines, self._context_on)

    def _who_holds_kafka_up(self) -> tuple[Blocker, ...]:
        topics = [*own_topics(self._config), *self._plans.partitions]
        return self._clients.without_leader(topics)

    async def _describe_tables(self) -> None:
        """Create the topics and the schemas of all published tables."""
        tables = await published_now(self._source, self._clients.catalog, self._status)
        await self._plans.plan_tables([relation for _, relation in tables])
        _LOG.info("tables_described", tables=len(tables))

    async def _copy(self, begin: Snapshot, start_state: StartState, writer: Writer) -> Resume | None:
        """Create the slot and copy; return where the stream begins, None if no stream follows."""
        self.has_begun_copy = True
        self._commands.table_reports.retain(())
        # A change that the copy does not have commits later.
        self._durable_us = self._status.lag.now_us() if begin.left is None else begin.left.since_us
        handover = SnapshotHandover(
            self._parts(writer), self._state.stale, self._publications.incomplete, self._state.ended_gaps
        )
        with self._status.waits.on("kafka", "the topic of signals"):
            signals_at = await first_signal(self._config, start_state.stored)
        resume = await handover.run(begin, start_state.server, self._durable_us, signals_at)
        self._publications.copied(handover.copied)
        return resume

    # --- the stream ---

    async def _stream(
        self,
        begin: Resume,
        start_state: StartState,
        writer: Writer,
        background: BackgroundTasks,
    ) -> None:
        self.asked_us = start_state.server.clock_us
        self._state.ended_gaps.clear()
        opening = open_stream(self._source, start_state.options, begin.start_lsn, start_state.server)
        stream = await or_stop(opening, self._stop)
        self._own_pid = stream.backend_pid
        self._status.own_pids.add(stream.backend_pid)
        self._start_lock.release()  # the slot is held from here on
        try:
            before = await self._prepared_before(begin, start_state.server)
            streaming, copying = self._new_streaming(stream, begin, start_state, before, writer)
            streaming.begin(position_before(begin, start_state, before, self._durable_us))
            with self._commands.attached(copying):  # before /status says that the session streams
                self._note_streaming(stream, begin, start_state)
                await self._stream_to_its_end(streaming, copying, start_state.options, writer, background)
        finally:
            await stream.close()
            self._status.source_closed()

    async def _prepared_before(self, begin: Resume, server: ServerIdentity) -> PreparedBefore:
        before = await or_stop(in_thread(prepared_before_slot, self._source, begin, server), self._stop)
        if before.undecided:
            _LOG.warning("prepared_before_slot", transactions=len(before.undecided), hint=_PREPARED_HINT)
        return before

    def _new_streaming(
        self,
        stream: ReplicationStream,
        begin: Resume,
        start_state: StartState,
        before: PreparedBefore,
        writer: Writer,
    ) -> tuple[Streaming, IncrementalSnapshots]:
        options, spill = start_state.options, self._spill
        assert spill is not None
        stream.batches_transactions = ENCODES_TRANSACTION_BATCHES and not self._config.format.transactions
        self._plans.begin_stream(is_sure=options.streaming == "off")
        assembler = Assembler(
            options.protocol_version,
            streaming_parallel=options.streaming == "parallel",
            two_phase=options.two_phase,
            written_commit_lsn=begin.written_commit_lsn,
            new_store=spill.new_store,
            refuse_unsafe_streaming=True,
            prepared_before=before,
        )
        memory = self._config.buffer.memory
        self._buffers = buffers = Buffers(spill, writer.drain, memory, self._status.waiting_for_disk)
        progress = StreamProgress(
            assembler,
            PositionTracker(begin.start_lsn, begin.written_commit_lsn, self._durable_us),
            part=start_state.part,
            floors=Floors(begin.copy),
            copies=TableCopies(begin.copy, self._publications.incomplete),
        )
        pump = Pump(
            assembler,
            self._plans,
            writer,
            self._new_context,
            self._status,
            progress,
            buffers=buffers,
            any_rolled_back=partial(in_thread, is_any_rolled_back, self._source, start_state.server),
        )
        emitter = ChunkEmitter(
            pump,
            writer,
            self._new_context,
            stream.ask_for_position,
            self._plans.snapshot_metadata if self._config.format.transactions else None,
        )
        copying = new_incremental_snapshots(
            self._parts(writer), start_state, pump, emitter, self._publications
        )
        return Streaming(stream, assembler, pump, writer, self._status, emitter.turn), copying

    def _note_streaming(self, stream: ReplicationStream, begin: Resume, start_state: StartState) -> None:
        options = start_state.options
        self._publications.new_tables.streams()
        self._status.incomplete(self._publications.incomplete.page)
        self._status.streaming(
            start_state.server, options, begin.start_lsn, self._durable_us, lambda: stream.sent_updates
        )
        self._status.durable_waits.readers = Visibility(self._clients.sink)
        _LOG.info(
            "streaming",
            slot=self._source.slot,
            start_lsn=format_lsn(begin.start_lsn),
            protocol_version=options.protocol_version,
            streaming=options.streaming,
            two_phase=options.two_phase,
            binary=options.binary,
        )
        self.has_streamed = True

    async def _stream_to_its_end(
        self,
        streaming: Streaming,
        copying: IncrementalSnapshots,
        options: StreamOptions,
        writer: Writer,
        background: BackgroundTasks,
    ) -> None:
        """Stream until `stop` is set, then commit the complete transactions; or raise the error of the stream."""
        flush_s = self._config.shutdown_timeout_ms / 2000
        try:
            with unsafe_options(options, self._last_error, slot=self._source.slot):
                await background.or_failure(self._until_stopped(streaming, copying))
        except SourceUnavailable:
            if not self._clients.is_exactly_once:
                writer.drop_partial_tail()
                await commit_progress_in_time(background.or_failure(writer.drain()), flush_s)
            raise
        writer.drop_partial_tail()
        await flush_in_time(background.or_failure(writer.drain()), flush_s)

    async def _until_stopped(self, streaming: Streaming, copying: IncrementalSnapshots) -> None:
        # One task for all turns, not one for each. Under back-pressure a turn waits for Kafka; a stop does not wait
        # for the turn (the server sends its changes again).
        with contextlib.suppress(StopRequested):
            works = background_work(self._config, copying, self._publications)
            async with in_background(*works) as background:
                await background.or_failure(or_stop(streaming.run(), self._stop))

    async def _close(self) -> None:
        self._start_lock.release()
        closing = Closing(self._stop, self._config.shutdown_timeout_ms / 10_000)
        await closing.abort_transaction(self._writer)
        self._status.writing(None)
        self._status.sink_closed()
        self._status.snapshot_ended(is_complete=False)
        await closing.clear(self._buffers, self._spill)
        await closing.close(
            sink=self._clients.sink, registry=self._clients.schemas, catalog=self._clients.catalog
        )
