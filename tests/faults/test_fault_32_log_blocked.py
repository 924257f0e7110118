"""Fault 32: nobody reads the log, or its disk is full. The daemon goes on, and stops when it is told to."""

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
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run, slot_is_active


def start_into(daemon: Daemon, stderr: int, module: str = "cdcd") -> None:
    """Start the daemon with its log going to this file."""
    daemon.config["log"] = {"level": "debug"}
    command = [sys.executable, "-m", module, "--config", str(daemon.config_path)]
    daemon.process = subprocess.Popen(command, stdout=stderr, stderr=stderr)


def full_pipe() -> tuple[int, int]:
    """A pipe that takes not a byte more."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 512)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, writing


@pytest.mark.parametrize("where", ["a full pipe", "a full disk", "a pipe without a reader"])
def test_a_log_that_cannot_be_written_stops_nothing(
    where: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Rows flow, the stop is in order, and the slot is free."""
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


def test_lines_that_nobody_could_take_are_told_to_who_reads_again(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """How many they were; the daemon has gone on meanwhile."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    reading, writing = full_pipe()
    try:
        with new_daemon(postgres, database) as daemon:
            start_into(daemon, writing, "tests.faults.forgetful")
            daemon.wait_state("streaming")
            postgres.execute("INSERT INTO t VALUES (1, 'n')", dbname=database)
            await_confirmed(postgres, daemon)
            said = b""
            while not re.search(rb"log_lines_lost: \d+", said):
                said += os.read(reading, 4096)
            assert daemon.stop(deadline_s=30) == 0
    finally:
        os.close(reading)
        os.close(writing)
