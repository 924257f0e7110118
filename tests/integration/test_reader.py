"""The tests' reader waits for the markers of a transaction whose commit was reported, and not for ever for others."""

from __future__ import annotations

import threading
import uuid

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.reader import MARKERS_S, Reader


def test_a_transaction_that_ends_during_the_read_is_read_and_an_open_one_is_not(
    kafka: KafkaBroker, registry: SchemaRegistry
) -> None:
    """The broker commits as late as it may write the markers: after the reader has reached the end."""
    topic = f"reader.{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    reader = Reader(kafka.bootstrap, registry.url)

    def produce() -> None:
        producer.begin_transaction()
        producer.produce(topic, None)
        assert producer.flush(30) == 0

    produce()
    committing = threading.Timer(MARKERS_S / 5, producer.commit_transaction)
    committing.start()
    assert len(reader.read(topic)) == 1
    committing.join()
    produce()
    assert len(reader.read(topic)) == 1
    producer.abort_transaction()
