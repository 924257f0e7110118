"""Execute the commands of the topic of signals while a session streams.

In: the reader's commands.  Out: their effect, and the offset of the next one in the progress record.
Invariant: a command and its offset are in one progress record, so it is executed once. A refused command is skipped,
with a line in the log; one that fails for a reason that passes is tried again, and later ones wait for it. A right in
Kafka that is missing may be granted: such a signal is refused after some tries. Signals
that are sent during an initial snapshot wait for the stream: the progress record has the offset of the first one from
the beginning of the snapshot on. A topic that cannot be read does not end the session, and delays a snapshot for a
limited time: it is tried again. Signals that are skipped because of that are in the log.
Must not: show a command's condition.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import structlog

from cdcd.config import Config
from cdcd.errors import CdcdError, Retry, SinkAuthorization, SinkUnavailable
from cdcd.model import Progress
from cdcd.session.incremental import IncrementalSnapshots
from cdcd.session.stale_tables import TRIES
from cdcd.sink.settings import SinkSettings
from cdcd.sink.signal_topic import end_of_signals
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.signal_reader import NewSignalReader
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot.signals")
RETRY_S = 10.0
AGAIN_S = 1.0
_NOT_EXECUTED = (
    "signals that were sent before the stream begins may be skipped: send each signal that had no effect "
    "again"
)
_FROM_THE_END_HINT = (
    "without a stored position the daemon reads the topic of signals from its end: send each signal that had no "
    "effect again"
)


async def first_signal(config: Config, stored: Progress | None) -> int:
    """Return the offset of the first signal to execute after a snapshot that begins, or continues; -1: none is known.

    Without a stored position that is the end of the topic: earlier signals were sent before the snapshot. With -1 the
    stream begins at the end that the topic has then, and the log has the offset of the signals before it.
    """
    topic = config.snapshot.signals.topic
    if not topic or config.snapshot.mode == "initial_only":
        return -1
    if stored is not None and stored.next_signal >= 0:
        return stored.next_signal
    try:
        end = await _end_in_time(config.sink_settings(), topic)
    except CdcdError as error:
        hint = "; ".join(filter(None, (error.advice, _NOT_EXECUTED)))
        _LOG.warning("signals_not_read", error=str(error), hint=hint)
        return -1
    _note_skipped(end)
    return end


async def _end_in_time(settings: SinkSettings, topic: str) -> int:
    """Return the end of the topic; a broker that does not answer is asked again for a time. Raises Sink errors."""
    ends_s = time.monotonic() + settings.operation_timeout_s
    while True:
        try:
            return await in_thread(end_of_signals, settings, topic)
        except SinkUnavailable:
            if time.monotonic() >= ends_s:
                raise
        await asyncio.sleep(AGAIN_S)


def _note_skipped(end: int) -> None:
    if end > 0:
        _LOG.warning("snapshot_signals_skipped", to_offset=end, hint=_FROM_THE_END_HINT)


class SignalFollower:
    """`new_reader` makes a reader that continues at an offset; None: at the end of the topic."""

    def __init__(self, copying: IncrementalSnapshots, new_reader: NewSignalReader) -> None:
        self._copying = copying
        self._new_reader = new_reader

    async def run(self) -> None:
        """Follow the topic until cancelled."""
        while True:
            try:
                await self._follow()
            except CdcdError as error:
                _LOG.warning("signals_not_read", error=str(error), hint=error.advice, pause_s=RETRY_S)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        at = self._copying.signals_at
        reader = self._new_reader(at if at >= 0 else None, self._copying.pass_signals)
        try:
            next_offset = await reader.open()
            if at < 0:
                _note_skipped(next_offset)
            async for command in reader:
                await self._execute(command)
        finally:
            await reader.close()

    async def _execute(self, command: SnapshotCommand) -> None:
        """Execute a command, when its hindrance has passed; record that a refused one needs nothing more.

        Raises the errors that end the process.
        """
        offset = command.signal_offset or 0
        for attempt in itertools.count(1):
            try:
                await self._copying.execute(command)
                return
            except CdcdError as error:
                if error.retry is Retry.NEVER:
                    raise
                may_wait = _passes(error, attempt)
                event = "snapshot_signal_waits" if may_wait else "snapshot_signal_refused"
                pause = {"pause_s": RETRY_S} if may_wait else {}
                _LOG.warning(event, offset=offset, error=str(error), hint=error.advice, **pause)
            if not may_wait:
                break
            await asyncio.sleep(RETRY_S)
        await self._copying.pass_signals(offset + 1)


def _passes(error: CdcdError, attempt: int) -> bool:
    """Return whether a command that failed is tried again: its reason may pass by itself, or has a few tries."""
    if error.retry is Retry.LIMITED or isinstance(error, SinkAuthorization):
        return attempt < TRIES
    return error.retry is Retry.AUTO
