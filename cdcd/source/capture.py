"""Read the frames that a server sends, one by one, over a temporary slot. Blocking.

In: settings and options.  Out: CopyData payloads ('w' and 'k'), unchanged.
Invariant: the slot belongs to this connection and is dropped with it. No LSN is confirmed to any slot: status updates
report the received LSN, and flush 0/0.
Must not: use the daemon's slot, or decode.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from cdcd.errors import PublicationMissing, SourceUnavailable
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import POSTGRES_EPOCH_US, Keepalive
from cdcd.source.connection import connect_replication, connect_sql
from cdcd.source.copyboth import parse_copy_data, standby_status_update
from cdcd.source.drain import look_at_notices
from cdcd.source.identity import ServerIdentity, identify
from cdcd.source.libpq import CopyConnection
from cdcd.source.lock_watch import Report, unreported
from cdcd.source.publication_catalog import missing_publications
from cdcd.source.settings import SourceSettings, StreamOptions
from cdcd.source.slot import create_temporary_slot
from cdcd.source.start import StartedStream, start_on

_STATUS_INTERVAL_S = 10.0
_LOOK_AGAIN_S = 0.2
_SLOT_NAME_LIMIT = 63


def server_of(settings: SourceSettings) -> ServerIdentity:
    """Return the server's identity. Raises PublicationMissing for a publication that does not exist (F39)."""
    connection = connect_sql(settings)
    try:
        missing = missing_publications(connection, settings.publications)
        if missing:
            what = f"publication {', '.join(missing)} does not exist"
            raise PublicationMissing(what, hint="create it, or run `cdcd init`")
        return identify(connection)
    finally:
        connection.close()


class Capture:
    """A running capture. Use as a context manager; `start_lsn` is the temporary slot's consistent point."""

    def __init__(self, settings: SourceSettings, options: StreamOptions, report: Report = unreported) -> None:
        """Create the slot and start streaming. The creation waits for the currently open transactions (F38).

        `report` is called with these transactions.
        """
        suffix = f"_capture_{os.getpid()}"
        slot = settings.slot[: _SLOT_NAME_LIMIT - len(suffix)] + suffix
        settings = replace(settings, slot=slot, failover=False)
        connection = connect_replication(settings)
        try:
            self.start_lsn = create_temporary_slot(settings, connection, report)
            self._started: StartedStream = start_on(connection, settings, options, INVALID_LSN)
        except BaseException:
            connection.close()
            raise
        self._received_lsn: Lsn = self.start_lsn
        timeout_s = self._started.server_timeout_ms / 1000
        self._interval_s = min(timeout_s / 3, _STATUS_INTERVAL_S) if timeout_s else _STATUS_INTERVAL_S
        self._status_due_s = 0.0

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._started.copy.close()

    def frames(self, until: Callable[[], bool]) -> Iterator[bytes | None]:
        """Yield payloads as they arrive, None while none is available, until `until()` is true.

        Raises the error for the server's ErrorResponse, SourceUnavailable when the stream ends.
        """
        copy = self._started.copy
        while not until():
            self._send_status_when_due(copy)
            message = copy.read_message()
            look_at_notices(copy)
            if isinstance(message, bytes):
                self._note(message)
                yield message
            elif message < 0:
                raise copy.end_of_copy() if message == -1 else SourceUnavailable(copy.error_message())
            else:
                yield None
                if select.select([copy.socket], [], [], min(_LOOK_AGAIN_S, self._interval_s))[0]:
                    copy.consume()  # the next read reports a broken connection

    def _note(self, payload: bytes) -> None:
        frame = parse_copy_data(payload)
        if isinstance(frame, Keepalive):
            self._received_lsn = max(self._received_lsn, frame.wal_end_lsn)
            if frame.reply_requested:
                self._status_due_s = 0.0

    def _send_status_when_due(self, copy: CopyConnection) -> None:
        if time.monotonic() < self._status_due_s:
            return
        self._status_due_s = time.monotonic() + self._interval_s
        now_pg_us = time.time_ns() // 1_000 - POSTGRES_EPOCH_US
        # The received LSN lets a fast shutdown of the server continue; flush 0/0 confirms nothing.
        copy.put(standby_status_update(self._received_lsn, INVALID_LSN, INVALID_LSN, now_pg_us, False))
        copy.flush()
