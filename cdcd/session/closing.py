"""Close everything that a session has opened, whatever ended the session.

In: the parts, the stop event.  Out: nothing is left open: the Kafka transaction is aborted, so that readers do not
wait for its timeout; memory and files are released.
Invariant: if a part cannot be closed, the failure is logged and the other parts are closed. Once the stop event is
set, before or during the closing, cdcd waits for a silent server for at most `stop_timeout_s`.
Must not: confirm or commit anything, except in `flush_in_time` and `commit_progress_in_time`, which come before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Protocol

import structlog

from cdcd.errors import CdcdError
from cdcd.pipeline.buffers import Buffers
from cdcd.pipeline.writer import Writer
from cdcd.spill.pool import SpillPool
from cdcd.threads import in_thread

NOTE_WITHIN_S = 1.0
_LOG = structlog.stdlib.get_logger("cdcd.session")
_ABORTED_HINT = (
    "no action is needed: the broker aborts the Kafka transaction at the next start, or after its timeout"
)
_CLOSED_HINT = (
    "no action is needed, and no change is lost: the connection ends at the latest with the process"
)


class Closeable(Protocol):
    """A part that is closed in a thread, because its `close` may wait for a server."""

    def close(self) -> None: ...  # noqa: D102


async def flush_in_time(flushing: Awaitable[None], time_s: float) -> None:
    """Commit and confirm the complete transactions within `time_s`, half of the time that a stop may take."""
    try:
        async with asyncio.timeout(time_s):
            await flushing
    except TimeoutError:
        _LOG.warning("stopped_without_flush", hint="Kafka did not answer; nothing of the flush was confirmed")


async def commit_progress_in_time(flushing: Awaitable[None], time_s: float) -> None:
    """At least once only: commit the progress record of rows that readers see already, within a second.

    The caller raises the lost connection, so a failure here is ignored: repeated rows are allowed. The next server
    may not have these rows (F58).
    """
    with contextlib.suppress(CdcdError, TimeoutError):
        async with asyncio.timeout(min(time_s, NOTE_WITHIN_S)):
            await flushing


class Closing:
    """Closes the parts of one session."""

    def __init__(self, stop: asyncio.Event, stop_timeout_s: float) -> None:
        self._stop = stop
        self._stop_timeout_s = stop_timeout_s

    async def abort_transaction(self, writer: Writer | None) -> None:
        """Wait for a commit under way, then abort the open Kafka transaction."""
        if writer is None:
            return
        try:
            await self._await_bounded_after_stop(writer.close())
        except TimeoutError:
            _LOG.warning("abort_timed_out", hint=_ABORTED_HINT)
        except Exception as error:  # noqa: BLE001 - the other parts have to be closed after any error
            _LOG.warning("abort_failed", error=_error_text(error), hint=_ABORTED_HINT)

    async def clear(self, buffers: Buffers | None, spill: SpillPool | None) -> None:
        """Discard the open transactions in memory and on disk."""
        if buffers is not None:
            await buffers.settled()
        if spill is not None:
            try:
                await in_thread(spill.close)
            except Exception as error:  # noqa: BLE001
                _LOG.warning(
                    "spill_not_cleared",
                    error=_error_text(error),
                    hint="the next start removes the files",
                )

    async def close(self, **parts: Closeable) -> None:
        """Close the clients, one after the other."""
        for what, part in parts.items():
            try:
                await self._await_bounded_after_stop(in_thread(part.close))
            except TimeoutError:
                _LOG.warning("close_timed_out", what=what, hint=_CLOSED_HINT)
            except Exception as error:  # noqa: BLE001
                _LOG.warning("close_failed", what=what, error=_error_text(error), hint=_CLOSED_HINT)

    async def _await_bounded_after_stop(self, closing: Awaitable[None]) -> None:
        """Await `closing`; once the stop event is set, for at most `stop_timeout_s` more."""
        doing = asyncio.ensure_future(closing)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(self._stop_timeout_s):
                await doing
        finally:
            stopping.cancel()


def _error_text(error: Exception) -> str:
    """Return the loggable text of an error: only cdcd's own messages are free of row values."""
    return str(error) if isinstance(error, CdcdError) else type(error).__name__
