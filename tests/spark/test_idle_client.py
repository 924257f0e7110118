"""The client of a Spark worker reads one task after another: the rows are those of a client that is new."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.spark.clients import idle_client, librdkafka
from cdcd.spark.clients.client_log import CLIENT_LOG
from cdcd.spark.clients.kafka import Range, consumer_settings
from cdcd.spark.clients.librdkafka import Consumer
from cdcd.spark.source.ranges import read_ranges
from tests.spark.ranges import IN_USE, Topic, by_place, records, rows_of

TASKS = 30


@pytest.fixture
def _worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(idle_client.WORKERS_ARE_REUSED, "1")
    yield
    while idle_client._idle:
        idle_client._idle.pop().consumer.close()


@IN_USE
@pytest.mark.usefixtures("_worker")
def test_each_task_has_its_rows(implementation: str, kafka: KafkaBroker) -> None:
    """A task may begin before or after the end of the one before, which the client has read ahead of, and in a
    partition that was paused because its range ended first.
    """
    topic = Topic(kafka.bootstrap)
    for number in range(3):
        topic.commit(records(4000 * number, 3000))
        topic.abort(records(4000 * number, 500))
    whole, chance = topic.ranges(), random.Random(7)
    for _ in range(TASKS):
        wanted = []
        for part in chance.sample(whole, chance.randrange(1, 4)):
            start = chance.randrange(part.end)
            end = min(start + chance.choice([1, 7, 300, 5000]), part.end)
            wanted.append(Range(topic.name, part.partition, start, end))
        found = rows_of(read_ranges(kafka.bootstrap, {}, wanted))
        assert by_place(found) == by_place(topic.between(wanted)), wanted


def _client(settings: dict[str, object]) -> Consumer:
    loaded = librdkafka.library()
    assert loaded is not None
    return idle_client.consumer_for(loaded, settings, logger=CLIENT_LOG)


SETTINGS = consumer_settings("127.0.0.1:1", {})


@pytest.mark.usefixtures("_worker")
def test_an_idle_client_is_used_again() -> None:
    first = _client(SETTINGS)
    idle_client.give_back(first, (), is_done=True)
    assert _client(dict(SETTINGS)) is first
    second = _client(SETTINGS)
    assert second is not first, "the first one is in use"
    for one in (first, second):
        idle_client.give_back(one, (), is_done=True)
    assert (first.queue is None, second.queue is None) == (True, False), "one remains"


@pytest.mark.parametrize("why", ["not done", "another password", "too old", "no reuse"])
@pytest.mark.usefixtures("_worker")
def test_a_client_that_may_differ_is_closed(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "no reuse":
        monkeypatch.delenv(idle_client.WORKERS_ARE_REUSED)
    first, settings = _client(SETTINGS), SETTINGS
    idle_client.give_back(first, (), is_done=why != "not done")
    if why == "another password":
        settings = SETTINGS | {"sasl.password": "new"}
    elif why == "too old":
        monkeypatch.setattr(idle_client, "MOST_AGE_S", 0.0)
    second = _client(settings)
    assert second is not first
    assert first.queue is None
    second.close()


@pytest.mark.usefixtures("_worker")
def test_a_forked_process_does_not_use_its_parents_client(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_client.give_back(_client(SETTINGS), (), is_done=True)
    (idle,) = idle_client._idle
    assert idle_client._is_usable(idle, SETTINGS)
    with monkeypatch.context() as patched:
        patched.setattr(idle_client.os, "getpid", lambda: idle.consumer.process + 1)
        assert not idle_client._is_usable(idle, SETTINGS)
