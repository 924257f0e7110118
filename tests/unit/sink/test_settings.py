"""No configured property can weaken durability or order (F63, F64)."""

from __future__ import annotations

import dataclasses

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from cdcd.errors import ConfigError, Retry
from cdcd.sink.settings import (
    FORCED_PROPERTIES,
    SinkSettings,
    admin_properties,
    producer_properties,
    reader_properties,
)

SETTINGS = SinkSettings(
    bootstrap_servers="127.0.0.1:1",
    delivery="exactly_once",
    transactional_id="cdcd-shop",
    client_id="cdcd-shop",
    progress_topic="shop.__progress",
    slot="shop",
    properties={"sasl.password": "canary-7", "compression.type": "zstd", "linger.ms": "0"},
)


@pytest.mark.parametrize("name", sorted(FORCED_PROPERTIES))
def test_a_forced_property_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as caught:
        producer_properties(dataclasses.replace(SETTINGS, properties={name: "1"}))
    assert caught.value.retry is Retry.NEVER


def test_every_forced_property_is_named_at_once() -> None:
    settings = dataclasses.replace(SETTINGS, properties={"acks": "1", "retries": "0", "linger.ms": "1"})
    with pytest.raises(ConfigError) as caught:
        admin_properties(settings)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "sink.properties.acks",
        "sink.properties.retries",
    ]


def test_the_producer_is_durable_and_in_order() -> None:
    properties = producer_properties(SETTINGS)
    assert properties["acks"] == "all"
    assert properties["enable.idempotence"] is True
    assert properties["max.in.flight.requests.per.connection"] == 5
    assert properties["transactional.id"] == "cdcd-shop"
    assert properties["allow.auto.create.topics"] is False
    assert properties["linger.ms"] == "0"


@pytest.mark.parametrize(
    ("more", "kbytes"),
    [
        ({}, 8_192),
        ({"message.max.bytes": "60000000"}, 58_594),
        ({"message.max.bytes": "2000000"}, 8_192),
        ({"message.max.bytes": "60000000.0"}, 976_563),
        ({"message.max.bytes": "2199023255552"}, 976_563),
        ({"message.max.bytes": "60000000", "queue.buffering.max.kbytes": "2048"}, "2048"),
    ],
)
def test_the_largest_record_that_is_allowed_has_room_in_the_queue(
    more: dict[str, str], kbytes: int | str
) -> None:
    properties = producer_properties(dataclasses.replace(SETTINGS, properties=more))
    assert properties["queue.buffering.max.kbytes"] == kbytes


def test_at_least_once_has_no_transactional_id() -> None:
    settings = dataclasses.replace(SETTINGS, delivery="at_least_once")
    properties = producer_properties(settings)
    assert properties["enable.idempotence"] is True
    assert not {"transactional.id", "transaction.timeout.ms"} & properties.keys()


def test_the_client_takes_every_property() -> None:
    """librdkafka refuses unknown names and impossible combinations when a client is created."""
    settings = dataclasses.replace(SETTINGS, properties={"compression.type": "zstd", "linger.ms": "0"})
    Producer(producer_properties(settings))
    Producer(producer_properties(dataclasses.replace(settings, delivery="at_least_once")))
    Consumer(reader_properties(settings)).close()
    AdminClient(admin_properties(settings))


def test_readers_get_security_and_not_the_producers_tuning() -> None:
    assert reader_properties(SETTINGS)["sasl.password"] == "canary-7"
    assert not {"compression.type", "linger.ms"} & reader_properties(SETTINGS).keys()
    assert reader_properties(SETTINGS)["isolation.level"] == "read_committed"


def test_the_settings_do_not_show_their_secrets() -> None:
    assert "canary-7" not in repr(SETTINGS)
