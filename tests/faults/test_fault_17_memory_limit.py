"""Fault 17: memory that is refused, and a process that is killed for what it takes. Nothing is lost, nothing twice.

F30: how much a transaction takes does not follow from its size, so that the next start does not end the same way.
"""

from __future__ import annotations

import resource

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run
from tests.support.waiting import eventually

ROWS = 60_000
PROBES = 3
"""So many failures in a row make Kubernetes start another one."""
MANY = f"INSERT INTO t SELECT g, repeat('n', 300) FROM generate_series(1, {ROWS}) g"


def address_space_bytes(pid: int) -> int:
    """What a process has mapped now."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("more_bytes", [0, 4 << 20])
def test_memory_that_is_refused(
    more_bytes: int, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Whatever the daemon does without it (goes on, halts, ends), the next start makes up for it."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    with new_daemon(postgres, database, buffer={"memory": "8MiB"}) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.process is not None
        pid = daemon.process.pid
        limit_bytes = address_space_bytes(pid) + more_bytes
        resource.prlimit(pid, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        postgres.execute(MANY, dbname=database)
        process = daemon.process

        def decided() -> bool:
            """It has ended, says that it cannot go on, has done it all the same, or its liveness probe fails."""
            if process.poll() is not None or daemon.events("halted") or daemon.events("retrying"):
                return True
            if daemon.status().get("rows_written", 0) >= ROWS:
                return True
            return all(daemon.get("/livez")[0] != 200 for _ in range(PROBES))

        eventually(decided, "the limit is met, or not", 60)
        print(f"\n{more_bytes} bytes more: {process.poll()}, {daemon.status().get('state')}")
        if process.poll() is None:
            daemon.kill()
        daemon.start()
        await_confirmed(postgres, daemon, 120)
        events = reader.read(f"{daemon.name}.public.t")
        assert_each_once(events)
        assert len(events) == ROWS
