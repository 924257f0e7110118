"""One replication stream on an asyncio loop: items out, confirmed LSNs in, automatic status updates.

In: `open_stream(settings, options, start_lsn)`.  Out: `ReplicationStream`.
Invariant: the flush LSN begins at `start_lsn`, which is already durable; only `queue_flush_lsn` advances it. Status
updates continue while the caller does not read (F14, F15), and each one has the current positions.
Must not: be used from a thread other than its loop's, or read while the caller does not (backpressure).
"""

from __future__ import annotations

import asyncio
import time

from cdcd.errors import SourceError, SourceUnavailable
from cdcd.lsn import Lsn
from cdcd.model import POSTGRES_EPOCH_US, Control, Item, Keepalive, TransactionBatch
from cdcd.source.copyboth import standby_status_update
from cdcd.source.drain import DrainResult, drain
from cdcd.source.feedback import Feedback
from cdcd.source.identity import ServerIdentity
from cdcd.source.libpq import COPY_FAILED
from cdcd.source.pause import Pause
from cdcd.source.settings import SourceSettings, StreamOptions
from cdcd.source.start import StartedStream, start
from cdcd.threads import start_in_thread

STATUS_INTERVAL_MS = 10_000
SILENCE_MIN_MS = 60_000
CLOSE_TIMEOUT_S = 3.0


async def open_stream(
    settings: SourceSettings,
    options: StreamOptions,
    start_lsn: Lsn,
    expected: ServerIdentity | None = None,
) -> ReplicationStream:
    """Connect, start replication at `start_lsn` and return the stream. Raises SlotActive and other errors.

    `expected`: the required server; SourceUnavailable if another one answers (F59).

    If cancelled while connecting, it closes the connection once it is established.
    """
    starting = start_in_thread(start, settings, options, start_lsn, expected)
    try:
        started = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_close_late)
        raise
    return ReplicationStream(started, settings, start_lsn)


class ReplicationStream:
    """The stream of one slot. `more`: the last read stopped at its limit, and more data is available."""

    def __init__(self, started: StartedStream, settings: SourceSettings, start_lsn: Lsn) -> None:
        self._copy = started.copy
        self.backend_pid = started.backend_pid
        self._loop = asyncio.get_running_loop()
        timeout_ms = started.server_timeout_ms
        interval_ms = min(timeout_ms // 3, STATUS_INTERVAL_MS) if timeout_ms else STATUS_INTERVAL_MS
        self._feedback = Feedback(max(interval_ms, 1) * 1_000, start_lsn)
        self._silence_us = _silence_us(settings, timeout_ms)
        self._heard_us = _now_us()
        self._asked_us: int | None = None
        self._pause = Pause(_now_us())
        self._rests = started.is_tcp
        self._resume_us = 0
        self._waiting: asyncio.Future[None] | None = None
        self._failure: SourceError | None = None
        self._is_writing = False
        self._is_closed = False
        self.batches_transactions = False
        """Whether complete transactions are combined into one item (`TransactionBatch`)."""
        self.more = False
        self.received_bytes = 0
        """The size of all CopyData messages received."""
        self.sent_updates = 0
        """The number of status updates passed to libpq."""
        self.send_status()
        self._status_task = self._loop.create_task(self._keep_alive(), name="cdcd-source-status")
        self._status_task.add_done_callback(self._status_ended)

    @property
    def is_at_backlog_rate(self) -> bool:
        """Whether the rate is so high that throughput matters more than latency."""
        return self._pause.is_at_backlog_rate

    @property
    def confirmed_lsn(self) -> Lsn:
        """The flush LSN for the server: all data below it is durable in Kafka."""
        return self._feedback.confirmed_lsn

    async def read(self, max_bytes: int = 262_144) -> list[Item]:
        """Return the next items, at least one; about `max_bytes` at most. A cancellation loses no items.

        Raises the error for the server's ErrorResponse (F19), SourceUnavailable if the stream ended, fell
        silent (F16) or broke, PublicationMissing (F72), or a ProtocolError.
        """
        await self._rest()
        while True:
            if self._is_closed:
                raise SourceUnavailable("the stream is closed")
            drained = drain(self._copy, max_bytes, self.batches_transactions)
            if drained.messages:
                self._note(drained)
                return drained.items
            if self._failure is not None:
                raise self._failure  # after the drain: the server's own error is more specific
            await self._wait_readable()
            self._hear()

    def queue_flush_lsn(self, lsn: Lsn) -> None:
        """Queue `lsn` as the flush LSN of the next status update. A lower LSN than before is ignored."""
        self._feedback.advance_flush_lsn(lsn)

    def send_status(self) -> bool:
        """Send a status update now; return False if the connection is lost, which the next `read` reports."""
        self._send(reply_requested=False)
        return self._failure is None and self._copy.failure is None

    def ask_for_position(self) -> None:
        """Ask the server for a keepalive, whose WAL end is the LSN up to which it has sent everything."""
        if not self._is_closed and self._failure is None and self._copy.failure is None:
            self._send(reply_requested=True)

    async def close(self) -> None:
        """Send a last status and CopyDone, wait briefly for the server to release the slot, and disconnect.

        Data that the server still sends is dropped: it was not confirmed, so the server sends it again.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._status_task.cancel()
        _wake(self._waiting)
        try:
            if self._failure is None and self._copy.failure is None:
                self._send(reply_requested=False)
                self._copy.put_end()
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._await_release()
        except (SourceError, TimeoutError):
            pass  # closing the socket also releases the slot, but later (F74)
        finally:
            self._loop.remove_writer(self._copy.socket)
            self._loop.remove_reader(self._copy.socket)
            self._copy.close()

    # --- reading -------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Wait while the reader pauses to let the socket fill up; otherwise return at once."""
        cooldown_left_us = self._resume_us - _now_us()
        if cooldown_left_us > 0:
            await asyncio.sleep(cooldown_left_us / 1e6)

    def _note(self, drained: DrainResult) -> None:
        now_us = self._hear()
        self.more = drained.more
        self.received_bytes += drained.bytes
        pause_us = self._pause.after_drain(drained.messages, drained.bytes, drained.more, now_us)
        self._resume_us = now_us + pause_us if pause_us and self._rests else 0
        for item in drained.items:
            if type(item) is Keepalive:
                self._feedback.received(item.wal_end_lsn)
                if item.reply_requested:
                    self._feedback.hurry()
            elif type(item) is Control:
                self._feedback.received(item.lsn)
            elif type(item) is TransactionBatch:
                self._feedback.received(item.last_lsn)
        if self._feedback.is_due(now_us):
            self.send_status()  # F14: a requested reply is sent before the items are processed

    async def _wait_readable(self) -> None:
        """Wait until the socket can be read or the status task reports a failure."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting = waiting
        self._loop.add_reader(self._copy.socket, _wake, waiting)
        try:
            await waiting
        finally:
            if self._waiting is waiting:  # else `close` now waits on the same socket
                self._loop.remove_reader(self._copy.socket)
                self._waiting = None

    def _hear(self) -> int:
        self._heard_us = _now_us()
        self._asked_us = None
        return self._heard_us

    # --- writing -------------------------------------------------------------------------------------------

    def _send(self, *, reply_requested: bool) -> None:
        now_us = _now_us()
        at = self._feedback.positions()
        clock_pg_us = time.time_ns() // 1_000 - POSTGRES_EPOCH_US
        status = standby_status_update(at.write_lsn, at.flush_lsn, at.apply_lsn, clock_pg_us, reply_requested)
        try:
            if self._copy.put(status):
                self.sent_updates += 1
                self._feedback.sent(now_us)
            self._flush()
        except SourceUnavailable as error:
            self._fail(error)

    def _flush(self) -> None:
        """Send libpq's queued data now, and the rest when the socket is writable; never waits (F15)."""
        try:
            is_done = self._copy.flush()
        except SourceUnavailable as error:
            is_done = True
            self._fail(error)
        if is_done and self._is_writing:
            self._loop.remove_writer(self._copy.socket)
        elif not is_done and not self._is_writing:
            self._loop.add_writer(self._copy.socket, self._flush)
        self._is_writing = not is_done

    def _fail(self, error: SourceError) -> None:
        """Store the failure for `read` and wake it."""
        self._failure = self._failure or error
        _wake(self._waiting)

    def _status_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(SourceError(f"status updates ended: {type(error).__name__}"))

    async def _keep_alive(self) -> None:
        """Send each status update when it is due, also without a reader (F14), and detect silence (F16)."""
        while self._failure is None:
            now_us = _now_us()
            if self._feedback.is_due(now_us):
                self.send_status()
            self._watch_silence(now_us)
            step_us = min(max(self._feedback.wait_us(now_us), 10_000), self._silence_us // 4)
            await asyncio.sleep(step_us / 1e6)

    def _watch_silence(self, now_us: int) -> None:
        """Request a reply from a silent server, and report a failure if none is received (F16).

        Only while `read` waits for data: unread bytes are not silence.
        """
        if self._waiting is None:
            return
        half_us = self._silence_us // 2
        if self._asked_us is None:
            if now_us - self._heard_us >= half_us:
                self._asked_us = now_us
                self._send(reply_requested=True)
        elif now_us - self._asked_us >= half_us:
            silent_s = (now_us - self._heard_us) / 1e6
            self._fail(SourceUnavailable(f"the server has been silent for {silent_s:.1f} s"))

    async def _await_release(self) -> None:
        """Read to the end of the copy and of the command: then the walsender has released the slot."""
        is_streaming = True
        while True:
            self._flush()
            if self._failure is not None or not self._copy.consume():
                return
            while is_streaming and (message := self._copy.read_message()) != 0:
                if message == COPY_FAILED:
                    return  # libpq lacks memory for the message: the copy would continue without an end
                is_streaming = not isinstance(message, int)
            if not is_streaming and self._copy.finish_command():
                return
            await self._wait_readable()


def _silence_us(settings: SourceSettings, timeout_ms: int) -> int:
    """Return the silence limit in microseconds: a server may decode silently up to its own time-out (F17)."""
    if settings.silence_timeout_s is not None:
        return int(settings.silence_timeout_s * 1e6)
    return max(SILENCE_MIN_MS, 2 * timeout_ms) * 1_000


def _now_us() -> int:
    return time.monotonic_ns() // 1_000


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _close_late(starting: asyncio.Future[StartedStream]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().copy.close()
