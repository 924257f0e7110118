"""Query the slot and the publications at intervals, in addition to the stream; the slot also for each scrape.

In: source settings.  Out: slot readings and the end of WAL for the metrics; the results of the other monitors at
intervals (F21, F39, F72).
Invariant: the monitor has its own connection, so it continues while streaming is down, halted or blocked by Kafka. A
value that cannot be read, or not in time for a scrape, is reported as unknown. It waits for no lock on a user's
table.
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
from cdcd.monitoring.wal_levels import GuardVerdict
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
    """The results of one turn, except the slot's."""

    guarded: GuardVerdict | None
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
        self._lock = asyncio.Lock()
        self._sampling: asyncio.Future[None] | None = None
        self._asked_s = self._answered_s = float("-inf")

    async def run(self) -> None:
        """Run turns until cancelled."""
        while True:
            async with self._lock:
                if not await self._succeeds(self._turn()):
                    self._guard.report(None, None, 0)
                    self._blocked_sessions.report(None, None)
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
            await self._succeeds(self._sample_slot())

    async def _sample_slot(self) -> tuple[SlotReading | None, WalEnd]:
        self._asked_s = asked_s = time.monotonic()
        reading, end = await in_thread(self._read, self._status.lag.received_lsn)
        self._answered_s = asked_s
        self._status.slot(reading, end)
        return reading, end

    async def _caught_up(self) -> None:
        for _ in range(round(SCRAPE_TIMEOUT_S / CATCH_UP_STEP_S)):
            if self._status.lag.has_reached_last_sample or not self._status.health.is_source_streaming:
                return
            await asyncio.sleep(CATCH_UP_STEP_S)

    async def _succeeds(self, query: Coroutine[Any, Any, Any]) -> bool:
        """Return whether a query succeeds; if not, set its values to unknown and close the connection."""
        try:
            await query
        except CdcdError as error:
            _LOG.debug("slot_state_unknown", error=str(error))
        except Exception:  # noqa: BLE001 - a defect here must not stop the WAL guard
            _LOG.exception("monitor_failed")
        else:
            return True
        self._set_unknown()
        self._drop_connection()
        return False

    def _set_unknown(self) -> None:
        """Set all sampled values to unknown."""
        self._status.slot(None)
        self._status.wal_guard(None)
        self._publications.unseen()

    async def _turn(self) -> None:
        reading, end = await self._sample_slot()
        results = await in_thread(self._query, reading)
        self._blocked_sessions.report(*results.blocked)
        error = self._publications.judge(results.publications)
        if results.partitions is not None:
            self._partitions.report(results.partitions)
        if error is not None and self._publications.is_on:
            self._fail_session(error)
        if self._guard.report(results.guarded, reading, end.lsn):
            await in_thread(self._guard.drop_slot, self._connection)

    def _query(self, reading: SlotReading | None) -> _Results:
        guarded = self._guard.assess(self._connection, reading)
        comparison = self._publications.compare(self._connection)
        now = comparison.now
        partitions = None if now is None else self._partitions.query(self._connection, now)
        blocked = self._blocked_sessions.query(self._connection, comparison)
        return _Results(guarded, comparison, partitions, blocked)

    def _read(self, received_lsn: Lsn) -> tuple[SlotReading | None, WalEnd]:
        if self._connection is None:
            self._connection = connect_sql(self._settings)
            fetch(self._connection, "SELECT set_config('lock_timeout', %s, false)", (str(LOCK_TIMEOUT_MS),))
        asked_us = monotonic_us()
        server = identify(self._connection)
        check_primary(server)  # the WAL and the slot of a standby do not show what was committed
        of = ServerTimeline(server.system_identifier, server.timeline)
        end = WalEnd(of, server.wal_lsn, server.clock_us, asked_us, monotonic_us(), received_lsn)
        return self._read_slot(server.wal_lsn), end

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
