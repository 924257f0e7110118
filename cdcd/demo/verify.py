"""Read everything that cdcd wrote with a consumer that shares no code with it, and check what was promised.

In: a broker, a registry, a topic prefix.  Out: a `TopicCheck` for each topic, with every broken promise as a line.
Checked: each (commit_lsn, tx_seq) once in a topic (a `t` record: once in each partition); sequences rise within a
partition; a tombstone follows its delete.
Uses confluent-kafka's own consumer and AvroDeserializer, `read_committed`, and nothing of cdcd.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

POLL_TIMEOUT_S = 30.0
SHOWN = 5

SEQUENCE_ONLY = json.dumps(
    {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "op", "type": "string"},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "fields": [{"name": "commit_lsn", "type": "long"}, {"name": "tx_seq", "type": "long"}],
                },
            },
        ],
    }
)
"""A reader's schema for topics whose values Python's own types cannot hold, such as dates before the year 1."""


@dataclass(slots=True)
class TopicCheck:
    """What one topic holds. `alive`: keys (or rows, without keys) that exist after the last change."""

    topic: str
    changes: int = 0
    tombstones: int = 0
    alive: int = 0
    by_op: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    sequence: tuple[int, int]
    op: str
    key: Hashable
    partition: int


def check_topics(
    brokers: str, registry_url: str, prefix: str, beyond_python: Sequence[str] = ()
) -> dict[str, TopicCheck]:
    """Check every topic of tables under `prefix`; topics in `beyond_python` are decoded as far as `source`."""
    registry = SchemaRegistryClient({"url": registry_url})
    # Its default strategy asks the registry once a record where no such associations exist.
    conf = {"subject.name.strategy": topic_subject_name_strategy}
    whole = AvroDeserializer(registry, conf=conf)
    sequence_only = AvroDeserializer(registry, SEQUENCE_ONLY, conf=conf)
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "cdcd-verify",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        found = consumer.list_topics(timeout=POLL_TIMEOUT_S).topics
        internal = (f"{prefix}.__", f"{prefix}.message")
        topics = sorted(
            name for name in found if name.startswith(f"{prefix}.") and not name.startswith(internal)
        )
        checks = {}
        for topic in topics:
            places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in found[topic].partitions]
            consumer.assign(places)
            value = sequence_only if topic in beyond_python else whole
            checks[topic] = _checked(topic, _records(consumer, len(places)), whole, value)
        return checks
    finally:
        consumer.close()


def _records(consumer: Consumer, partitions: int) -> Iterator[Message]:
    """Yield the records of every assigned partition to its end."""
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(POLL_TIMEOUT_S)
        if message is None:
            raise TimeoutError("a topic could not be read to its end")
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise KafkaException(error)


def _checked(
    topic: str, records: Iterator[Message], key_of: AvroDeserializer, value_of: AvroDeserializer
) -> TopicCheck:
    check = TopicCheck(topic)
    changes: list[_Change] = []
    last: dict[int, _Change] = {}
    seen: set[tuple[int, ...]] = set()
    for message in records:
        partition, before = message.partition(), last.get(message.partition())
        key = key_of(message.key(), SerializationContext(topic, MessageField.KEY))
        if message.value() is None:
            check.tombstones += 1
            if before is None or before.op != "d" or before.key != _hashable(key):
                _problem(check, f"partition {partition}: a tombstone that follows no delete of its key")
            continue
        envelope = value_of(message.value(), SerializationContext(topic, MessageField.VALUE))
        source: Mapping[str, Any] = envelope["source"]
        change = _Change((source["commit_lsn"], source["tx_seq"]), envelope["op"], _hashable(key), partition)
        _check_sequence(check, change, before, seen)
        last[partition] = change
        changes.append(change)
        check.by_op[change.op] = check.by_op.get(change.op, 0) + 1
    check.changes = len(changes)
    check.alive = _alive(changes)
    return check


def _check_sequence(
    check: TopicCheck, change: _Change, before: _Change | None, seen: set[tuple[int, ...]]
) -> None:
    place = (*change.sequence, change.partition) if change.op == "t" else change.sequence
    if place in seen:
        _problem(check, f"partition {change.partition}: {change.sequence} is there more than once")
    seen.add(place)
    if before is not None and change.sequence <= before.sequence:
        _problem(check, f"partition {change.partition}: {change.sequence} after {before.sequence}")


def _alive(changes: list[_Change]) -> int:
    keys: set[Hashable] = set()
    without_key = 0
    for change in sorted(changes, key=lambda one: one.sequence):
        if change.op == "t":
            keys.clear()
            without_key = 0
        elif change.op in ("c", "r"):
            if change.key is None:
                without_key += 1
            keys.add(change.key)
        elif change.op == "d":
            if change.key is None:
                without_key -= 1
            keys.discard(change.key)
    keys.discard(None)
    return len(keys) + without_key


def _problem(check: TopicCheck, text: str) -> None:
    if len(check.problems) < SHOWN:
        check.problems.append(f"{check.topic}: {text}")


def _hashable(key: Any) -> Hashable:
    return tuple(key.values()) if isinstance(key, dict) else key
