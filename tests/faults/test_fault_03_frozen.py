"""Fault 3: a frozen daemon that wakes up after a successor has started or its transaction has expired (F69, F74)."""

from __future__ import annotations

import os
import signal
import time

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.test_fault_25_two_daemons import Ends, both
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.waiting import eventually


@pytest.mark.nightly
def test_a_daemon_that_was_frozen_for_longer_than_its_transaction_may_take_goes_on(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker, reader: Reader
) -> None:
    """F69: its walsender still holds the slot, so there is no successor: no exit status 75, no row twice."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    over = {"sink": {"transaction_timeout_ms": 10000, "commit": {"max_wait_ms": 2000}}}
    with new_daemon(postgres, database, **over) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        reader.wait([topic], lambda events: len(events) == 1)
        ends = Ends(kafka.bootstrap, topic)
        before = ends.written
        postgres.execute("INSERT INTO t SELECT g FROM generate_series(2, 20) g", dbname=database)
        eventually(lambda: ends.written > before, "the rows are on the broker")
        assert daemon.process is not None
        os.kill(daemon.process.pid, signal.SIGSTOP)
        written = ends.written
        eventually(lambda: ends.stable > written, "the broker has aborted the transaction", pause_s=0.2)
        os.kill(daemon.process.pid, signal.SIGCONT)
        events = reader.wait([topic], lambda events: len(events) >= 20)
        assert_each_once(events)
        assert [line["code"] for line in daemon.events("retrying")] == ["CDCD-SINK-TRANSACTION-EXPIRED"]


@pytest.mark.parametrize("is_renamed", [nightly(False), True])
def test_a_frozen_daemon_that_resumes_after_its_successor_started_writes_nothing(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, is_renamed: bool
) -> None:
    """F69, F74: the successor ends the open Kafka transaction, even if its transactional id differs."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    first, second = both(new_daemon, postgres, database)
    if is_renamed:
        second.config["sink"]["transactional_id"] = f"renamed-{second.slot}"
    first.config["sink"]["commit"]["max_wait_ms"] = 3000
    topic = f"{first.name}.public.t"
    first.start().wait_state("streaming")
    second.start().wait_state("waiting_slot")
    before = first.status()["received_lsn"]
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    eventually(lambda: first.status()["received_lsn"] != before, "the first daemon has received the row")
    assert first.process is not None
    os.kill(first.process.pid, signal.SIGSTOP)
    second.wait_state("streaming")
    postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
    reader.wait([topic], lambda events: len(events) >= 2)
    os.kill(first.process.pid, signal.SIGCONT)
    assert _ended_or_waits(first) in ("fenced", "waits")
    postgres.execute("INSERT INTO t VALUES (3)", dbname=database)
    events = reader.wait([topic], lambda events: len(events) >= 3)
    assert sorted(event.value["after"]["id"] for event in events) == [1, 2, 3]
    assert_each_once(events)


def _ended_or_waits(daemon: Daemon) -> str:
    """Return how the daemon noticed its successor: fenced by Kafka, or by the loss of its walsender."""
    assert daemon.process is not None
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        if (status := daemon.process.poll()) is not None:
            assert status == 75
            return "fenced"
        if daemon.status().get("state") == "waiting_slot":
            return "waits"
        time.sleep(0.05)
    raise AssertionError(daemon.log()[-3000:])
