"""Fault 25: two daemons on one slot for a minute; the one that writes is frozen and woken repeatedly."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import EXIT_FENCED
from tests.faults.inserting import Inserting, assert_all_there
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader
from tests.support.waiting import eventually

MINUTE_S = 60.0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_of_two_daemons_writes_at_any_time(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F69, F74: each row is there once; the other daemon waits, or exits as fenced and is started again."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    pair = [new_daemon(postgres, database) for _ in range(2)]
    for daemon in pair:
        daemon.config["name"] = pair[0].name
        daemon.config["source"]["dsn"] += "?options=-c%20wal_sender_timeout%3D2s"
    pair[0].start().wait_state("streaming")
    pair[1].start().wait_state("waiting_slot")
    became: Counter[str] = Counter()
    with Inserting(postgres.dsn(database)) as rows:
        end_s = time.monotonic() + MINUTE_S
        while time.monotonic() < end_s:
            first = eventually(lambda: streaming(pair), "one of the daemons streams", 60)
            assert first.process is not None
            os.kill(first.process.pid, signal.SIGSTOP)
            other = pair[1 - pair.index(first)]
            other.wait_state("streaming")
            os.kill(first.process.pid, signal.SIGCONT)
            became[settled(first)] += 1
    await_confirmed(postgres, pair[0], 120)  # both daemons have the same slot
    events = reader.read(f"{pair[0].name}.public.t")
    assert_all_there(events, rows)
    print(f"\n{rows.last} rows, each once; frozen and woken: {dict(became)}")


def streaming(pair: list[Daemon]) -> Daemon | None:
    """Return the daemon that streams now, if exactly one does."""
    found = [daemon for daemon in pair if daemon.status().get("state") == "streaming"]
    return found[0] if len(found) == 1 else None


def settled(daemon: Daemon) -> str:
    """Return the result for the woken daemon; a fenced one is started again, as by a supervisor."""
    process = daemon.process
    assert process is not None
    eventually(
        lambda: process.poll() is not None or daemon.status().get("state") == "waiting_slot",
        "the daemon has noticed",
        60,
    )
    if process.poll() is None:
        return "waits"
    assert process.returncode == EXIT_FENCED
    daemon.start()
    return "fenced"
