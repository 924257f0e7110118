"""Whole topics are read up to their ends, or there is an error: Kafka's log is never shorter than its bounds."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import SinkUnavailable
from cdcd.sink.admin import Admin
from cdcd.sink.topic_records import RecordsRemoved, bounds_of, read_records
from tests.support.sinks import sink_settings
from tests.support.topics import create_topic, new_name, transactional_producer

SILENCE_S = 2.0
MOST_BATCHES = 200


def written(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(30) == 0


def test_a_hanging_transaction_is_an_error_also_while_another_partition_is_written(
    kafka: KafkaBroker,
) -> None:
    topic = new_name("hanging")
    create_topic(kafka.bootstrap, topic, 2)
    hanging = transactional_producer(kafka.bootstrap, topic)
    hanging.begin_transaction()
    hanging.produce(topic, b"open", partition=0)
    assert hanging.flush(30) == 0
    written(kafka.bootstrap, topic, 1, 3)
    settings = sink_settings(kafka.bootstrap)
    read: list[int] = []

    def read_while_written() -> None:
        batches = read_records(settings, bounds_of(Admin(settings), [topic]), SILENCE_S)
        for batch in itertools.islice(batches, MOST_BATCHES):
            read.extend(one.offset for one in batch)
            written(kafka.bootstrap, topic, 1, 1)

    with pytest.raises(SinkUnavailable) as silent:
        read_while_written()
    assert (silent.value.context["partition"], read) == (0, [0, 1, 2])
    hanging.abort_transaction()


def test_records_that_retention_removes_before_they_are_read_are_no_shorter_topic(kafka: KafkaBroker) -> None:
    topic = new_name("removed")
    create_topic(kafka.bootstrap, topic)
    written(kafka.bootstrap, topic, 0, 10)
    settings = sink_settings(kafka.bootstrap)
    bounds = bounds_of(Admin(settings), [topic])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        future.result(30)
    with pytest.raises(RecordsRemoved):
        list(read_records(settings, bounds, SILENCE_S))
    left = bounds_of(Admin(settings), [topic])
    assert [one.offset for batch in read_records(settings, left, SILENCE_S) for one in batch] == [
        5,
        6,
        7,
        8,
        9,
    ]
