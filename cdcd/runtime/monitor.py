"""Look at the slot and the publications from beside the stream, at intervals.

In: source settings.  Out: slot readings for the metrics; what the watches make of each look (F21, F39, F72).
Invariant: it has its own connection, so it goes on while streaming is down, halted or held back by Kafka; what it
cannot read is reported as unknown. It waits for no lock of a user's table.
Must not: change anything, but by the WAL guard where that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from cdcd.errors import CdcdError
from cdcd.ops.metrics import SlotReading
from cdcd.runtime.partition_monitor import PartitionMonitor
from cdcd.runtime.publication_watch import Look, PublicationWatch
from cdcd.runtime.status import Status
from cdcd.runtime.wal_guard import WalGuard
from cdcd.runtime.wal_levels import Judged
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.identity import identify
from cdcd.source.partitions import Shortfall
from cdcd.source.publication import LOCK_PATIENCE_MS
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import read_decoded, read_slot
from cdcd.threads import in_thread

INTERVAL_S = 10.0
URGENT_INTERVAL_S = 1.0
"""Until it has looked once, because a change is seen only by comparison; and while a slot is being given up."""
_LOG = structlog.stdlib.get_logger("cdcd.monitor")


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look has seen."""

    reading: SlotReading | None
    wal_lsn: int
    publications: Look
    partitions: list[Shortfall] | None
    guarded: Judged | None


class Monitor:
    """One look after another."""

    def __init__(
        self,
        settings: SourceSettings,
        status: Status,
        publications: PublicationWatch,
        partitions: PartitionMonitor,
        guard: WalGuard,
        found: Callable[[CdcdError], None],
    ) -> None:
        self._settings = settings
        self._status = status
        self._publications = publications
        self._partitions = partitions
        self._guard = guard
        self._found = found
        self._connection: Any = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self._turn()
            except CdcdError as error:
                self._status.slot(None)
                self._guard.tell(None, None, 0)
                self._drop_connection()
                _LOG.debug("slot_unknown", error=str(error))
            except Exception:  # noqa: BLE001 - a defect here must not take the WAL guard away for good
                self._status.slot(None)
                self._guard.tell(None, None, 0)
                self._drop_connection()
                _LOG.exception("monitor_failed")
            is_urgent = self._guard.is_giving_up or not self._publications.has_looked
            await asyncio.sleep(URGENT_INTERVAL_S if is_urgent else INTERVAL_S)

    async def _turn(self) -> None:
        look = await in_thread(self._look)
        self._status.slot(look.reading, look.wal_lsn)
        error = self._publications.judge(look.publications)
        if look.partitions is not None:
            self._partitions.tell(look.partitions)
        if error is not None and self._publications.is_on:
            self._found(error)
        if self._guard.tell(look.guarded, look.reading, look.wal_lsn):
            await in_thread(self._guard.give_up, self._connection)

    def _look(self) -> _Look:
        if self._connection is None:
            self._connection = connect_sql(self._settings)
            fetch(self._connection, "SELECT set_config('lock_timeout', %s, false)", (str(LOCK_PATIENCE_MS),))
        wal_lsn = identify(self._connection).wal_lsn
        reading = self._read_slot(wal_lsn)
        guarded = self._guard.look(self._connection, reading)
        look = self._publications.look(self._connection)
        partitions = None if look.now is None else self._partitions.look(self._connection, look.now)
        return _Look(reading, wal_lsn, look, partitions, guarded)

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
