"""Signals from a topic on a real broker: order, offsets, transactions, deleted records, bad records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import SinkError, TopicMissing
from cdcd.sink.settings import SinkSettings
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.signal_reader import SignalReader
from tests.support.proxy import Proxy
from tests.support.sinks import sink_settings
from tests.support.topics import create_topic, new_name, transactional_producer

WITHIN_S = 60
STOP = {"type": "stop-snapshot", "data": {"data-collections": ["s.stopped"]}}


@pytest.fixture
def settings(kafka: KafkaBroker) -> SinkSettings:
    return sink_settings(kafka.bootstrap)


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    name = new_name("signals")
    create_topic(kafka.bootstrap, name)
    return name


def start(table: str) -> dict[str, Any]:
    return {"id": "1", "type": "execute-snapshot", "data": {"data-collections": [table]}}


def send(kafka: KafkaBroker, topic: str, *signals: Any, key: str | None = "shop") -> None:
    """Write records; a mapping as JSON, bytes and None as they are."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for signal in signals:
        value = json.dumps(signal).encode() if isinstance(signal, dict) else signal
        producer.produce(topic, value, key=key)
    assert producer.flush(WITHIN_S) == 0


@asynccontextmanager
async def reading(settings: SinkSettings, topic: str, next_offset: int | None) -> AsyncIterator[SignalReader]:
    reader = SignalReader(settings, topic, "shop", next_offset)
    await reader.open()
    yield reader
    await reader.close()


async def take(reader: SignalReader, upto: str = "s.stopped") -> list[SnapshotCommand]:
    """Return the commands up to the one for the table `upto`."""
    taken: list[SnapshotCommand] = []
    async with asyncio.timeout(WITHIN_S):
        async for command in reader:
            taken.append(command)
            if upto in command.tables:
                break
    return taken


async def test_each_signal_for_this_daemon_is_read_once_and_in_order(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    send(kafka, topic, start("s.a"))
    send(kafka, topic, start("s.other"), key="shop.eu")
    send(kafka, topic, start("s.nobody"), key=None)
    send(kafka, topic, start("s.b"), STOP)
    async with reading(settings, topic, 0) as reader:
        taken = await take(reader)
    assert [(one.action, one.tables, one.signal_offset) for one in taken] == [
        ("start", ("s.a",), 0),
        ("start", ("s.b",), 3),
        ("stop", ("s.stopped",), 4),
    ]
    for command in taken:  # a restart after the effect of each command
        assert command.signal_offset is not None
        async with reading(settings, topic, command.signal_offset + 1) as reader:
            send(kafka, topic, start("s.last"))
            again = await take(reader, "s.last")
        assert again[0].signal_offset != command.signal_offset
        assert [one.tables for one in again if one in taken] == [
            one.tables for one in taken[taken.index(command) + 1 :]
        ]


async def test_at_the_first_start_only_later_signals_count(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    send(kafka, topic, start("s.before"))
    reader = SignalReader(settings, topic, "shop", None)
    assert await reader.open() == 1
    send(kafka, topic, start("s.between"), STOP)  # before the first record is asked for
    assert [one.tables for one in await take(reader)] == [("s.between",), ("s.stopped",)]
    await reader.close()


async def test_the_next_offset_passes_what_is_ignored_and_waits_for_the_effect_of_a_command(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    async with reading(settings, topic, None) as reader:
        assert reader.next_offset == 0
        send(kafka, topic, start("s.other"), b"no signal", key="shop.eu")
        send(kafka, topic, start("s.a"), STOP)
        commands = aiter(reader)
        assert (await asyncio.wait_for(anext(commands), WITHIN_S)).tables == ("s.a",)
        assert reader.next_offset == 2
        assert (await asyncio.wait_for(anext(commands), WITHIN_S)).tables == ("s.stopped",)
        assert reader.next_offset == 3


async def test_what_is_no_signal_is_one_warning_without_its_content(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    send(kafka, topic, b"canary\x1b[2J", None, b"\xff" * 100, start(r"canary\.*"), b"x" * 900_000, STOP)
    with structlog.testing.capture_logs() as log:
        async with reading(settings, topic, 0) as reader:
            assert [one.signal_offset for one in await take(reader)] == [5]
    refused = [line for line in log if line["event"] == "snapshot_signal_refused"]
    assert [(line["topic"], line["partition"], line["offset"]) for line in refused] == [
        (topic, 0, offset) for offset in range(5)
    ]
    assert all(line["log_level"] == "warning" and line["error"] for line in refused)
    assert "canary" not in str(log)


async def test_an_aborted_signal_has_no_effect_and_a_committed_one_has(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    producer = transactional_producer(kafka.bootstrap, new_name("signalling"))
    for is_committed in (False, True):
        producer.begin_transaction()
        producer.produce(topic, json.dumps(start(f"s.{is_committed}")).encode(), key="shop")
        assert producer.flush(WITHIN_S) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(WITHIN_S)
    send(kafka, topic, STOP)
    async with reading(settings, topic, 0) as reader:
        assert [one.tables for one in await take(reader)] == [("s.True",), ("s.stopped",)]


async def test_a_signal_that_is_committed_after_the_first_start_counts(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    """It was written before the start, and became visible after it."""
    producer = transactional_producer(kafka.bootstrap, new_name("signalling"))
    producer.begin_transaction()
    producer.produce(topic, json.dumps(start("s.open")).encode(), key="shop")
    assert producer.flush(WITHIN_S) == 0
    async with reading(settings, topic, None) as reader:
        producer.commit_transaction(WITHIN_S)
        send(kafka, topic, STOP)
        assert [one.tables for one in await take(reader)] == [("s.open",), ("s.stopped",)]


async def test_deleted_records_are_reported_and_the_next_ones_are_read(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    send(kafka, topic, start("s.a"), start("s.b"), STOP)
    with structlog.testing.capture_logs() as log:
        async with reading(
            settings, topic, 0
        ) as reader:  # its client asks for records only when they are taken
            delete_before(kafka, topic, 2)
            assert [one.signal_offset for one in await take(reader)] == [2]
        async with reading(settings, topic, 0) as reader:
            assert [one.signal_offset for one in await take(reader)] == [2]
    skipped = [line for line in log if line["event"] == "snapshot_signals_skipped"]
    assert [(line["from_offset"], line["to_offset"]) for line in skipped] == [(0, 2)] * 2


async def test_a_topic_that_was_created_again_is_read_from_its_end(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    """Its records may be older than the last signal that had an effect."""
    send(kafka, topic, start("s.old"))
    with structlog.testing.capture_logs() as log:
        async with reading(settings, topic, 9) as reader:
            send(kafka, topic, STOP)
            assert [one.signal_offset for one in await take(reader)] == [1]
    (skipped,) = [line for line in log if line["event"] == "snapshot_signals_skipped"]
    assert (skipped["from_offset"], skipped["to_offset"]) == (9, 1)


async def test_the_signals_of_a_topic_that_was_created_again_are_counted_on_from_its_end(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    """A signal that is sent while cdcd is down is executed, and none is skipped when the topic has as many again."""
    send(kafka, topic, start("s.old"))
    recorded: list[int] = []

    async def record(next_offset: int) -> None:
        recorded.append(next_offset)

    reader = SignalReader(settings, topic, "shop", 3, record)
    assert await reader.open() == 1
    assert recorded == [1]
    await reader.close()
    send(kafka, topic, start("s.a"), start("s.b"), STOP)
    async with reading(settings, topic, recorded[-1]) as reader:
        assert [one.signal_offset for one in await take(reader)] == [1, 2, 3]


async def test_a_reader_that_has_to_move_records_where_it_continues(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    send(kafka, topic, start("s.a"), start("s.b"), STOP)
    recorded: list[int] = []

    async def record(next_offset: int) -> None:
        recorded.append(next_offset)

    reader = SignalReader(settings, topic, "shop", 0, record)
    await reader.open()
    delete_before(kafka, topic, 2)  # its client asks for records only when they are taken
    assert [one.signal_offset for one in await take(reader)] == [2]
    assert recorded == [2]
    await reader.close()


async def test_a_topic_without_an_order_or_without_existence_is_refused(
    kafka: KafkaBroker, settings: SinkSettings
) -> None:
    name = new_name("signals")
    reader = SignalReader(settings, name, "shop", None)
    with pytest.raises(TopicMissing, match="the topic of signals does not exist"):
        await reader.open()
    create_topic(kafka.bootstrap, name, partitions=2)
    with pytest.raises(SinkError, match="has 2 partitions") as refused:
        await reader.open()
    assert "one partition" in refused.value.advice
    await reader.close()


async def test_a_broker_that_is_away_is_waited_for(kafka: KafkaBroker, topic: str, kafka_door: Proxy) -> None:
    settings = sink_settings(f"127.0.0.1:{kafka_door.port}")
    async with reading(settings, topic, 0) as reader:
        send(kafka, topic, start("s.a"))
        assert len(await take(reader, "s.a")) == 1
        kafka_door.cut()
        taking = asyncio.ensure_future(take(reader))
        send(kafka, topic, STOP)
        assert not taking.done()
        kafka_door.heal()
        assert [one.signal_offset for one in await taking] == [1]


async def test_renewed_settings_continue_at_the_same_record(
    kafka: KafkaBroker, settings: SinkSettings, topic: str
) -> None:
    async with reading(settings, topic, 0) as reader:
        taking = asyncio.ensure_future(take(reader))
        send(kafka, topic, start("s.a"))
        await reader.renew(settings)
        send(kafka, topic, STOP)
        assert [one.signal_offset for one in await taking] == [0, 1]


def delete_before(kafka: KafkaBroker, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(WITHIN_S)
