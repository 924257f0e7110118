"""The end of a session that copies tables: no connection is closed while a thread uses it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from cdcd.ack.position_tracker import PositionTracker
from cdcd.model import CopyState, TableCopyState
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.table_copies import TableCopies
from cdcd.session.incremental import CopyOptions, IncrementalSnapshots
from cdcd.snapshot.reports import TableReports


class Reader:
    """A connection whose first statement ends some time after `hang_up`."""

    def __init__(self) -> None:
        self.is_used, self.is_shut = threading.Event(), threading.Event()
        self.events: list[str] = []

    def look(self, _relid: int) -> Any:
        self.is_used.set()
        self.is_shut.wait()
        threading.Event().wait(0.05)  # libpq returns some time later
        self.events.append("returned")
        raise AssertionError

    def hang_up(self) -> None:
        self.is_shut.set()

    def close(self) -> None:
        self.events.append("closed")


class Parts:
    """What the session passes on, and does not use here."""

    plan_of = None

    def titles_of(self, _relids: list[int]) -> dict[int, str]:
        return {}


class NoBlockingSnapshots:
    relids = ()

    async def run(self) -> None:
        await asyncio.Event().wait()


def test_a_connection_is_closed_after_the_thread_that_reads_from_it() -> None:
    reader = Reader()

    async def session() -> None:
        unused: Any = Parts()
        copies = TableCopies(CopyState(tables={7: TableCopyState("topic")}))
        reports = TableReports(lambda: 0.0, lambda _table, _rows: None)
        new_reader: Any = lambda: reader  # noqa: E731
        blocking: Any = lambda *_: NoBlockingSnapshots()  # noqa: E731
        options = CopyOptions(workers=1)
        progress = StreamProgress(unused, PositionTracker(0), copies=copies)
        copying = IncrementalSnapshots(
            unused, progress, unused, unused, new_reader, reports, blocking, unused, options
        )
        running = asyncio.create_task(copying.run())
        await asyncio.get_running_loop().run_in_executor(None, reader.is_used.wait)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(session())
    assert reader.events == ["returned", "closed"]
