"""A start interrupted while it creates topics and schemas leaves nothing that a later start would report as a change.

In: tables that are created together, a signal while the schemas of one of them are registered, a later start. The
judge is the second run's log, which reports nothing, and a reader of the topics.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import STREAMED, NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly_except
from tests.support.reader import Reader, assert_each_once
from tests.support.registry_door import Asked, Door
from tests.support.stack import in_one_transaction
from tests.support.topics import committed_records

TABLES = 40
CUT_AT = 22
"""Of a transaction that is not streamed, the daemon knows only the part in its first read, whose size the socket
decides.
"""
HOW: dict[str, dict[str, Any]] = {
    "snapshot": {},
    "whole": {"source": {"protocol": {"streaming": "off"}}},
    "streamed": {},
}


def statements() -> list[str]:
    """Return statements that create the tables with a row each."""
    made = [f"CREATE TABLE t{number:03} (id int PRIMARY KEY, v text)" for number in range(TABLES)]
    return made + [f"INSERT INTO t{number:03} VALUES (1, 'a')" for number in range(TABLES)]


def topics_of(daemon: Daemon) -> list[str]:
    return [f"{daemon.name}.public.t{number:03}" for number in range(TABLES)]


@pytest.fixture
def door(registry: SchemaRegistry) -> Iterator[Door]:
    with Door(registry.url) as one:
        yield one


class Cut:
    """Ends a daemon when it is about to register the key of a table whose values are registered."""

    def __init__(self, daemon: Daemon, door: Door, number: signal.Signals) -> None:
        self._daemon, self._number = daemon, number
        self._lock = threading.Lock()
        self._is_done = False
        door.is_answered_for, door.status = self, 503

    def __call__(self, asked: Asked) -> bool:
        is_at = f"t{CUT_AT:03}-key" in asked.path and asked.method in ("POST", "PUT")
        with self._lock:
            if is_at and not self._is_done:
                self._is_done = True
                process = self._daemon.process
                assert process is not None
                process.send_signal(self._number)
        return is_at


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "number"),
    nightly_except(
        (
            pytest.param(how, number, id=f"{how}-{number.name}")
            for how, number in product(HOW, (signal.SIGTERM, signal.SIGKILL))
        ),
        "streamed-SIGKILL",
    ),
)
def test_the_next_start_has_nothing_to_say(
    how: str,
    number: signal.Signals,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    door: Door,
    kafka: KafkaBroker,
    reader: Reader,
) -> None:
    daemon = new_daemon(postgres, database, registry={"url": door.url}, **HOW[how])
    if how == "streamed":
        daemon.config["source"]["dsn"] += f"?{STREAMED}"
    if how == "snapshot":
        in_one_transaction(postgres.dsn(database), *statements())
    else:
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        in_one_transaction(postgres.dsn(database), *statements())
    Cut(daemon, door, number)
    assert daemon.start().wait_exit() == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    door.status = None
    subjects = {asked.path for asked in door.asked if asked.method == "POST"}
    assert any(f"t{CUT_AT:03}-value" in path for path in subjects), "its values are registered"
    made = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics
    needed = topics_of(daemon)[: CUT_AT + 1] if how == "whole" else topics_of(daemon)
    assert set(made).issuperset(needed), "topics of all tables known by then are created before schemas"

    daemon.log_path.unlink()
    daemon.start().wait_state("streaming")
    events = reader.wait(topics_of(daemon), lambda events: len(events) == TABLES)
    assert_each_once(events)
    assert {tuple(event.key.items()) for event in events if event.key} == {(("id", 1),)}
    assert daemon.stop() == 0
    reported = [line for line in daemon.lines() if line["level"] != "info" and not is_true(line)]
    assert reported == []


def is_true(line: dict[str, Any]) -> bool:
    """Return whether a line is expected: the wait for the former transaction, waits on a busy machine,
    added tables.
    """
    is_of_tables = line["event"] == "publication_changed" and line["change"] == "table_added"
    return is_of_tables or line["event"] in ("kafka_client", "waiting")


@pytest.mark.nightly
def test_the_record_of_a_complete_copy_has_the_time_of_its_own_attempt(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """The lag counts from that time: of a copy that runs, from the first attempt; later from before the last slot."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.environment[VARIABLE] = "slot_made"
    assert daemon.start().wait_exit() == EXIT_STATUS
    daemon.environment.clear()
    ((between_us,),) = postgres.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    messages = committed_records(kafka.bootstrap, f"{daemon.name}.__progress")
    values = [json.loads(one.value() or b"") for one in messages if one.key() == daemon.slot.encode()]
    copying_us = [one["commit_us"] for one in values if one["phase"] == "snapshot"]
    complete_us = [one["commit_us"] for one in values if one["phase"] == "streaming"]
    assert len(copying_us) > 1
    assert max(copying_us) < between_us
    assert between_us <= complete_us[0]
