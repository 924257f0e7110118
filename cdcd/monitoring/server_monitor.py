"""Query the slot and the publications at intervals, in addition to the stream; the slot also for each scrape.

In: source settings.  Out: slot readings and the end of WAL for the metrics; the results of the other monitors at
intervals (F21, F39, F72).
Invariant: the monitor has its own connection, so it continues while streaming is down, halted or blocked by Kafka. A
value that cannot be read, or not in time for a scrape, or that is of another server than the session's, is reported
as unknown (F59). The WAL guard does not depend on the other queries. The monitor waits for no lock on a user's table.
Must not: change anything, except the WAL guard if it is configured to drop the slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from cdcd.clock import monotonic_us
from cdcd.errors import CdcdError
from cdcd.lsn import Lsn
from cdcd.monitoring.blocked_sessions import BlockedSessions
from cdcd.monitoring.lag import ServerTimeline, WalEnd
from cdcd.monitoring.partition_monitor import PartitionMonitor
from cdcd.monitoring.publication_monitor import Comparison, PublicationMonitor
from cdcd.monitoring.status import Status
from cdcd.monitoring.wal_guard import WalGuard
from cdcd.monitoring.wal_levels import GuardVerdict, Level
from cdcd.ops.metrics import SlotReading
from cdcd.recovery.start_decision import check_primary
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.identity import identify
from cdcd.source.partitions import Shortfall
from cdcd.source.publication_catalog import LOCK_TIMEOUT_MS
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import read_decoded, read_slot
from cdcd.threads import in_thread
from cdcd.waits import WaitCause

INTERVAL_S = 10.0
URGENT_INTERVAL_S = 1.0
"""Until the first result, because a change is found only by comparison; and while the WAL guard drops the slot."""
SCRAPE_TIMEOUT_S = 0.5
"""How long a scrape waits for the server's answer, and for the stream to reach the sampled WAL end."""
SCRAPE_INTERVAL_S = 0.2
"""More frequent scrapes get the same sample: not each request queries the server."""
CATCH_UP_STEP_S = 0.005
_LOG = structlog.stdlib.get_logger("cdcd.monitor")


@dataclass(frozen=True, slots=True)
class _Results:
    """The results of one turn, except those of the slot and of the WAL guard."""

    publications: Comparison
    partitions: list[Shortfall] | None
    blocked: tuple[WaitCause | None, WaitCause | None]


class ServerMonitor:
    """Runs one turn after another; one object for the process."""

    def __init__(
        self,
        settings: SourceSettings,
        status: Status,
        publications: PublicationMonitor,
        partitions: PartitionMonitor,
        guard: WalGuard,
        fail_session: Callable[[CdcdError], None],
    ) -> None:
        self._settings = settings
        self._status = status
        self._publications = publications
        self._partitions = partitions
        self._guard = guard
        self._fail_session = fail_session
        self._blocked_sessions = BlockedSessions(status)
        self._connection: Any = None
        self._connected_in = 0
        """The number of sessions that had begun when the connection was opened."""
        self._answered_by: ServerTimeline | None = None
        self._is_elsewhere = False
        self._lock = asyncio.Lock()
        self._sampling: asyncio.Future[None] | None = None
        self._asked_s = self._answered_s = float("-inf")

    async def run(self) -> None:
        """Run turns until cancelled."""
        while True:
            async with self._lock:
                await self._turn()
            await asyncio.sleep(URGENT_INTERVAL_S)
            if not (self._guard.drops_slot or not self._publications.has_baseline):
                await self._publications.incomplete.comparison_wanted(INTERVAL_S - URGENT_INTERVAL_S)

    async def sample(self) -> None:
        """Sample the slot for a scrape, and wait until the stream has reached it, within `SCRAPE_TIMEOUT_S`.

        Values without an answer by then are unknown.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SCRAPE_TIMEOUT_S):
                await self._sample()
                await self._caught_up()

    async def _sample(self) -> None:
        if self._sampling is None or self._sampling.done():
            if time.monotonic() - self._asked_s < SCRAPE_INTERVAL_S:
                return
            self._sampling = asyncio.ensure_future(self._sample_for_scrape())
        try:
            await asyncio.shield(self._sampling)
        except asyncio.CancelledError:
            if time.monotonic() - self._answered_s > SCRAPE_TIMEOUT_S:
                self._set_unknown()
            raise

    async def _sample_for_scrape(self) -> None:
        async with self._lock:
            if not await self._succeeds(self._sample_slot()):
                self._set_unknown()

    async def _sample_slot(self) -> tuple[SlotReading | None, WalEnd]:
        self._asked_s = asked_s = time.monotonic()
        reading, end = await in_thread(self._read, self._status.lag.received_lsn)
        self._answered_s = asked_s
        self._status.source.check(end.of)  # again: a session may have begun on another server meanwhile
        self._status.slot(reading, end)
        return reading, end

    async def _caught_up(self) -> None:
        for _ in range(round(SCRAPE_TIMEOUT_S / CATCH_UP_STEP_S)):
            if self._status.lag.has_reached_last_sample or not self._status.health.is_source_streaming:
                return
            await asyncio.sleep(CATCH_UP_STEP_S)

    async def _succeeds(self, query: Coroutine[Any, Any, Any]) -> bool:
        """Return whether a query succeeds; if not, close the connection."""
        try:
            await query
        except CdcdError as error:
            self._log_failure(error)
        except Exception:  # noqa: BLE001 - a defect here must not stop the WAL guard
            _LOG.exception("monitor_failed")
        else:
            self._is_elsewhere = False
            return True
        self._drop_connection()
        return False

    def _log_failure(self, error: CdcdError) -> None:
        """Log that the values are unknown; once, if another server has answered than the session's."""
        was_elsewhere, self._is_elsewhere = self._is_elsewhere, self._answers_elsewhere
        if self._is_elsewhere and not was_elsewhere:
            _LOG.warning("another_server_answers", reason=error.message, hint=error.advice)
        else:
            _LOG.debug("slot_state_unknown", error=str(error))

    @property
    def _answers_elsewhere(self) -> bool:
        return self._answered_by is not None and not self._status.source.is_source(self._answered_by)

    def _set_unknown(self) -> None:
        """Set all sampled values to unknown."""
        self._status.slot(None)
        self._status.wal_guard(None)
        self._publications.unseen()

    async def _turn(self) -> None:
        """Assess the slot first: a failure of another query must not stop the WAL guard."""
        if not await self._succeeds(self._guard_slot()):
            self._set_unknown()
            self._guard.report(None, None, 0)
            self._blocked_sessions.report(None, None)
        elif not await self._succeeds(self._compare()):
            self._publications.unseen()
            self._blocked_sessions.report(None, None)

    async def _guard_slot(self) -> None:
        former = self._connection
        reading, end, verdict = await self._assess()
        is_to_drop = verdict is not None and verdict.level is Level.DROP_SLOT
        if is_to_drop and self._connection is former and self._status.source.session is None:
            # Without a session, only a new connection shows to which server source.dsn leads now.
            self._drop_connection()
            reading, end, verdict = await self._assess()
        if self._guard.report(verdict, reading, end.lsn):
            try:
                await in_thread(self._guard.drop_slot, self._connection)
            except CdcdError as error:
                self._guard.not_dropped(error)
                raise
            self._guard.dropped()

    async def _assess(self) -> tuple[SlotReading | None, WalEnd, GuardVerdict | None]:
        reading, end = await self._sample_slot()
        verdict = await in_thread(self._guard.assess, self._connection, reading)
        self._status.source.check(end.of)
        return reading, end, verdict

    async def _compare(self) -> None:
        results = await in_thread(self._query)
        if self._answered_by is not None:
            self._status.source.check(self._answered_by)
        self._blocked_sessions.report(*results.blocked)
        error = self._publications.judge(results.publications)
        if results.partitions is not None:
            self._partitions.report(results.partitions)
        if error is not None and self._publications.is_on:
            self._fail_session(error)

    def _query(self) -> _Results:
        comparison = self._publications.compare(self._connection)
        now = comparison.now
        partitions = None if now is None else self._partitions.query(self._connection, now)
        blocked = self._blocked_sessions.query(self._connection, comparison)
        return _Results(comparison, partitions, blocked)

    def _read(self, received_lsn: Lsn) -> tuple[SlotReading | None, WalEnd]:
        self._answered_by = None
        self._connect()
        asked_us = monotonic_us()
        server = identify(self._connection)
        check_primary(server)  # the WAL and the slot of a standby do not show what was committed
        self._answered_by = of = ServerTimeline(server.system_identifier, server.timeline)
        self._status.source.check(of)
        end = WalEnd(of, server.wal_lsn, server.clock_us, asked_us, monotonic_us(), received_lsn)
        return self._read_slot(server.wal_lsn), end

    def _connect(self) -> None:
        """Connect, if there is no connection from after the beginning of the last session."""
        sessions = self._status.source.sessions
        if self._connected_in != sessions:
            self._drop_connection()
        if self._connection is None:
            self._connection, self._connected_in = connect_sql(self._settings), sessions
            fetch(self._connection, "SELECT set_config('lock_timeout', %s, false)", (str(LOCK_TIMEOUT_MS),))

    def _read_slot(self, wal_lsn: int) -> SlotReading | None:
        slot = read_slot(self._connection, self._settings.slot)
        if slot is None:
            return None
        decoded = read_decoded(self._connection, self._settings.slot)
        return SlotReading(
            is_active=slot.active,
            retained_wal_bytes=_behind(wal_lsn, slot.restart_lsn),
            confirmed_flush_lag_bytes=_behind(wal_lsn, slot.confirmed_flush_lsn),
            safe_wal_bytes=slot.safe_wal_size_bytes,
            wal_status=slot.wal_status,
            restart_lsn=slot.restart_lsn,
            confirmed_flush_lsn=slot.confirmed_flush_lsn,
            catalog_xmin_age=slot.catalog_xmin_age,
            spilled_bytes=decoded.spilled_bytes,
            streamed_bytes=decoded.streamed_bytes,
        )

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _behind(wal_lsn: int, lsn: int | None) -> int | None:
    return None if lsn is None else max(0, wal_lsn - lsn)
