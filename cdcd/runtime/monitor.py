"""Look at the slot and the publication from beside the stream, at intervals.

In: source settings.  Out: slot readings for the metrics; an error when a publication is gone (F39, F72).
Invariant: it has its own connection, so it goes on while streaming is down; what it cannot read is reported as
unknown. Must not: change anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from cdcd.errors import CdcdError
from cdcd.ops.metrics import SlotReading
from cdcd.runtime.status import Status
from cdcd.runtime.threads import in_thread
from cdcd.source.connection import connect_sql
from cdcd.source.identity import identify
from cdcd.source.publication import missing_publications
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import read_decoded, read_slot

INTERVAL_S = 10.0
_LOG = structlog.stdlib.get_logger("cdcd.monitor")


class Monitor:
    """One look after another; `lost` is called with the publications that have gone."""

    def __init__(self, settings: SourceSettings, status: Status, lost: Callable[[list[str]], None]) -> None:
        self._settings = settings
        self._status = status
        self._lost = lost
        self._connection: Any = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self._turn()
            except CdcdError as error:
                self._status.metrics.slot(None)
                self._drop_connection()
                _LOG.debug("slot_unknown", error=str(error))
            await asyncio.sleep(INTERVAL_S)

    async def _turn(self) -> None:
        reading, wal_lsn, missing = await in_thread(self._look)
        self._status.metrics.slot(reading)
        self._status.server_lsn(wal_lsn)
        if missing:
            self._lost(missing)

    def _look(self) -> tuple[SlotReading | None, int, list[str]]:
        if self._connection is None:
            self._connection = connect_sql(self._settings)
        wal_lsn = identify(self._connection).wal_lsn
        slot = read_slot(self._connection, self._settings.slot)
        missing = missing_publications(self._connection, self._settings.publications)
        if slot is None:
            return None, wal_lsn, missing
        decoded = read_decoded(self._connection, self._settings.slot)
        reading = SlotReading(
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
        return reading, wal_lsn, missing

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _behind(wal_lsn: int, lsn: int | None) -> int | None:
    return None if lsn is None else max(0, wal_lsn - lsn)
