"""The runner `copying`: cdcd that copies a large table by an incremental snapshot all the time while it streams.

In: servers, a backlog.  Out: a `Running`, as `Cdcd` gives it; the rows copied per second are printed at its end.
Invariant: a copy runs from the stream's start to the end: when it is complete, it begins again. An error of the copy
ends the run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from cdcd.errors import StackError
from tests.bench.backlog import Backlog
from tests.bench.copied_table import TABLE, make_table
from tests.bench.runners import Cdcd, Running
from tests.bench.servers import Servers
from tests.support.daemon import Daemon
from tests.support.snapshot_commands import command, copied_rows, reports

ROWS = 2_000_000
"""Where the case has no such table."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Copying(Cdcd):
    """cdcd beside a copy."""

    @contextlib.contextmanager
    def run(self, servers: Servers, backlog: Backlog, slot: str) -> Iterator[Running]:
        """Start the daemon, and a copy when it streams."""
        make_table(backlog, ROWS)
        with Cdcd.run(self, servers, backlog, slot) as running:
            copy = _Copy(running.daemon)  # type: ignore[attr-defined]
            try:
                yield running
            finally:
                copy.end()


class _Copy:
    """Starts the copy again and again in a thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._is_over = threading.Event()
        self._error: str | None = None
        self._began_s: float | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            if self._daemon.status().get("state") != "streaming":
                continue
            self._began_s = self._began_s or time.monotonic()
            code, found = self._daemon.get("/snapshots")
            if code == 200 and found == "[]":
                status, body = command(self._daemon, "start", f"public.{TABLE}")
                self._error = None if status in (0, 200, 409) else str(body)
            elif code == 200 and (
                failed := [one for one in reports(self._daemon) if one["state"] == "failed"]
            ):
                self._error = str(failed)

    def end(self) -> None:
        """End the thread, and print the rate of the copy. Raises StackError if it has failed."""
        self._is_over.set()
        self._thread.join()
        seconds = time.monotonic() - (self._began_s or time.monotonic())
        rows = copied_rows(self._daemon)
        if seconds:
            print(f"copied beside the stream: {rows / seconds:,.0f} rows/s", file=sys.stderr)
        if self._error is not None:
            raise StackError(f"the copy has failed: {self._error}")
