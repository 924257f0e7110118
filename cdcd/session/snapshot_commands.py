"""The commands of incremental snapshots, for the session that streams at the moment.

In: commands of the admin port and of signals.  Out: their effect in the session; the reports of the tables.
Invariant: without a session that streams a command is refused, and changes nothing. Until the first one the tables
are not known.
Must not: store a command for a later session.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from cdcd.errors import NotStreaming
from cdcd.monitoring.copy_status import MOST_TABLES
from cdcd.monitoring.status import Status
from cdcd.session.background_tasks import StopRequested, or_stop
from cdcd.session.incremental import IncrementalSnapshots
from cdcd.snapshot.control import TABLE_STATES, CommandResult, SnapshotCommand, TableReport, fields_of
from cdcd.snapshot.reports import TableReports

_AFTER_THE_SNAPSHOT = (
    "repeat the command when `state` of /status is streaming; a signal in snapshot.signals.topic is executed after "
    "the end of the snapshot"
)
_NOT_LISTED = "an initial snapshot is being taken, and its tables are not listed at the moment"
_NOT_LISTED_HINT = "repeat the command; `waiting_for` of /status is what the snapshot waits for"
_ENDED = "the session ended before the command was confirmed: it may have been recorded"
_ENDED_HINT = "`cdcd snapshot status` shows whether it was; if not, repeat the command"


class SnapshotCommands:
    """A `SnapshotControl`. It outlives the sessions, and shows the tables in the daemon's status."""

    def __init__(self, status: Status) -> None:
        self.table_reports = TableReports(time.monotonic, status)
        self._status = status
        self._is_known = False
        self._session: IncrementalSnapshots | None = None
        self._ended = asyncio.Event()

    @contextlib.contextmanager
    def attached(self, session: IncrementalSnapshots) -> Iterator[None]:
        """Pass the commands to this session while the block runs."""
        self._session, self._ended = session, asyncio.Event()
        self._is_known = True
        self._status.incremental(TABLE_STATES, self.table_reports.count, self._page)
        try:
            yield
        finally:
            self._session = None
            self._ended.set()

    async def execute(self, command: SnapshotCommand) -> CommandResult:
        """Apply a command; return the tables that it concerned. Raises CdcdError."""
        if self._session is None:
            raise _not_streaming(is_copying=self._status.health.state == "snapshot")
        try:
            return await or_stop(self._session.execute(command), self._ended)
        except StopRequested:
            raise NotStreaming(_ENDED, hint=_ENDED_HINT) from None

    def _page(self) -> list[dict[str, Any]]:
        return [fields_of(report) for report in self.table_reports.all()[:MOST_TABLES]]

    def reports(self) -> list[TableReport]:
        """Return the tables that are being copied, or that an initial snapshot has left.

        Raises NotStreaming while they are not known.
        """
        found = [*self._status.tables_of_initial_snapshot(), *self.table_reports.all()]
        if not found and self._status.health.state == "snapshot":
            raise NotStreaming(_NOT_LISTED, hint=_NOT_LISTED_HINT)
        if not found and not self._is_known:
            raise NotStreaming("no session has read yet which tables are being copied")
        return found


def _not_streaming(*, is_copying: bool) -> NotStreaming:
    if is_copying:
        return NotStreaming("an initial snapshot is being taken", hint=_AFTER_THE_SNAPSHOT)
    return NotStreaming("no session streams at the moment")
