"""Stop the copy of a table at a row, so that a test can change the table in the middle of its incremental snapshot.

In: a server and a database; tables whose copy has the condition `GATE`.  Out: copies that stand after a chunk.
The first chunk has 2,000 rows. The condition waits for a lock of the test's session at the first row above 2,500.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cdcd.demo.stack.postgres import Execute, PostgresServer
from tests.support.daemon import Daemon
from tests.support.snapshot_commands import command, reports, start
from tests.support.stack import run_script
from tests.support.standby import follow
from tests.support.waiting import eventually

GATE = "public.gate(id::int)"
_FUNCTION = """
    CREATE FUNCTION public.gate(id int) RETURNS bool LANGUAGE plpgsql VOLATILE COST 1000000 AS $$
    BEGIN
        IF id > 2500 THEN PERFORM pg_catalog.pg_advisory_xact_lock_shared(1); END IF;
        RETURN true;
    END $$
"""
_WAITING = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class Gate:
    """Holds the lock from the beginning, and again after each `pass_`."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self.close()

    def close(self) -> None:
        """Let nothing pass from now on."""
        self._execute("SELECT pg_advisory_lock(1)")

    def wait(self) -> None:
        """Wait until a chunk waits at the gate."""
        eventually(lambda: self._execute(_WAITING), "a chunk waits at the gate")

    def open(self) -> None:
        """Let everything pass from now on."""
        self._execute("SELECT pg_advisory_unlock(1)")

    def pass_(self) -> None:
        """Let the chunks pass that wait now."""
        waiting = {pid for (pid,) in self._execute(_WAITING)}
        self.open()

        def is_through() -> bool:
            pids = self._execute("SELECT pid FROM pg_stat_activity WHERE backend_xmin IS NOT NULL")
            return not waiting & {pid for (pid,) in pids}

        eventually(is_through, "the chunks are read")
        self.close()


@contextlib.contextmanager
def gate(server: PostgresServer, database: str, at: PostgresServer | None = None) -> Iterator[Gate]:
    """Yield the gate of a database. `at`: a standby of the server, on which the copy is stopped."""
    run_script(server.dsn(database), _FUNCTION)
    if at is not None:
        follow(server, at)
    with (at or server).session(dbname=database) as execute:
        yield Gate(execute)


def stand_after_a_chunk(daemon: Daemon, closed: Gate, table: str) -> None:
    """Start the copy of a table, and pause it after its first chunk."""
    start(daemon, table, where=GATE)
    closed.wait()
    assert command(daemon, "pause", table)[0] == 200
    closed.pass_()
    (report,) = (one for one in reports(daemon) if one["table"] == table)
    assert report["state"] == "paused"
    assert report["rows"] == 2000, (report, daemon.log()[-1500:])
