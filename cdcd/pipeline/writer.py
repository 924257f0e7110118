"""Write groups of whole transactions to Kafka, and confirm the durable positions to PostgreSQL.

In: chunks of encoded records from the pump or the snapshot.  Out: Kafka transactions; `confirm(safe LSN)`.
Invariant: an LSN is confirmed only after the Kafka transaction that holds its progress record has committed
(F7, F64), and it is exactly a commit position's end LSN (F2). While a thread commits, encoding continues into the
waiting chunks; when these reach their limit in bytes, `add` waits. There is no other back-pressure (F15).
Must not: decode, or read the keys and values of records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcd.ack.group import CommitPosition, Group, GroupLimits, RecordChunk, SafeLsn
from cdcd.ack.wait_policy import wait_policy
from cdcd.clock import monotonic_us
from cdcd.errors import RecordTooLarge
from cdcd.failpoints import hit
from cdcd.model import CopyState, Progress, Record, SourceIdentity
from cdcd.pipeline.interfaces import Observer, PendingSchemas, Sink, TooLarge
from cdcd.pipeline.too_large import in_commit_order, transaction_too_large
from cdcd.threads import settled, start_in_thread

NO_ROOM_WAIT_S = 0.002
"""How long the event loop is blocked at most while librdkafka has no room."""
IDLE_PROGRESS_INTERVAL_US = 10_000_000
FIRST_IDLE_PROGRESS_US = 1_000_000
"""After rows: the end of a burst is confirmed soon, so that the slot of an idle database retains no WAL."""
COMMIT_PAUSE_S = 0.01
COMMIT_COOLDOWN_US = 1_000
"""A broker answers a commit before it has written the commit's markers. Meanwhile it refuses the next transaction on
the same partitions, and librdkafka retries 20 ms later."""
SEND_WAIT_S = 0.001
"""How long the event loop is blocked at most, once for each read, to send such rows. librdkafka sends while it is
polled; rows that it has not begun to send by then go with the next rows, or with the position."""
STALL_US = 1_000_000
"""A producer that accepts no record for this long is stalled, not slow."""


@dataclass(slots=True)
class MaintenanceTask:
    """Work to do between two groups."""

    work: Callable[[], None]
    running: asyncio.Future[None] | None = None
    is_done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Positions:
    """How many commit positions were added, were taken into a group, are durable or need not be."""

    added: int = 0
    taken: int = 0
    durable: int = 0


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The limits and the delivery of a writer.

    `numbered_by`: the hash of the options that number changes. `is_at_least_once`: readers see rows as they are
    written, before their group is complete.
    """

    limits: GroupLimits
    waiting_limit_bytes: int
    numbered_by: str = ""
    commit_cooldown_us: int = 0
    is_at_least_once: bool = False


class Writer:
    """Writes the groups of one producer epoch. `run()` ends only by an error or by cancellation."""

    _start = staticmethod(start_in_thread)
    _clock_us = staticmethod(monotonic_us)

    def __init__(
        self,
        sink: Sink,
        identity: SourceIdentity,
        options: WriterOptions,
        *,
        confirm: Callable[[int], None],
        observer: Observer,
        durable_lsn: int = 0,
        ahead: PendingSchemas | None = None,
        too_large: TooLarge | None = None,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        before_renewal: Callable[[], None] = lambda: None,
        is_record_due: Callable[[], bool] = lambda: False,
    ) -> None:
        """`waiting`: encloses each wait for Kafka.

        `before_renewal`: raises an error if another daemon may have taken over, whose producer a new epoch would
        fence (F69). `is_record_due`: whether the sink has something to write with a position, also an old one.
        """
        self._waiting = waiting
        self._is_record_due = is_record_due
        self._before_renewal = before_renewal
        self._sink = sink
        self._identity = identity
        self._options = options
        self._group = Group(options.limits)
        self._waiting_limit_bytes = options.waiting_limit_bytes
        self._confirm = confirm
        self._observer = observer
        self._safe = SafeLsn(durable_lsn)
        self._phase: str | None = None
        self._copy: CopyState | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._positions = Positions()
        self._moved = asyncio.Event()
        self._is_at_rest = False
        self._is_open = False
        self._commit: asyncio.Future[Any] | None = None
        self._ahead = ahead
        self._too_large = too_large
        self._by_partition: Sequence[Record] = ()
        self._announcing: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()
        self._maintenance: MaintenanceTask | None = None
        self._idle_due_us = 0
        self._stalled_us = 0
        self._cooled_down_us = 0
        self._sends_early = False
        self._is_busy = False
        self._is_unsent = self._is_send_due = False
        self.has_advanced = False
        """Whether anything of the stream has become durable: rows, a part of a transaction, or an idle position."""

    @property
    def safe_lsn(self) -> int:
        """The LSN up to which everything is durable in Kafka and may be confirmed."""
        return self._safe.lsn

    @property
    def waiting_bytes(self) -> int:
        """The size of the chunks that were added and are not with the sink yet."""
        return self._group.waiting_bytes

    def slot_created(self, consistent_point: int) -> None:
        """Write the slot's consistent point into every progress record from now on (F10)."""
        self._identity = replace(self._identity, slot_lsn=consistent_point)

    def confirm_with(self, confirm: Callable[[int], None]) -> None:
        """Set the function that confirms the safe LSN (the stream's, once the stream is open)."""
        self._confirm = confirm

    def begin_at(self, commit_position: CommitPosition) -> None:
        """Set the commit position before the first chunk."""
        self._copy = commit_position.copy
        self._group.begin_at(commit_position)

    # --- called by the pump ---

    async def add(self, chunk: RecordChunk) -> None:
        """Queue a chunk; over the limit, wait until the queue is half empty.

        So encoding continues while the group's last rows are sent and committed, not while its first are produced.
        """
        self._group.add(chunk)
        self._positions.added += chunk.commit_position is not None
        self._is_at_rest = False
        self._wake.set()
        if self._group.waiting_bytes <= self._waiting_limit_bytes:
            return
        self._observer.waiting(self._group.waiting_bytes, is_blocked=True)
        try:
            await self.wait_until_below(self._waiting_limit_bytes // 2)
        finally:
            self._observer.waiting(self._group.waiting_bytes, is_blocked=False)

    async def wait_until_below(self, waiting_bytes: int) -> None:
        """Wait until at most this number of added bytes are not passed to the sink yet."""
        while self._group.waiting_bytes > waiting_bytes:
            self._room.clear()
            await self._room.wait()

    def idle(self, commit_position: CommitPosition, *, is_urgent: bool) -> None:
        """Note that everything up to `commit_position` was received and needs no record (F11).

        `is_urgent`: the server has requested a reply (F13).
        """
        self._group.add(RecordChunk(records=(), size_bytes=0, commit_position=commit_position))
        self._positions.added += 1
        if is_urgent:
            self._idle_due_us = 0
        self._wake.set()

    async def flush(self) -> None:
        """Wait until every complete transaction added before is durable and confirmed, whatever is added meanwhile.

        If one shares its group with the beginning of another transaction, the wait is for the end of that, too.
        """
        added = self._positions.added
        await self._flush_until(lambda: self._positions.durable >= added)

    async def drain(self) -> None:
        """Wait until no more can become durable without further chunks: for the end of a stream, or its pause.

        The beginning of a transaction remains in its group, with the complete transactions that share the group.
        """
        self._is_at_rest = False
        await self._flush_until(lambda: self._is_at_rest)

    async def _flush_until(self, is_done: Callable[[], bool]) -> None:
        """Commit without waiting for more chunks until the condition holds."""
        self._group.begin_flush()
        self._idle_due_us = 0
        self._wake.set()
        try:
            while not is_done():
                self._moved.clear()
                await self._moved.wait()
        finally:
            self._group.end_flush()

    def note_backlog(self, is_backlog: bool) -> None:
        """Set the wait policy of the next groups: in a backlog they wait for more rows, so there are fewer commits.

        Without a backlog and with at_least_once, rows are sent at once and only their position waits. With
        exactly_once, a group waits while its partitions join the transaction, if more rows are likely.
        """
        self._sends_early = self._options.is_at_least_once and not is_backlog
        policy = wait_policy(
            is_backlog=is_backlog, is_at_least_once=self._options.is_at_least_once, is_busy=self._is_busy
        )
        self._group.wait_by(policy)

    def note_drained(self) -> None:
        """Note that all items read so far were added: rows to send early are sent now, not chunk by chunk."""
        if self._sends_early:
            self._is_send_due = True
            self._wake.set()

    async def pause_for_commit(self) -> None:
        """Wait up to `COMMIT_PAUSE_S` for a commit under way: rows read meanwhile would wait for it too.

        Read together after the commit, they cost one turn of the event loop; the commit's thread needs the CPU too.
        """
        if self._commit is not None and not self._commit.done():
            await asyncio.wait((self._commit,), timeout=COMMIT_PAUSE_S)

    def drop_partial_tail(self) -> None:
        """Forget the beginning of a transaction whose end will not be read any more."""
        self._group.drop_partial_tail()

    # --- called by tasks that need the sink for themselves ---

    async def mark(self, commit_position: CommitPosition) -> None:
        """Commit a progress record without other records, before the first chunk."""
        async with self._lock:
            self._is_open = True
            self._commit = self._start(self._mark, commit_position)
            with self._waiting():
                await asyncio.shield(self._commit)
            self._is_open = False
        self._wake.set()

    def _mark(self, commit_position: CommitPosition) -> None:
        self._sink.begin()
        self._make_durable(self.progress(commit_position))
        self._phase = commit_position.phase

    def _make_durable(self, progress: Progress) -> Progress:
        """Commit the open group. If a request of it may still arrive, the next group gets a new epoch (F77)."""
        written = self._sink.commit(progress)
        self._is_open = False  # if a later step fails, there is nothing to abort
        if renewal_reason := self._sink.renewal_reason:
            began_us = self._clock_us()
            self._before_renewal()
            self._sink.renew_epoch()
            self._observer.epoch_renewed(renewal_reason, (self._clock_us() - began_us) / 1e6)
        return written

    async def between_groups(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread while no group is open, and wait for its end. `run` raises its error."""
        self._maintenance = maintenance = MaintenanceTask(work)
        self._wake.set()
        await maintenance.is_done.wait()

    async def _run_maintenance(self, maintenance: MaintenanceTask) -> None:
        async with self._lock:
            maintenance.running = self._start(maintenance.work)
            await asyncio.shield(maintenance.running)
        self._maintenance = None
        maintenance.is_done.set()

    # --- the loop ---

    async def run(self) -> None:
        """Produce the chunks, commit at commit positions, confirm durable positions."""
        while True:
            timeout_us = self._wait_us(self._clock_us())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if timeout_us is None else timeout_us / 1e6):
                    await self._wake.wait()
            self._wake.clear()
            await self._turn()

    def _wait_us(self, now_us: int) -> int | None:
        """Return the microseconds until there is work to do without a new chunk, or None."""
        if self._has_idle_position():
            return max(0, self._idle_due_us - now_us)
        return self._group.wait_us(now_us, self._stalled_us)

    async def _turn(self) -> None:
        while True:
            if self._maintenance is not None and not self._is_open:
                await self._run_maintenance(self._maintenance)
            while (chunk := self._group.take(self._clock_us())) is not None:
                self._positions.taken += chunk.commit_position is not None
                self._room.set()
                if chunk.records:
                    await self._produce(chunk)
                self._refuse_too_large()
            self._send_what_is_due()
            if self._group.is_commit_imminent:
                self._sink.commit_soon()
                self._group.announce_commit()
            self._refuse_too_large()
            if self._group.ready(self._clock_us()) or self._idle_is_due():
                await self._commit_group()
            else:
                break
        if self._group.rows == 0 and not self._has_idle_position():
            self._positions.durable = self._positions.taken
        if (idle_position := self._group.idle_position) is not None:
            self._observer.at_rest(idle_position)
        self._is_at_rest = self._group.rows == 0 or self._group.is_partial
        self._moved.set()

    async def _produce(self, chunk: RecordChunk) -> None:
        if not self._is_open:
            await self._cool_down()
            self._sink.begin()
            self._is_open = True
            self._stalled_us = 0
        if self._ahead is not None and self._ahead.is_waiting:
            self._announcing = self._start(self._ahead.announce)
            with self._waiting():
                await asyncio.shield(self._announcing)
        self._by_partition = self._sink.by_partition(chunk.records)
        records, done = self._taken(chunk, self._by_partition, 0)
        if done < len(records):
            with self._waiting():
                await self._produce_rest(chunk, records, done)
        self._by_partition = ()
        self._is_unsent = True
        self._sink.poll(0)
        await asyncio.sleep(0)

    async def _produce_rest(self, chunk: RecordChunk, records: Sequence[Record], done: int) -> None:
        """Produce the records that librdkafka did not accept at once, as it gets room."""
        taken_us = self._clock_us()
        while done < len(records):
            # A record that has to be sent alone waits for all records before it (F65), which would linger otherwise.
            self._sink.send_now(NO_ROOM_WAIT_S)
            await asyncio.sleep(0)
            before = done
            records, done = self._taken(chunk, records, done)
            if done > before:
                waited_us, taken_us = self._clock_us() - taken_us, self._clock_us()
                self._stalled_us += waited_us if waited_us >= STALL_US else 0

    def _send_what_is_due(self) -> None:
        if self._is_send_due and self._is_unsent:
            self._sink.send_now(SEND_WAIT_S)
            self._is_unsent = False
        self._is_send_due = False

    async def _cool_down(self) -> None:
        """Wait for the rest of the cool-down after a commit; not in a backlog, where a group takes longer."""
        commit_cooldown_us = self._cooled_down_us - self._clock_us()
        if commit_cooldown_us > 0 and self._group.policy.linger_us == 0:
            await asyncio.sleep(commit_cooldown_us / 1e6)

    def _taken(
        self, chunk: RecordChunk, records: Sequence[Record], start: int
    ) -> tuple[Sequence[Record], int]:
        """Produce `records[start:]`; return the records to write now, and the index of the first not produced.

        A record that is too large for Kafka is replaced in the result (F65). From the first such record on, a chunk
        is in commit order: so are the dead letters then, and a halt names the first record of all.
        """
        try:
            return records, self._sink.produce(records, start)
        except RecordTooLarge as refusal:
            if self._too_large is None or refusal.at is None:
                raise
            at = refusal.at
            if records is self._by_partition:
                return [*records[:at], *in_commit_order(chunk.records, records[:at])], at
            instead = self._too_large.instead_of(records[at], refusal, chunk.commit_lsn)
            return [*records[:at], *instead, *records[at + 1 :]], at

    def _refuse_too_large(self) -> None:
        limit = self._group.refused(self._clock_us(), self._stalled_us)
        if limit is not None:
            raise transaction_too_large(limit, self._group, self._safe.lsn, self._clock_us())

    def _has_idle_position(self) -> bool:
        commit_position = self._group.idle_position
        if commit_position is None:
            return False
        # The end of a snapshot is written although its position is that of the rows; so is a state of its tables.
        is_new = self._phase not in (None, commit_position.phase) or commit_position.copy is not self._copy
        return is_new or commit_position.end_lsn > self._safe.lsn or self._is_record_due()

    def _idle_is_due(self) -> bool:
        return self._has_idle_position() and (
            self._group.is_flushing or self._clock_us() >= self._idle_due_us
        )

    async def _commit_group(self) -> None:
        """Commit in a thread. The event loop runs on (F14); `run` waits, so that groups stay in order (F7)."""
        rows, transactions = self._group.rows, self._group.transactions
        commit_position = self._group.close()
        self._is_unsent = False
        if not self._is_open:
            self._sink.begin()
        self._is_open = True
        started_us = self._clock_us()
        # Not after the commit: a position that becomes urgent meanwhile does not wait.
        self._idle_due_us = started_us + (FIRST_IDLE_PROGRESS_US if rows else IDLE_PROGRESS_INTERVAL_US)
        self._commit = committing = self._start(self._make_durable, self.progress(commit_position))
        with self._waiting():
            written = await asyncio.shield(committing)
        hit("committed")
        self._is_open = False
        self._cooled_down_us = self._clock_us() + self._options.commit_cooldown_us
        self._phase, self._copy = commit_position.phase, commit_position.copy
        if rows:
            self._is_busy = min(rows, transactions) > 1
        if self._ahead is not None:
            self._ahead.decided()
        if self._too_large is not None:
            self._too_large.after_commit()
        # An interrupted snapshot is not an advance: it begins again.
        if commit_position.phase == "streaming":
            self.has_advanced |= rows > 0 or commit_position.end_lsn > self._safe.lsn
        self._confirm(self._safe.advance(commit_position.end_lsn))
        self._positions.durable = self._positions.taken
        self._moved.set()
        hit("confirmed")
        seconds = (self._clock_us() - started_us) / 1e6
        # With at_least_once, readers see records as soon as they are delivered.
        unseen = {} if self._options.is_at_least_once else written.offsets
        self._observer.committed(
            commit_position, rows=rows, transactions=transactions, seconds=seconds, unseen=unseen
        )

    def progress(self, commit_position: CommitPosition) -> Progress:
        """Return the progress record of a group that ends at `commit_position`, without its offsets."""
        part = commit_position.part
        return Progress(
            identity=self._identity,
            phase=commit_position.phase,
            commit_lsn=commit_position.commit_lsn,
            end_lsn=commit_position.end_lsn,
            commit_us=commit_position.commit_us,
            snapshot_tables=commit_position.snapshot_tables,
            copy=commit_position.copy,
            prepared_before=commit_position.prepared_before,
            part=None if part is None else replace(part, numbered_by=self._options.numbered_by),
            signals_at=commit_position.signals_at,
            copies_noted=commit_position.copies_noted,
        )

    async def close(self) -> None:
        """End this epoch: wait for a commit under way, abort the open transaction. Raises the errors of the abort."""
        await settled(self._announcing)
        await settled(None if self._maintenance is None else self._maintenance.running)
        await settled(self._commit)
        if self._is_open and (self._commit is None or self._commit.done()):
            is_committed = self._commit is not None and self._commit.exception() is None
            if not is_committed or self._group.rows:
                await asyncio.shield(self._start(self._sink.abort))
                self._observer.given_up()
        self._is_open = False
