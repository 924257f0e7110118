"""Run sessions one after another, and handle their errors.

In: a `Config`, a stop event, a retry event (SIGHUP).  Out: the exit status.
Invariant: the retry class of an error alone decides. AUTO is tried again with back-off. LIMITED is too, but halts
after TRIES without anything new made durable. OPERATOR halts and stays up with its reason. NEVER ends the process. An
error outside the tree is a defect and halts. In none of these cases is anything confirmed or skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import structlog

from cdcd.config import Config
from cdcd.errors import (
    EXIT_OK,
    CdcdError,
    InternalError,
    OutOfMemory,
    Retry,
    SlotActive,
    SlotDroppedByWalGuard,
    SnapshotStale,
)
from cdcd.errors.frames import drop_frames
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.retry_waits import room_below, waits_for
from cdcd.monitoring.status import Status
from cdcd.process.backoff import delay_s
from cdcd.process.hints import adapt_hint
from cdcd.process.release import release_session
from cdcd.recovery.halts import needs_decision
from cdcd.recovery.new_snapshot import is_resolved_by
from cdcd.registry.confluent import Registry
from cdcd.session.option_downgrade import to_remember
from cdcd.session.process_state import ProcessState
from cdcd.session.queries import slot_holders
from cdcd.session.session import Session
from cdcd.session.snapshot_commands import SnapshotCommands
from cdcd.sink.schemas import SchemaTopic

_LOG = structlog.stdlib.get_logger("cdcd.supervisor")
_RETRY_HINT = "`cdcd resume` or SIGHUP retries; a changed configuration needs a restart"
"""Added to the hint of a halt, unless a retry alone would halt again."""
TRIES = 3
"""An error of the class LIMITED halts when it has occurred this often at one position."""
STABLE_S = 60.0
"""After a session that ran this long, or made anything new durable, the back-off begins again."""


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """The end of a session: its error, None if in order; the durable LSN, and whether the session advanced it.

    `may_resnapshot`: the error is not the decision of a start, so the next start may decide for a new snapshot.
    """

    error: CdcdError | None = None
    durable_lsn: Lsn = INVALID_LSN
    has_advanced: bool = False
    may_resnapshot: bool = False


class Supervisor:
    """Runs sessions until `stop` is set."""

    def __init__(
        self,
        config: Config,
        status: Status,
        schemas: Registry | SchemaTopic,
        publications: PublicationMonitor,
    ) -> None:
        self.commands = SnapshotCommands(status)
        self._state = ProcessState(status, schemas, publications, self.commands)
        self._config = config
        self._status = status
        self._is_snapshot_due = config.snapshot.mode == "always"
        status.waits.blocker_queries |= {
            "slot_held": lambda: slot_holders(config.source_settings()),
            "disk": lambda: room_below(config.buffer.spill_dir or Path(gettempdir())),
        }
        self.stop = asyncio.Event()
        self.retry = asyncio.Event()
        self._running: Session | None = None
        self._last_error: CdcdError | None = None
        self._met_lsn, self._met = INVALID_LSN, 0
        self._pending: CdcdError | None = None
        self._last_halt: CdcdError | None = None
        self._background_error: CdcdError | None = None

    def fail_session(self, error: CdcdError) -> None:
        """End the running session with an error that a monitor has found (F21, F72); between two tries, the next one.

        In a halt the error is dropped: an operator is looking already, and the next start checks again. That of the
        WAL guard replaces the reason: once the slot is dropped, the former reason has no resolution without it.
        """
        if self._running is not None:
            self._background_error = error
            self._running.fail(error)
        elif self._status.health.state != "halted":
            self._pending = error
            self.retry.set()
        elif isinstance(error, SlotDroppedByWalGuard):
            self._pending = error  # a resumed session may be about to begin; `_halt` forgets it
            if not isinstance(self._last_halt, SlotDroppedByWalGuard):
                self._note_halt(error)

    async def run(self) -> int:
        """Return the exit status once stopped, or once an error ends the process."""
        failures = 0
        while not self.stop.is_set():
            started_s = time.monotonic()
            outcome = await self._session()
            error = outcome.error
            if error is None:
                break
            if error.retry is Retry.NEVER:
                drop_frames(error)
                self._status.failed(error)
                _LOG.error("exiting", error=str(error), code=error.code)
                return error.exit_status
            await release_session(error)
            self._status.failed(error)
            if outcome.has_advanced:
                self._met = 0  # whatever ended the session: a later error is not the same one again
            if self._halts(error, outcome):
                await self._halt(error)
                failures = self._met = 0
                continue
            has_worked = outcome.has_advanced or time.monotonic() - started_s > STABLE_S
            failures = 1 if has_worked else failures + 1
            await self._back_off(error, failures)
        self._status.state("stopping")
        _LOG.info("stopped")
        return EXIT_OK

    async def _session(self) -> SessionOutcome:
        self._background_error = None
        if self._pending is None:
            await self._wait_for_event(self._status.may_begin, None)
        pending, self._pending = self._pending, None
        if pending is not None:
            return SessionOutcome(pending, may_resnapshot=True)
        if self.stop.is_set():
            return SessionOutcome()
        try:
            self._running = Session(
                self._config,
                self._state,
                self.stop,
                last_error=self._last_error,
                is_snapshot_due=self._is_snapshot_due,
            )
            await self._running.run()
        except CdcdError as error:
            return self._ended_by(error)
        except MemoryError:
            return self._ended_by(OutOfMemory("the system refuses memory"))
        except Exception as error:  # noqa: BLE001 - a defect halts, with its traceback, and skips nothing
            _LOG.exception("internal_error")
            return self._ended_by(InternalError(f"{type(error).__name__} in a session"))
        finally:
            self._is_snapshot_due &= self._running is None or not self._running.has_begun_copy
            self._running = None
        return SessionOutcome()

    def _halts(self, error: CdcdError, outcome: SessionOutcome) -> bool:
        if outcome.may_resnapshot and is_resolved_by(self._config.snapshot.mode, error):
            return self._is_met_too_often(outcome)  # the next start takes a new snapshot, or raises its halt
        return error.retry is Retry.OPERATOR or self._retries_are_exhausted(error, outcome)

    def _retries_are_exhausted(self, error: CdcdError, outcome: SessionOutcome) -> bool:
        """Count an error of the class LIMITED; return whether it has occurred too often."""
        if error.retry is not Retry.LIMITED:
            return False
        if isinstance(error, SnapshotStale):
            return self._state.stale.is_given_up(error)
        return self._is_met_too_often(outcome)

    def _is_met_too_often(self, outcome: SessionOutcome) -> bool:
        # A part of a large transaction is an advance that no LSN shows.
        is_farther = outcome.has_advanced or outcome.durable_lsn > self._met_lsn
        self._met_lsn, self._met = outcome.durable_lsn, 1 if is_farther else self._met + 1
        return self._met >= TRIES

    def _ended_by(self, error: CdcdError) -> SessionOutcome:
        """Store the error for the next session; return the outcome."""
        session = self._running
        adapt_hint(error, self._config)
        has_streamed = session is not None and session.has_streamed
        if has_streamed:
            self._state.stale.forget()
        if session is not None and session.asked_us is not None:
            self._state.crashes.ended(
                error, session.asked_us, session.durable_lsn, has_advanced=session.has_advanced
            )
        self._last_error = to_remember(self._last_error, error, has_streamed=has_streamed)
        if self._background_error is not None and _is_replaced(error, self._background_error):
            error = self._background_error
        if session is None:
            return SessionOutcome(error)
        may_resnapshot = session.has_begun or error is self._background_error
        return SessionOutcome(error, session.durable_lsn, session.has_advanced, may_resnapshot)

    async def _halt(self, error: CdcdError) -> None:
        if isinstance(self._pending, SlotDroppedByWalGuard):  # reported after the session had ended
            error = self._pending
        self._note_halt(error)
        self.retry.clear()
        await self._wait_for_event(self.retry, None)
        self._pending = None  # from before the halt; the next start checks again
        self._state.limits.forget_refused()
        self._state.stale.forget()
        self._state.crashes.forget()
        if not self.stop.is_set():
            self._state.publications.resumed(error)
            _LOG.info("resuming", reason="requested")

    def _note_halt(self, error: CdcdError) -> None:
        self._last_halt = error
        self._status.state("halted", error)
        hint = error.advice if needs_decision(error) else f"{error.advice}. {_RETRY_HINT}"
        _LOG.error("halted", error=str(error), code=error.code, hint=hint)

    async def _back_off(self, error: CdcdError, failures: int) -> None:
        pause_s = delay_s(failures, random.random())  # noqa: S311 - jitter, not a secret
        self._status.state("waiting_slot" if isinstance(error, SlotActive) else "backoff", error)
        self._note_wait(error)
        component = "sink" if "SINK" in error.code else "registry" if "REGISTRY" in error.code else "source"
        self._status.metrics.reconnecting(component, _reason(error))
        _LOG.warning("retrying", error=str(error), code=error.code, pause_s=round(pause_s, 2), tries=failures)
        self.retry.clear()
        await self._wait_for_event(self.retry, pause_s)

    def _note_wait(self, error: CdcdError) -> None:
        waits, kind = self._status.waits, waits_for(error)
        if kind is None:
            waits.stop_retrying()
        else:
            waits.retrying(kind, error.message)

    async def _wait_for_event(self, event: asyncio.Event, timeout_s: float | None) -> None:
        """Wait for `event`, the stop, or the timeout."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.stop.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*waits, return_exceptions=True)


def _is_replaced(error: CdcdError, found: CdcdError) -> bool:
    """Return whether the error that a monitor found counts, if the session was closing for another one meanwhile."""
    passes = error.retry in (Retry.AUTO, Retry.LIMITED)
    return passes or (isinstance(found, SlotDroppedByWalGuard) and error.retry is not Retry.NEVER)


def _reason(error: CdcdError) -> str:
    word = error.code.rsplit("-", 1)[-1].lower()
    return {"unavailable": "unavailable", "auth": "authentication", "active": "slot_active"}.get(
        word, "other"
    )
