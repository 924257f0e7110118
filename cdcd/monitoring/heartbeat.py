"""Heartbeats: small logical messages at intervals, and the time until each is confirmed (F12).

In: source settings, an interval.  Out: heartbeats in the source while the stream is open, two metrics.
Invariant: if a heartbeat cannot be written, the failure is logged once and the next one is tried; nothing else stops.
Each heartbeat is written to the server of the stream (F59).
No heartbeat is written while nothing streams, so that a halted or waiting cdcd adds no WAL that its slot retains.
Must not: end a session.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from cdcd.errors import CdcdError
from cdcd.lsn import Lsn
from cdcd.monitoring.lag import ServerTimeline
from cdcd.monitoring.status import Status
from cdcd.source.connection import connect_sql
from cdcd.source.heartbeat import write_heartbeat
from cdcd.source.identity import identify
from cdcd.source.settings import SourceSettings
from cdcd.threads import in_thread

CHECK_INTERVAL_S = 1.0
_LOG = structlog.stdlib.get_logger("cdcd.heartbeat")


class Heartbeat:
    """One for the process; `run` runs until it is cancelled."""

    def __init__(self, settings: SourceSettings, status: Status, interval_s: float) -> None:
        self._settings = settings
        self._status = status
        self._interval_s = interval_s
        self._connection: Any = None
        self._connected_in = 0
        self._written_on: ServerTimeline | None = None
        self._written_lsn: Lsn | None = None
        self._is_failing = False

    async def run(self) -> None:
        """Write one heartbeat each interval; check in between whether the last one was confirmed."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            if loop.time() >= due_s:
                due_s = loop.time() + self._interval_s
                if self._status.health.is_source_streaming:
                    await self._beat()
            self._check_confirmed()
            await asyncio.sleep(min(CHECK_INTERVAL_S, max(0.0, due_s - loop.time())))

    async def _beat(self) -> None:
        try:
            on, written_lsn = await in_thread(self._write)
        except CdcdError as error:
            self._drop_connection()
            if not self._is_failing:
                _LOG.warning("heartbeat_failed", error=str(error), code=error.code)
            self._is_failing = True
            return
        self._is_failing = False
        self._status.metrics.source.heartbeat_sent()
        # If the one before is not confirmed yet, its time counts; not if it was written to a former server.
        if self._written_lsn is None or self._written_on != on:
            self._written_on, self._written_lsn = on, written_lsn

    def _check_confirmed(self) -> None:
        if self._written_lsn is not None and self._status.confirmed_lsn >= self._written_lsn:
            self._written_lsn = None
            self._status.metrics.source.heartbeat_back()

    def _write(self) -> tuple[ServerTimeline, Lsn]:
        source = self._status.source
        sessions = source.sessions
        if self._connected_in != sessions:
            self._drop_connection()
        if self._connection is None:
            self._connection, self._connected_in = connect_sql(self._settings), sessions
        server = identify(self._connection)
        on = ServerTimeline(server.system_identifier, server.timeline)
        source.check(on)
        return on, write_heartbeat(self._connection)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
