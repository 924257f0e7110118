"""Signals that are sent while an initial snapshot is taken are executed after it, each once, across crashes."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator

import psycopg2
import pytest
from confluent_kafka import Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.integration.test_snapshot_rest import started_until
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Event, Reader
from tests.support.snapshot_commands import await_copied, command
from tests.support.stack import PostgresServers, filled_database
from tests.support.topics import create_topic
from tests.support.waiting import eventually

ROWS = 3_000
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, note text)",
    f"INSERT INTO a SELECT g, repeat('x', 300) FROM generate_series(1, {ROWS}) g",
    "CREATE TABLE b (id int PRIMARY KEY)",
    "INSERT INTO b SELECT generate_series(1, 20)",
)


@pytest.fixture
def source(pg_server: PostgresServers) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, 18, TABLES) as found:
        yield found


@pytest.fixture
def daemon(source: tuple[PostgresServer, str], new_daemon: NewDaemon, kafka: KafkaBroker) -> Iterator[Daemon]:
    """Yield a daemon whose topic of signals has an old signal."""
    server, database = source
    with new_daemon(server, database, sink={"commit": {"max_rows": 500}}) as daemon:
        daemon.config["snapshot"] = {"workers": 1, "signals": {"topic": f"{daemon.name}.signals"}}
        create_topic(kafka.bootstrap, f"{daemon.name}.signals")
        send(kafka, daemon, "id <= 20")
        yield daemon


def send(kafka: KafkaBroker, daemon: Daemon, condition: str) -> None:
    """Send a signal that copies rows of `b`."""
    conditions = [{"data-collection": "public.b", "filter": condition}]
    data = {"data-collections": ["public.b"], "additional-conditions": conditions}
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    signal = json.dumps({"id": "1", "type": "execute-snapshot", "data": data})
    producer.produce(f"{daemon.name}.signals", signal, key=daemon.name)
    assert producer.flush(60) == 0


def copied_by_signals(events: list[Event]) -> Counter[int]:
    """Return how often each row came by a command."""
    return Counter(event.key["id"] for event in events if event.source["snapshot"] == "incremental")


def commands(daemon: Daemon) -> int:
    return len([line for line in daemon.events("snapshot_command") if line["action"] == "start"])


@pytest.mark.parametrize(
    ("mode", "failpoint"),
    [
        nightly("initial", "snapshot_begun"),
        ("initial", "committed:3"),
        nightly("initial", "snapshot_copied"),
        nightly("never", "snapshot_begun"),
    ],
)
def test_signals_that_are_sent_during_an_initial_snapshot_are_executed_after_it(
    mode: str,
    failpoint: str,
    source: tuple[PostgresServer, str],
    daemon: Daemon,
    kafka: KafkaBroker,
    reader: Reader,
) -> None:
    server, _ = source
    daemon.config["snapshot"]["mode"] = mode
    started_until(daemon, failpoint)
    send(kafka, daemon, "id <= 5")
    send(kafka, daemon, "id BETWEEN 4 AND 7")
    if failpoint == "committed:3":
        started_until(daemon, "committed:2")
    daemon.start().wait_state("streaming")
    eventually(lambda: commands(daemon) == 2, "both signals are executed")
    await_copied(daemon)
    await_confirmed(server, daemon)
    assert daemon.stop() == 0
    daemon.start().wait_state("streaming")
    await_copied(daemon)
    await_confirmed(server, daemon)
    assert daemon.stop() == 0
    copied = copied_by_signals(reader.read(f"{daemon.name}.public.b"))
    assert set(copied) == set(range(1, 8)), "the old signal is not executed"
    assert commands(daemon) == 2, "each is executed once"
    assert [line["to_offset"] for line in daemon.events("snapshot_signals_skipped")] == [1]


def test_signals_before_a_new_snapshot_that_were_not_executed_are_executed_after_it(
    source: tuple[PostgresServer, str], daemon: Daemon, kafka: KafkaBroker, reader: Reader
) -> None:
    server, _ = source
    daemon.start().wait_state("streaming")
    await_confirmed(server, daemon)
    assert daemon.stop() == 0
    send(kafka, daemon, "id <= 5")
    daemon.config["snapshot"]["mode"] = "always"
    started_until(daemon, "snapshot_begun")
    daemon.config["snapshot"]["mode"] = "initial"
    daemon.start().wait_state("streaming")
    eventually(lambda: commands(daemon) == 1, "the signal is executed")
    await_copied(daemon)
    await_confirmed(server, daemon)
    assert daemon.stop() == 0
    assert set(copied_by_signals(reader.read(f"{daemon.name}.public.b"))) == set(range(1, 6))


def test_a_command_during_an_initial_snapshot_is_refused_with_the_reason(
    source: tuple[PostgresServer, str], daemon: Daemon
) -> None:
    server, database = source
    with contextlib.closing(psycopg2.connect(server.dsn(database))) as blocking:
        blocking.cursor().execute("SELECT pg_current_xact_id()")  # the slot is created after its end
        daemon.start()
        eventually(lambda: daemon.status().get("state") == "snapshot", "the snapshot has begun")
        status, answer = command(daemon, "start", "public.b")
        assert status == 409
        assert answer["code"] == "CDCD-NOT-STREAMING"
        assert "an initial snapshot is being taken" in answer["message"]
        assert "snapshot.signals.topic" in answer["hint"]
        code, page = daemon.get("/snapshots")
        assert (code, "waiting_for" in page) == (409, True)
    daemon.wait_state("streaming")
    assert daemon.stop() == 0


def test_a_topic_of_signals_that_does_not_exist_does_not_stop_the_snapshot(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon
) -> None:
    server, database = source
    with new_daemon(server, database) as daemon:
        daemon.config["snapshot"] = {"signals": {"topic": f"{daemon.name}.missing"}}
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        line = daemon.events("signals_not_read")[0]
        assert "CDCD-TOPIC-MISSING: the topic of signals does not exist" in line["error"]
        assert line["hint"].startswith("create it with one partition")
