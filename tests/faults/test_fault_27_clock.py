"""Fault 27: the wall clock is set far back and far ahead while rows flow. Timers still work, no lag is negative.

F70: commit times are PostgreSQL's, and define no order. The clock is set for the Python code of the process only,
because the machine's clock cannot be set for a single process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run

HOUR_S = 3600
AHEAD_S = (HOUR_S, -HOUR_S, 20 * 365 * 24 * HOUR_S, 0)
"""The third is beyond what 32 bits of seconds can count (2038)."""


def start_clocked(daemon: Daemon, clock: Path, timezone: str) -> None:
    """Start the daemon with a clock that the test sets."""
    log = daemon.log_path.open("ab")
    command = [sys.executable, "-m", "tests.faults.clocked", "--config", str(daemon.config_path)]
    environment = {**os.environ, "CDCD_TEST_CLOCK": str(clock), "TZ": timezone}
    daemon.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def test_a_clock_that_is_set(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """Each row is there once, in order; an idle stream is confirmed as well; the lags follow the clock or are 0."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY)")
    clock = tmp_path / "ahead"
    clock.write_text("0")
    with new_daemon(postgres, database) as daemon:
        start_clocked(daemon, clock, "Pacific/Chatham")
        daemon.wait_state("streaming")
        for number, ahead_s in enumerate(AHEAD_S):
            clock.write_text(str(ahead_s))
            postgres.execute("INSERT INTO t VALUES (%s)", number, dbname=database)
            await_confirmed(postgres, daemon)
            assert lags(daemon), "there are lag metrics"
            assert min(lags(daemon)) >= 0
            assert daemon.status()["state"] == "streaming"
            assert daemon.get("/livez")[0] == daemon.get("/readyz")[0] == 200
        assert not daemon.events("retrying")
        assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.t")
        assert_each_once(events)
        in_order = sorted(events, key=lambda event: event.sequence or ())
        assert [event.value["after"]["id"] for event in in_order] == list(range(len(AHEAD_S)))


def lags(daemon: Daemon) -> list[float]:
    """Return the values of all lag metrics in seconds."""
    lines = daemon.get("/metrics")[1].splitlines()
    return [
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("cdcd_") and "lag_seconds" in line
    ]
