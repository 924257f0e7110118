"""The time that a restarted daemon takes until it streams, and until the first row is durable.

In: a case (a number of tables), a number of starts.  Out: `Restart`s.
The row exists before the start and the slot is free, so the time is that of the daemon alone; the daemon has drained
before, so schemas, topics and progress exist. The daemon is stopped by SIGTERM and by SIGKILL in turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import StackError
from tests.bench.backlog import END_TOLERANCE_BYTES, Backlog, table_name
from tests.bench.cases import TEN, Case
from tests.bench.kafka import ProgressReader
from tests.bench.measure import LOOK_S, await_stream, query_connection
from tests.bench.runners import Cdcd
from tests.bench.servers import Servers
from tests.bench.table import FIRST_START
from tests.support.daemon import Daemon
from tests.support.waiting import eventually

ROWS_BEFORE = 1_000
WITHIN_S = 300.0
ENDS = (FIRST_START, "asked to end", "killed")


@dataclass(frozen=True, slots=True)
class Start:
    """One case: a number of published tables."""

    name: str
    about: str
    tables: int
    is_long: bool = False


STARTS = {
    start.name: start
    for start in (
        Start("restart", "a start again, one table", 1),
        Start("restart-5000", "a start again, 5,000 published tables", 5_000),
    )
}


@dataclass(frozen=True, slots=True)
class Restart:
    """One start, in seconds from the process's start; `after`: how the previous process ended."""

    case: str
    after: str
    ready_seconds: float
    first_seconds: float

    def document(self) -> dict[str, Any]:
        """Return the start for JSON."""
        return asdict(self)


def measure_restarts(servers: Servers, start: Start, times: int) -> Iterator[Restart]:
    """Start the daemon for the first time, then this many times after each kind of end."""
    case = Case(start.name, start.about, TEN, ROWS_BEFORE, ROWS_BEFORE, tables=start.tables, partitions=1)
    with (
        Backlog(servers.postgres, case) as backlog,
        backlog.new_slot() as slot,
        query_connection(backlog) as connection,
        Cdcd("cdcd", "").daemon(servers, backlog, slot) as daemon,
    ):
        yield _start(servers, backlog, slot, connection, daemon, ENDS[0])
        for number in range(times):
            for after in ENDS[1:]:
                if after == "killed":
                    daemon.kill()
                else:
                    daemon.stop()
                _insert(backlog, ROWS_BEFORE + 2 * number + ENDS.index(after))
                eventually(lambda: not backlog.is_active(slot), "the slot is free")
                yield _start(servers, backlog, slot, connection, daemon, after)


def _start(
    servers: Servers, backlog: Backlog, slot: str, connection: Connection, daemon: Daemon, after: str
) -> Restart:
    end_lsn = backlog.current_lsn() - END_TOLERANCE_BYTES
    with contextlib.closing(
        ProgressReader(servers.kafka.bootstrap, f"{daemon.name}.__progress", slot)
    ) as progress:
        began_s = time.monotonic()
        daemon.start()

        def look(timeout_s: float) -> int:
            daemon.assert_alive()
            return progress.look(timeout_s)

        await_stream(connection, slot, look, daemon.name)
        ready_s = time.monotonic()
        while look(LOOK_S) < end_lsn:
            if time.monotonic() - began_s > WITHIN_S:
                raise StackError("the row never became durable", case=backlog.case.name)
        return Restart(backlog.case.name, after, ready_s - began_s, time.monotonic() - began_s)


def _insert(backlog: Backlog, row: int) -> None:
    values = ", ".join(expression for _, _, expression in TEN)
    backlog.execute(f"INSERT INTO {table_name(0)} SELECT {values} FROM (SELECT {row}::bigint AS g) AS row")
