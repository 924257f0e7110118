"""cdcd reads assigned partitions: it needs no right on a consumer group, whose coordinator librdkafka asks for."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import KafkaError, TopicPartition

from cdcd.sink import error_map, reader, signal_topic
from cdcd.sink.settings import SinkSettings
from cdcd.sink.signal_topic import SignalTopic
from tests.support.secured_kafka import SecuredKafka
from tests.support.sinks import sink_settings
from tests.support.topics import create_topic, new_name, transactional_producer
from tests.support.waiting import eventually

PASSWORD = "pA55word-of-the-daemon"


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> str:
    name = new_name("rows")
    create_topic(secured_kafka.broker.bootstrap, name, 1)
    return name


@pytest.fixture
def settings(secured_kafka: SecuredKafka) -> SinkSettings:
    secured_kafka.set_password("groupless", PASSWORD)
    secured_kafka.allow("User:groupless")
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "groupless",
        "sasl.password": PASSWORD,
    }
    return sink_settings(f"127.0.0.1:{secured_kafka.sasl.port}", properties=properties)


def commit(kafka: SecuredKafka, topic: str) -> None:
    producer = transactional_producer(kafka.broker.bootstrap, new_name("writer"))
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key", 0)
    producer.commit_transaction(60)


def test_the_refused_group_is_no_error_of_a_read(
    secured_kafka: SecuredKafka, settings: SinkSettings, topic: str
) -> None:
    with closing(reader._consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        positions: list[int | None] = []
        codes: list[int] = []

        def read() -> None:
            messages = reader.next_messages(consumer, 1.0)
            codes.extend(error.code() for error in (one.error() for one in messages) if error is not None)
            positions.extend(reader.position_of(one, topic) for one in messages)

        while KafkaError.GROUP_AUTHORIZATION_FAILED not in codes:
            read()
        commit(secured_kafka, topic)
        while 1 not in positions:
            read()


def test_the_refused_group_does_not_stop_signals(
    secured_kafka: SecuredKafka, settings: SinkSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[bool] = []

    def seen(error: KafkaError) -> bool:
        refused.append(error_map.is_about_group(error))
        return refused[-1]

    monkeypatch.setattr(signal_topic, "is_about_group", seen)
    signals = SignalTopic(settings, topic, 0)
    signals.open()
    with closing(signals):
        eventually(lambda: signals.take() is not None or any(refused), "the broker refuses the group")
        commit(secured_kafka, topic)
        record = eventually(signals.take, "the signal arrives")
    assert record is not None
    assert (record.offset, record.value) == (0, b"value")
