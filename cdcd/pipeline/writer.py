"""Write groups of whole transactions to Kafka and tell PostgreSQL what is durable.

In: chunks of encoded records from the pump or the snapshot.  Out: Kafka transactions; `confirm(safe LSN)`.
Invariant: an LSN is confirmed only after the Kafka transaction that holds its progress record has committed
(F7, F64), and it is exactly a commit position's end LSN (F2). While a commit is under way in its thread, encoding
goes on into the waiting chunks; when those reach their limit in bytes, `add` waits: the one back-pressure (F15).
Must not: decode, look into records' keys and values.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cdcd.ack.group import Chunk, CommitPosition, Group, GroupLimits, SafeLsn
from cdcd.ack.wait_policy import wait_policy
from cdcd.clock import monotonic_us
from cdcd.errors import RecordTooLarge, TransactionTooLarge
from cdcd.failpoints import hit
from cdcd.lsn import Lsn
from cdcd.model import Progress, Record, SourceIdentity
from cdcd.threads import settled, start_in_thread

NO_ROOM_WAIT_S = 0.002
"""The loop stands still for as long, at most."""
IDLE_PROGRESS_INTERVAL_US = 10_000_000
FIRST_IDLE_PROGRESS_US = 1_000_000
"""After rows: what ends a burst is confirmed soon, so that the slot of a database at rest holds nothing back."""
COMMIT_PAUSE_S = 0.01
_LARGER_BY = {
    "rows": "sink.large_transactions.max_rows",
    "bytes": "sink.large_transactions.max_bytes",
    "time": "sink.transaction_timeout_ms (the broker allows up to its transaction.max.timeout.ms), or "
    "sink.large_transactions.max_time_ms where it is set,",
}
_LARGER_HINT = (
    "nothing of it is visible or confirmed. Raise {raised} and restart cdcd; or set sink.large_transactions.policy: "
    "parts and restart, then readers may see a part of it before the rest"
)
COMMIT_COOLDOWN_US = 1_000
"""A broker answers a commit before it has written its markers. Who begins the next transaction on the same partitions
meanwhile is refused, and librdkafka asks again 20 ms later."""
SEND_WAIT_S = 0.001
"""How long the loop stands still, at most, once for each read, to have such rows sent. Kafka's client sends while it
is asked to; what it has not begun with by then goes with the next ones, or with the position."""
STALL_US = 1_000_000
"""A producer that takes nothing for this long is not slow but stands still."""


class Sink(Protocol):
    """What the writer needs of the sink room. `by_partition`: all of a chunk, each partition's records in their
    order."""

    def begin(self) -> None: ...  # noqa: D102
    def by_partition(self, records: Sequence[Record]) -> Sequence[Record]: ...  # noqa: D102
    def produce(self, records: Sequence[Record], start: int) -> int: ...  # noqa: D102
    def poll(self, timeout_s: float) -> None: ...  # noqa: D102
    def send_now(self, timeout_s: float) -> None: ...  # noqa: D102
    def commit_soon(self) -> None: ...  # noqa: D102
    def commit(self, progress: Progress) -> Progress: ...  # noqa: D102
    @property
    def renewal_reason(self) -> str: ...  # noqa: D102
    def renew_epoch(self) -> None: ...  # noqa: D102
    def abort(self) -> None: ...  # noqa: D102


class PendingSchemas(Protocol):
    """What has to be written before the records that count on it: schemas that no registry has."""

    @property
    def is_waiting(self) -> bool: ...  # noqa: D102
    def announce(self) -> None: ...  # noqa: D102
    def decided(self) -> None: ...  # noqa: D102


class TooLarge(Protocol):
    """What becomes of a record that is larger than Kafka takes (F65)."""

    def instead_of(self, record: Record, refusal: RecordTooLarge, commit_lsn: Lsn) -> list[Record]: ...  # noqa: D102
    def after_commit(self) -> None: ...  # noqa: D102


class Observer(Protocol):
    """What the writer reports, once per group; `given_up`: one was aborted."""

    def committed(  # noqa: D102
        self, commit_position: CommitPosition, *, rows: int, transactions: int, seconds: float
    ) -> None: ...
    def given_up(self) -> None: ...  # noqa: D102
    def epoch_renewed(self, renewal_reason: str, seconds: float) -> None: ...  # noqa: D102
    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None: ...  # noqa: D102


@dataclass(slots=True)
class MaintenanceTask:
    """What is to be done between two groups."""

    work: Callable[[], None]
    running: asyncio.Future[None] | None = None
    is_done: asyncio.Event = field(default_factory=asyncio.Event)


class Writer:
    """One producer epoch's writing side. `run()` ends only by an error or by cancellation."""

    _start = staticmethod(start_in_thread)
    _clock_us = staticmethod(monotonic_us)

    def __init__(
        self,
        sink: Sink,
        identity: SourceIdentity,
        limits: GroupLimits,
        *,
        waiting_limit_bytes: int,
        confirm: Callable[[int], None],
        observer: Observer,
        durable_lsn: int = 0,
        ahead: PendingSchemas | None = None,
        too_large: TooLarge | None = None,
        numbered_by: str = "",
        commit_cooldown_us: int = 0,
        is_at_least_once: bool = False,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        before_renewal: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_at_least_once`: rows are seen as they are written, whether their group is complete or not.

        `waiting`: around whatever waits for Kafka. `before_renewal`: raises where somebody else may write by now,
        whose producer a new epoch would end (F69).
        """
        self._waiting = waiting
        self._before_renewal = before_renewal
        self._sink = sink
        self._identity = identity
        self._group = Group(limits)
        self._waiting_limit_bytes = waiting_limit_bytes
        self._confirm = confirm
        self._observer = observer
        self._safe = SafeLsn(durable_lsn)
        self._phase: str | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self._is_open = False
        self._commit: asyncio.Future[Any] | None = None
        self._ahead = ahead
        self._too_large = too_large
        self._numbered_by = numbered_by
        self._by_partition: Sequence[Record] = ()
        self._announcing: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()
        self._maintenance: MaintenanceTask | None = None
        self._idle_due_us = 0
        self._stalled_us = 0
        self._commit_cooldown_us = commit_cooldown_us
        self._cooled_down_us = 0
        self._is_at_least_once = is_at_least_once
        self._sends_early = False
        self._is_busy = False
        self._is_unsent = self._is_send_due = False
        self.has_advanced = False
        """Whether anything of the stream has become durable: rows, a part of a transaction, or an idle position."""

    @property
    def safe_lsn(self) -> int:
        """What is durable in Kafka and may be confirmed."""
        return self._safe.lsn

    @property
    def waiting_bytes(self) -> int:
        """Of what was handed on and is not with the sink yet."""
        return self._group.waiting_bytes

    def slot_created(self, consistent_point: int) -> None:
        """Say in every progress record from now on where the slot was made (F10)."""
        self._identity = replace(self._identity, slot_lsn=consistent_point)

    def confirm_with(self, confirm: Callable[[int], None]) -> None:
        """Set who is told the safe LSN (the stream, once it is open)."""
        self._confirm = confirm

    def begin_at(self, commit_position: CommitPosition) -> None:
        """Set what is complete before the first chunk."""
        self._group.begin_at(commit_position)

    # --- called by the pump ---

    async def add(self, chunk: Chunk) -> None:
        """Hand on a chunk; waits while too much is waiting already."""
        self._group.add(chunk)
        self._settled.clear()
        self._wake.set()
        if self._group.waiting_bytes <= self._waiting_limit_bytes:
            return
        self._observer.waiting(self._group.waiting_bytes, is_blocked=True)
        try:
            while self._group.waiting_bytes > self._waiting_limit_bytes:
                self._room.clear()
                await self._room.wait()
        finally:
            self._observer.waiting(self._group.waiting_bytes, is_blocked=False)

    def idle(self, commit_position: CommitPosition, *, is_urgent: bool) -> None:
        """Everything up to `commit_position` was received and needs no record (F11); urgent: the server asks
        (F13)."""
        self._group.add(Chunk(records=(), size_bytes=0, commit_position=commit_position))
        if is_urgent:
            self._idle_due_us = 0
        self._wake.set()

    async def flush(self) -> None:
        """Wait until every complete transaction handed on so far is durable and confirmed."""
        self._group.begin_flush()
        self._idle_due_us = 0
        self._settled.clear()
        self._wake.set()
        await self._settled.wait()
        self._group.end_flush()

    def note_backlog(self, is_backlog: bool) -> None:
        """Commit less often while much comes in: the next groups wait a moment for more.

        While little does, rows that are seen as they are written are sent as they come, and their position waits.
        Others wait for what comes while their partitions join, where something is to be expected.
        """
        self._sends_early = self._is_at_least_once and not is_backlog
        policy = wait_policy(
            is_backlog=is_backlog, is_at_least_once=self._is_at_least_once, is_busy=self._is_busy
        )
        self._group.wait_by(policy)

    def note_drained(self) -> None:
        """All that was read is handed on: what is to be sent early is sent now, not chunk by chunk."""
        if self._sends_early:
            self._is_send_due = True
            self._wake.set()

    async def pause_for_commit(self) -> None:
        """Wait for a commit that is under way, a moment at most: what comes meanwhile would wait for it too.

        Read in one go behind it, it costs the loop one turn, which the commit's own thread needs as well.
        """
        if self._commit is not None and not self._commit.done():
            await asyncio.wait((self._commit,), timeout=COMMIT_PAUSE_S)

    def drop_partial_tail(self) -> None:
        """Forget the beginning of a transaction whose end will not be read any more."""
        self._group.drop_partial_tail()

    # --- called by who needs the sink to himself ---

    async def mark(self, commit_position: CommitPosition) -> None:
        """Make a progress record durable that no records belong to, before the first chunk."""
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

    def _make_durable(self, progress: Progress) -> None:
        """Commit the open group. Where a request of it may still arrive, the next one has another epoch (F77)."""
        self._sink.commit(progress)
        self._is_open = False  # whatever comes of what follows, there is nothing to abort
        if renewal_reason := self._sink.renewal_reason:
            began_us = self._clock_us()
            self._before_renewal()
            self._sink.renew_epoch()
            self._observer.epoch_renewed(renewal_reason, (self._clock_us() - began_us) / 1e6)

    async def between_groups(self, work: Callable[[], None]) -> None:
        """Wait until `work` was done, in a thread, while no group is open. What it raises is raised by `run`."""
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
        """Produce what comes, commit at commit positions, confirm what is durable."""
        while True:
            timeout_us = self._wait_us(self._clock_us())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if timeout_us is None else timeout_us / 1e6):
                    await self._wake.wait()
            self._wake.clear()
            await self._turn()

    def _wait_us(self, now_us: int) -> int | None:
        """Microseconds until there is something to do although nothing comes in, or None."""
        if self._has_idle_position():
            return max(0, self._idle_due_us - now_us)
        return self._group.wait_us(now_us, self._stalled_us)

    async def _turn(self) -> None:
        while True:
            if self._maintenance is not None and not self._is_open:
                await self._run_maintenance(self._maintenance)
            while (chunk := self._group.take(self._clock_us())) is not None:
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
        if self._group.rows == 0 or self._group.is_partial:
            self._settled.set()

    async def _produce(self, chunk: Chunk) -> None:
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

    async def _produce_rest(self, chunk: Chunk, records: Sequence[Record], done: int) -> None:
        """Hand over what was not taken at once, as there is room for it."""
        taken_us = self._clock_us()
        while done < len(records):
            # What has to go alone waits for all before it (F65), which else would linger for more to come.
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
        """Leave the broker alone for a moment after a commit; in a backlog a group is longer than what it costs."""
        commit_cooldown_us = self._cooled_down_us - self._clock_us()
        if commit_cooldown_us > 0 and self._group.policy.linger_us == 0:
            await asyncio.sleep(commit_cooldown_us / 1e6)

    def _taken(self, chunk: Chunk, records: Sequence[Record], start: int) -> tuple[Sequence[Record], int]:
        """Hand over `records[start:]`; return what is to be written now and the index of the first not taken.

        In the place of a record that Kafka does not take there is then what goes instead of it (F65). From the first
        of them on a chunk is in commit order: so are the dead letters then, and a halt names the first of all.
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
            raise TransactionTooLarge(
                f"a transaction is larger than one Kafka transaction may be: it has reached the limit in {limit}",
                hint=_LARGER_HINT.format(raised=_LARGER_BY[limit]),
                begins_after_lsn=self._safe.lsn,
                rows=self._group.rows,
                bytes=self._group.bytes,
                seconds=(self._clock_us() - (self._group.opened_us or 0)) // 1_000_000,
            )

    def _has_idle_position(self) -> bool:
        commit_position = self._group.idle_position
        if commit_position is None:
            return False
        # A snapshot that is complete is told, though the position is still that of its rows.
        return commit_position.end_lsn > self._safe.lsn or self._phase not in (None, commit_position.phase)

    def _idle_is_due(self) -> bool:
        return self._has_idle_position() and (
            self._group.is_flushing or self._clock_us() >= self._idle_due_us
        )

    async def _commit_group(self) -> None:
        """Commit in a thread; the loop goes on (F14), `run` waits for it, so groups stay in order (F7)."""
        rows, transactions = self._group.rows, self._group.transactions
        commit_position = self._group.close()
        self._is_unsent = False
        if not self._is_open:
            self._sink.begin()
        self._is_open = True
        started_us = self._clock_us()
        self._commit = self._start(self._make_durable, self.progress(commit_position))
        with self._waiting():
            await asyncio.shield(self._commit)
        hit("committed")
        self._is_open = False
        self._cooled_down_us = self._clock_us() + self._commit_cooldown_us
        self._phase = commit_position.phase
        if rows:
            self._is_busy = min(rows, transactions) > 1
        if self._ahead is not None:
            self._ahead.decided()
        if self._too_large is not None:
            self._too_large.after_commit()
        self._idle_due_us = self._clock_us() + (FIRST_IDLE_PROGRESS_US if rows else IDLE_PROGRESS_INTERVAL_US)
        # A snapshot that was cut off counts for nothing: it begins again.
        if commit_position.phase == "streaming":
            self.has_advanced |= rows > 0 or commit_position.end_lsn > self._safe.lsn
        self._confirm(self._safe.advance(commit_position.end_lsn))
        hit("confirmed")
        seconds = (self._clock_us() - started_us) / 1e6
        self._observer.committed(commit_position, rows=rows, transactions=transactions, seconds=seconds)

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
            prepared_before=commit_position.prepared_before,
            part=None if part is None else replace(part, numbered_by=self._numbered_by),
        )

    async def close(self) -> None:
        """End this epoch: wait for a commit under way, abort what is open. Errors of the abort are the caller's."""
        await settled(self._announcing)
        await settled(None if self._maintenance is None else self._maintenance.running)
        await settled(self._commit)
        if self._is_open and (self._commit is None or self._commit.done()):
            is_committed = self._commit is not None and self._commit.exception() is None
            if not is_committed or self._group.rows:
                await asyncio.shield(self._start(self._sink.abort))
                self._observer.given_up()
        self._is_open = False


def in_commit_order(records: Sequence[Record], given: Iterable[Record]) -> list[Record]:
    """Return those of `records` that are not among the `given`, of each partition its first ones."""
    counts = Counter((record.topic, record.partition) for record in given)
    rest = []
    for record in records:
        partition = record.topic, record.partition
        if counts[partition]:
            counts[partition] -= 1
        else:
            rest.append(record)
    return rest
