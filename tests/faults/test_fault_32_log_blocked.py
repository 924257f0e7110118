"""Fault 32: nobody reads the log, or its disk is full. The daemon still runs, and stops on SIGTERM."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run, slot_is_active


def start_into(daemon: Daemon, stderr: int, module: str = "cdcd") -> None:
    """Start the daemon with this file descriptor for its log."""
    daemon.config["log"] = {"level": "debug"}
    command = [sys.executable, "-m", module, "--config", str(daemon.config_path)]
    daemon.process = subprocess.Popen(command, stdout=stderr, stderr=stderr)


def full_pipe() -> tuple[int, int]:
    """Return a full pipe."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 512)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, writing


@pytest.mark.parametrize("where", ["a full pipe", nightly("a full disk"), nightly("a pipe without a reader")])
def test_a_log_that_cannot_be_written_stops_nothing(
    where: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Rows flow, the stop has status 0, and the slot is free."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    ends = full_pipe() if where != "a full disk" else (os.open("/dev/full", os.O_WRONLY),)
    if where == "a pipe without a reader":
        os.close(ends[0])
        ends = ends[1:]
    try:
        with new_daemon(postgres, database) as daemon:
            start_into(daemon, ends[-1])
            daemon.wait_state("streaming")
            for first in range(1, 1001, 100):
                rows = f"INSERT INTO t SELECT g, 'n' FROM generate_series({first}, {first + 99}) g"
                postgres.execute(rows, dbname=database)
            await_confirmed(postgres, daemon)
            assert daemon.stop(deadline_s=30) == 0
            assert not slot_is_active(postgres, daemon.slot)
            events = reader.read(f"{daemon.name}.public.t")
            assert_each_once(events)
            assert len(events) == 1000
    finally:
        for end in ends:
            os.close(end)


@pytest.mark.nightly
def test_the_number_of_lost_log_lines_is_logged_once_the_log_is_read_again(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """The log has the number of lost lines once it is read again; the daemon has continued meanwhile."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    reading, writing = full_pipe()
    try:
        with new_daemon(postgres, database) as daemon:
            start_into(daemon, writing, "tests.faults.forgetful")
            daemon.wait_state("streaming")
            postgres.execute("INSERT INTO t VALUES (1, 'n')", dbname=database)
            await_confirmed(postgres, daemon)
            log = b""
            while not re.search(rb"log_lines_lost: \d+", log):
                log += os.read(reading, 4096)
            assert daemon.stop(deadline_s=30) == 0
    finally:
        os.close(reading)
        os.close(writing)
