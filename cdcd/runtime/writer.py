"""Write groups of whole transactions to Kafka and tell PostgreSQL what is durable.

In: chunks of encoded records from the pump or the snapshot.  Out: Kafka transactions; `confirm(safe LSN)`.
Invariant: an LSN is confirmed only after the Kafka transaction that holds its progress record has committed
(F7, F64), and it is exactly a boundary's end LSN (F2). While a commit is under way in its thread, encoding goes
on into the waiting chunks; when those reach their limit in bytes, `add` waits: the one back-pressure (F15).
Must not: decode, look into records' keys and values.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cdcd.ack.group import Boundary, Chunk, Group, GroupLimits, SafeLsn
from cdcd.clock import monotonic_us
from cdcd.crash_points import reach
from cdcd.errors import RecordTooLarge, TransactionTooLarge
from cdcd.lsn import Lsn
from cdcd.model import Progress, Record, SourceIdentity
from cdcd.threads import settled, start_in_thread

NO_ROOM_WAIT_S = 0.002
"""The loop stands still for as long, at most."""
BACKLOG_WAIT_US = 100_000
"""Some thousand rows at the rates at which it is waited for: a commit costs the broker some milliseconds."""
IDLE_PROGRESS_INTERVAL_US = 10_000_000
FIRST_IDLE_PROGRESS_US = 1_000_000
"""After rows: what ends a burst is confirmed soon, so that the slot of a database at rest holds nothing back."""
LULL_S = 0.01
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
KAFKA_REST_US = 1_000
"""A broker answers a commit before it has written its markers. Who begins the next transaction on the same partitions
meanwhile is refused, and librdkafka asks again 20 ms later."""
JOIN_WAIT_US = 2_000
"""Partitions join a Kafka transaction by its first rows, which wait as long for that before they are sent: what comes
meanwhile goes with them, instead of waiting for this transaction and its own."""
POSITION_WAIT_US = 50_000
"""Where rows are seen as they are written, their position can wait: writing it costs as much as some of them."""
SEND_WAIT_S = 0.001
"""How long the loop stands still, at most, once for each read, to have such rows sent. Kafka's client sends while it
is asked to; what it has not begun with by then goes with the next ones, or with the position."""
STALL_US = 1_000_000
"""A producer that takes nothing for this long is not slow but stands still."""


class Sink(Protocol):
    """What the writer needs of the sink room. `arranged`: all of a chunk, each partition's records in their order."""

    def begin(self) -> None: ...  # noqa: D102
    def arranged(self, records: Sequence[Record]) -> Sequence[Record]: ...  # noqa: D102
    def produce(self, records: Sequence[Record], start: int) -> int: ...  # noqa: D102
    def poll(self, timeout_s: float) -> None: ...  # noqa: D102
    def send_now(self, timeout_s: float) -> None: ...  # noqa: D102
    def commit_soon(self) -> None: ...  # noqa: D102
    def commit(self, progress: Progress) -> Progress: ...  # noqa: D102
    @property
    def doubt(self) -> str: ...  # noqa: D102
    def renew_epoch(self) -> None: ...  # noqa: D102
    def abort(self) -> None: ...  # noqa: D102


class Ahead(Protocol):
    """What has to be written before the records that count on it: schemas that no registry has."""

    @property
    def is_waiting(self) -> bool: ...  # noqa: D102
    def announce(self) -> None: ...  # noqa: D102
    def decided(self) -> None: ...  # noqa: D102


class TooLarge(Protocol):
    """What becomes of a record that is larger than Kafka takes (F65)."""

    def instead_of(self, record: Record, refusal: RecordTooLarge, commit_lsn: Lsn) -> list[Record]: ...  # noqa: D102
    def durable(self) -> None: ...  # noqa: D102


class Observer(Protocol):
    """What the writer reports, once per group; `given_up`: one was aborted."""

    def committed(self, boundary: Boundary, *, rows: int, transactions: int, seconds: float) -> None: ...  # noqa: D102
    def given_up(self) -> None: ...  # noqa: D102
    def epoch_renewed(self, doubt: str, seconds: float) -> None: ...  # noqa: D102
    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None: ...  # noqa: D102


@dataclass(slots=True)
class Errand:
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
        ahead: Ahead | None = None,
        too_large: TooLarge | None = None,
        numbered_by: str = "",
        rest_us: int = 0,
        is_seen_early: bool = False,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        before_renewal: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_seen_early`: rows are seen as they are written, whether their group is complete or not.

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
        self._arranged: Sequence[Record] = ()
        self._announcing: asyncio.Future[None] | None = None
        self._alone = asyncio.Lock()
        self._errand: Errand | None = None
        self._idle_due_us = 0
        self._stalled_us = 0
        self._rest_us = rest_us
        self._rested_us = 0
        self._is_seen_early = is_seen_early
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

    def made_slot(self, consistent_point: int) -> None:
        """Say in every progress record from now on where the slot was made (F10)."""
        self._identity = replace(self._identity, slot_lsn=consistent_point)

    def confirm_with(self, confirm: Callable[[int], None]) -> None:
        """Set who is told the safe LSN (the stream, once it is open)."""
        self._confirm = confirm

    def begin_at(self, boundary: Boundary) -> None:
        """Set what is complete before the first chunk."""
        self._group.begin_at(boundary)

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

    def idle(self, boundary: Boundary, *, is_urgent: bool) -> None:
        """Everything up to `boundary` was received and needs no record (F11); urgent: the server asks (F13)."""
        self._group.add(Chunk(records=(), size_bytes=0, boundary=boundary))
        if is_urgent:
            self._idle_due_us = 0
        self._wake.set()

    async def flush(self) -> None:
        """Wait until every complete transaction handed on so far is durable and confirmed."""
        self._group.is_hurried = True
        self._idle_due_us = 0
        self._settled.clear()
        self._wake.set()
        await self._settled.wait()
        self._group.is_hurried = False

    def note_backlog(self, is_backlog: bool) -> None:
        """Commit less often while much comes in: the next groups wait a moment for more.

        While little does, rows that are seen as they are written are sent as they come, and their position waits.
        Others wait for what comes while their partitions join, where something is to be expected.
        """
        self._sends_early = self._is_seen_early and not is_backlog
        self._group.patience_us = BACKLOG_WAIT_US if is_backlog else 0
        self._group.position_wait_us = POSITION_WAIT_US if self._sends_early else 0
        waits_to_join = self._is_busy and not is_backlog and not self._is_seen_early
        self._group.join_wait_us = JOIN_WAIT_US if waits_to_join else 0

    def has_all(self) -> None:
        """All that was read is handed on: what is to be sent early is sent now, not chunk by chunk."""
        if self._sends_early:
            self._is_send_due = True
            self._wake.set()

    async def lull(self) -> None:
        """Wait for a commit that is under way, a moment at most: what comes meanwhile would wait for it too.

        Read in one go behind it, it costs the loop one turn, which the commit's own thread needs as well.
        """
        if self._commit is not None and not self._commit.done():
            await asyncio.wait((self._commit,), timeout=LULL_S)

    def drop_partial_tail(self) -> None:
        """Forget the beginning of a transaction whose end will not be read any more."""
        self._group.drop_partial_tail()

    # --- called by who needs the sink to himself ---

    async def mark(self, boundary: Boundary) -> None:
        """Make a progress record durable that no records belong to, before the first chunk."""
        async with self._alone:
            self._is_open = True
            self._commit = self._start(self._mark, boundary)
            with self._waiting():
                await asyncio.shield(self._commit)
            self._is_open = False
        self._wake.set()

    def _mark(self, boundary: Boundary) -> None:
        self._sink.begin()
        self._make_durable(self.progress(boundary))
        self._phase = boundary.phase

    def _make_durable(self, progress: Progress) -> None:
        """Commit the open group. Where a request of it may still arrive, the next one has another epoch (F77)."""
        self._sink.commit(progress)
        self._is_open = False  # whatever comes of what follows, there is nothing to abort
        if doubt := self._sink.doubt:
            began_us = self._clock_us()
            self._before_renewal()
            self._sink.renew_epoch()
            self._observer.epoch_renewed(doubt, (self._clock_us() - began_us) / 1e6)

    async def between_groups(self, work: Callable[[], None]) -> None:
        """Wait until `work` was done, in a thread, while no group is open. What it raises is raised by `run`."""
        self._errand = errand = Errand(work)
        self._wake.set()
        await errand.is_done.wait()

    async def _run_errand(self, errand: Errand) -> None:
        async with self._alone:
            errand.running = self._start(errand.work)
            await asyncio.shield(errand.running)
        self._errand = None
        errand.is_done.set()

    # --- the loop ---

    async def run(self) -> None:
        """Produce what comes, commit at boundaries, confirm what is durable."""
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
            if self._errand is not None and not self._is_open:
                await self._run_errand(self._errand)
            while (chunk := self._group.take(self._clock_us())) is not None:
                self._room.set()
                if chunk.records:
                    await self._produce(chunk)
                self._refuse_too_large()
            self._send_what_is_due()
            if self._group.is_soon_committed:
                self._sink.commit_soon()
                self._group.is_expected = True
            self._refuse_too_large()
            if self._group.ready(self._clock_us()) or self._idle_is_due():
                await self._commit_group()
            else:
                break
        if self._group.rows == 0 or self._group.is_partial:
            self._settled.set()

    async def _produce(self, chunk: Chunk) -> None:
        if not self._is_open:
            await self._rest()
            self._sink.begin()
            self._is_open = True
            self._stalled_us = 0
        if self._ahead is not None and self._ahead.is_waiting:
            self._announcing = self._start(self._ahead.announce)
            with self._waiting():
                await asyncio.shield(self._announcing)
        self._arranged = self._sink.arranged(chunk.records)
        records, done = self._taken(chunk, self._arranged, 0)
        if done < len(records):
            with self._waiting():
                await self._produce_rest(chunk, records, done)
        self._arranged = ()
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

    async def _rest(self) -> None:
        """Leave the broker alone for a moment after a commit; in a backlog a group is longer than what it costs."""
        rest_us = self._rested_us - self._clock_us()
        if rest_us > 0 and self._group.patience_us == 0:
            await asyncio.sleep(rest_us / 1e6)

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
            if records is self._arranged:
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
        boundary = self._group.idle_boundary
        if boundary is None:
            return False
        # A snapshot that is complete is told, though the position is still that of its rows.
        return boundary.end_lsn > self._safe.lsn or self._phase not in (None, boundary.phase)

    def _idle_is_due(self) -> bool:
        return self._has_idle_position() and (self._group.is_hurried or self._clock_us() >= self._idle_due_us)

    async def _commit_group(self) -> None:
        """Commit in a thread; the loop goes on (F14), `run` waits for it, so groups stay in order (F7)."""
        rows, transactions = self._group.rows, self._group.transactions
        boundary = self._group.close()
        self._is_unsent = False
        if not self._is_open:
            self._sink.begin()
        self._is_open = True
        started_us = self._clock_us()
        self._commit = self._start(self._make_durable, self.progress(boundary))
        with self._waiting():
            await asyncio.shield(self._commit)
        reach("committed")
        self._is_open = False
        self._rested_us = self._clock_us() + self._rest_us
        self._phase = boundary.phase
        if rows:
            self._is_busy = min(rows, transactions) > 1
        if self._ahead is not None:
            self._ahead.decided()
        if self._too_large is not None:
            self._too_large.durable()
        self._idle_due_us = self._clock_us() + (FIRST_IDLE_PROGRESS_US if rows else IDLE_PROGRESS_INTERVAL_US)
        if boundary.phase == "streaming":  # a snapshot that was cut off counts for nothing, it begins anew
            self.has_advanced |= rows > 0 or boundary.end_lsn > self._safe.lsn
        self._confirm(self._safe.durable(boundary.end_lsn))
        reach("confirmed")
        seconds = (self._clock_us() - started_us) / 1e6
        self._observer.committed(boundary, rows=rows, transactions=transactions, seconds=seconds)

    def progress(self, boundary: Boundary) -> Progress:
        """Return the progress record of a group that ends at `boundary`, without its offsets."""
        part = boundary.part
        return Progress(
            identity=self._identity,
            phase=boundary.phase,
            commit_lsn=boundary.commit_lsn,
            end_lsn=boundary.end_lsn,
            commit_us=boundary.commit_us,
            snapshot_tables=boundary.snapshot_tables,
            prepared_before=boundary.prepared_before,
            part=None if part is None else replace(part, numbered_by=self._numbered_by),
        )

    async def close(self) -> None:
        """End this epoch: wait for a commit under way, abort what is open. Errors of the abort are the caller's."""
        await settled(self._announcing)
        await settled(None if self._errand is None else self._errand.running)
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
