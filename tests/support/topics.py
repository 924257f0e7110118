"""Kafka helpers for tests: create topics, write records in transactions, read committed records."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from tests.support.waiting import eventually

_numbers = itertools.count(1)


def new_name(prefix: str = "topic") -> str:
    """Return a name for a topic or transactional id that no other test uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, copies: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until the broker lists it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, partitions, copies, config=dict(config or {}))
    admin.create_topics([wanted], operation_timeout=30)[topic].result(30)
    eventually(lambda: admin.list_topics(topic, 10).topics[topic].error is None, "the broker knows it")


def transactional_producer(bootstrap: str, transactional_id: str) -> Producer:
    """Return a producer ready for its first transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(60)
    return producer


def produce_all(producer: Producer, topic: str, values: Iterable[bytes]) -> None:
    """Produce into the open transaction and wait for every delivery."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    remaining = producer.flush(60)
    assert remaining == 0, f"{remaining} records were not delivered in time"
    assert not failed, failed


def committed_records(
    bootstrap: str, topic: str, at_least: int = 0, deadline_s: float = 120
) -> list[Message]:
    """Return every committed record of a topic, by partition and offset. Open transactions hide later records.

    The broker answers a commit before its markers are in the partitions, so a reader may lag behind it:
    `at_least` is the number of records that are surely committed and waited for.
    """
    give_up = time.monotonic() + deadline_s
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": new_name("reader"),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # The broker reports the end of a partition only after this time.
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        return _until_every_end(consumer, topic, partitions, at_least, give_up)
    finally:
        consumer.close()


def _until_every_end(
    consumer: Consumer, topic: str, partitions: set[int], at_least: int, give_up: float
) -> list[Message]:
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[Message] = []
    at_end: set[int] = set()
    while at_end != partitions or len(found) < at_least:
        assert time.monotonic() < give_up, (
            f"{topic}: {len(found)} records, at the end of {at_end} of {partitions}"
        )
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message)
            at_end.discard(message.partition())
        elif error.code() == KafkaError._PARTITION_EOF:  # with read_committed, this is the last stable offset
            at_end.add(message.partition())
        elif error.fatal():
            raise KafkaException(error)
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def committed_values(bootstrap: str, topic: str, at_least: int = 0) -> list[bytes | None]:
    """Return the value of every committed record, by partition and offset; see `committed_records`."""
    return [message.value() for message in committed_records(bootstrap, topic, at_least)]


def set_topic_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Set one configuration of a topic."""
    entry = ConfigEntry(
        name,
        value,
        source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)
