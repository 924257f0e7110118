"""An independent consumer: Confluent's own deserializer with the registry, read_committed; no code of cdcd.

In: a broker, a registry, topics.  Out: every committed record, decoded, in the order of its partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

DEADLINE_S = 120.0
Sequence = tuple[int, int, int]
BEGINNING = (0, 0, 0)

SOURCE_ONLY = """{"type": "record", "name": "Envelope", "fields": [
    {"name": "op", "type": "string"},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
        {"name": "schema", "type": "string"}, {"name": "table", "type": "string"},
        {"name": "timeline", "type": "long"},
        {"name": "commit_lsn", "type": "long"}, {"name": "tx_seq", "type": "long"},
        {"name": "txId", "type": ["null", "long"]}]}}]}"""
"""A reader's schema for topics whose values Python's own types cannot hold, such as dates before the year 1."""


@dataclass(frozen=True)
class Event:
    """One committed record, decoded."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any

    @property
    def op(self) -> str | None:
        """The envelope's op; "m" for a logical message; None for a tombstone."""
        return None if self.value is None else self.value.get("op", "m")

    @property
    def sequence(self) -> Sequence | None:
        """(timeline, commit_lsn, tx_seq); None for a tombstone, a message outside any transaction, a BEGIN or END."""
        if self.value is None or self.source.get("tx_seq") is None:
            return None
        return self.source["timeline"], self.source["commit_lsn"], self.source["tx_seq"]

    @property
    def source(self) -> dict[str, Any]:
        """Where the change comes from; a logical message has these fields in its value itself."""
        return dict(self.value.get("source", self.value))


class Reader:
    """Reads topics from their beginning, again and again; topics in `beyond_python` as far as their source."""

    def __init__(self, bootstrap: str, registry_url: str, beyond_python: Iterable[str] = ()) -> None:
        self._bootstrap = bootstrap
        client = SchemaRegistryClient({"url": registry_url, "timeout": 30})
        # Its default strategy asks the registry once a record where no such associations exist.
        conf = {"subject.name.strategy": topic_subject_name_strategy}
        self._deserialize = AvroDeserializer(client, conf=conf)
        self._source_only = AvroDeserializer(client, SOURCE_ONLY, conf=conf)
        self._beyond_python = frozenset(beyond_python)

    def topics(self, prefix: str) -> list[str]:
        """Topics under a prefix that hold rows."""
        consumer = self._consumer()
        try:
            names = consumer.list_topics(timeout=10).topics
        finally:
            consumer.close()
        return sorted(name for name in names if name.startswith(f"{prefix}.") and "__" not in name)

    def read(self, *topics: str) -> list[Event]:
        """Everything committed in these topics now."""
        return list(self.each(*topics))

    def each(self, *topics: str) -> Iterator[Event]:
        """The same one by one."""
        consumer = self._consumer()
        try:
            partitions = self._partitions(consumer, topics)
            consumer.assign([TopicPartition(name, number, 0) for name, number in partitions])
            yield from self._drain(consumer, set(partitions))
        finally:
            consumer.close()

    def wait(
        self, topics: Iterable[str], condition: Callable[[list[Event]], bool], deadline_s: float = DEADLINE_S
    ) -> list[Event]:
        """Read until the condition holds for everything committed."""
        names = tuple(topics)
        end_s = time.monotonic() + deadline_s
        while True:
            events = self.read(*names)
            if condition(events):
                return events
            if time.monotonic() > end_s:
                seen = [(event.topic, event.op, event.key) for event in events[-20:]]
                raise AssertionError(f"condition not met by {len(events)} events, the last: {seen}")
            time.sleep(0.1)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "independent",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                # An end is told when nothing comes for so long.
                "fetch.wait.max.ms": 20,
            }
        )

    @staticmethod
    def _partitions(consumer: Consumer, topics: Iterable[str]) -> list[tuple[str, int]]:
        metadata = consumer.list_topics(timeout=10).topics
        return [(name, number) for name in topics if name in metadata for number in metadata[name].partitions]

    def _drain(self, consumer: Consumer, waiting: set[tuple[str, int]]) -> Iterator[Event]:
        end_s = time.monotonic() + DEADLINE_S
        while waiting:
            message = consumer.poll(1)
            if message is None:
                assert time.monotonic() < end_s, f"no end of {waiting}"
                continue
            end_s = time.monotonic() + DEADLINE_S
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                waiting.discard((message.topic(), message.partition()))
                continue
            yield self._event(message)

    def _event(self, message: Any) -> Event:
        topic = message.topic()
        deserialize = self._source_only if topic in self._beyond_python else self._deserialize
        key, value = (
            None if raw is None else read(raw, SerializationContext(topic, field))
            for raw, read, field in (
                (message.key(), self._deserialize, MessageField.KEY),
                (message.value(), deserialize, MessageField.VALUE),
            )
        )
        return Event(topic, message.partition(), message.offset(), key, value)


def assert_each_once(events: list[Event]) -> None:
    """Each (timeline, commit_lsn, tx_seq) stands once in its topic (a `t`, `g` once a partition), rising in each."""
    seen: set[tuple[str, Any]] = set()
    last: dict[tuple[str, int], Sequence] = {}
    for event in events:
        sequence = event.sequence
        if sequence is None:
            continue
        where = (
            f"{event.topic}/{event.partition}"
            if event.op in ("t", "g") and event.key is None
            else event.topic
        )
        assert (where, sequence) not in seen, f"twice: {where} {sequence}"
        seen.add((where, sequence))
        before = last.get((event.topic, event.partition))
        assert before is None or before < sequence, f"out of order in {where}: {before}, then {sequence}"
        last[event.topic, event.partition] = sequence


def assert_tombstones_follow_deletes(events: list[Event]) -> None:
    """The record before a tombstone, in its partition, is the delete of its key."""
    before: dict[tuple[str, int], Event] = {}
    for event in events:
        last = before.get((event.topic, event.partition))
        if event.value is None:
            where = f"{event.topic}/{event.partition} at {event.offset}"
            assert last is not None, f"a tombstone that follows nothing: {where}"
            assert (last.op, last.key) == ("d", event.key), f"a tombstone that follows no delete: {where}"
        before[event.topic, event.partition] = event


def assert_metadata_counts(events: list[Event], topic: str) -> None:
    """Each transaction has one BEGIN and one END in `topic`, and the END counts what the other topics hold of it."""
    counted: dict[str, dict[str, set[Any]]] = {}
    for event in events:
        if event.sequence is None or event.op == "r":
            continue
        source = event.source
        name = f"{source['schema']}.{source['table']}" if "table" in source else "message"
        transaction = f"{source['txId']}:{source['commit_lsn']}"
        counted.setdefault(transaction, {}).setdefault(name, set()).add(event.sequence)
        block = event.value.get("transaction") if "table" in source else None
        if block is not None:
            assert (block["id"], block["total_order"]) == (transaction, source["tx_seq"])
    reported: dict[str, list[Any]] = {}
    for event in events:
        if event.topic == topic:
            assert event.key == {"id": event.value["id"]}
            reported.setdefault(event.value["id"], []).append(event.value)
    assert all([one["status"] for one in pair] == ["BEGIN", "END"] for pair in reported.values())
    ends = {transaction: pair[1] for transaction, pair in reported.items()}
    assert {
        transaction: {one["data_collection"]: one["event_count"] for one in end["data_collections"]}
        for transaction, end in ends.items()
    } == {
        transaction: {name: len(places) for name, places in names.items()}
        for transaction, names in counted.items()
    }
    assert all(end["event_count"] == sum(map(len, counted[one].values())) for one, end in ends.items())


def fold(events: list[Event], key: Callable[[dict[str, Any]], Any]) -> dict[Any, dict[str, Any]]:
    """The table that the events leave: rows by key, events taken in sequence."""
    rows: dict[Any, dict[str, Any]] = {}
    deleted: dict[str, Any] = {}
    for event in sorted((e for e in events if e.sequence is not None), key=lambda e: e.sequence or BEGINNING):
        value = event.value
        if event.op == "t":
            rows.clear()
        elif event.op == "g":
            continue
        elif event.op == "d":
            deleted = rows.pop(key(value["before"]), {})
        else:
            after = dict(value["after"])
            old = deleted if event.op == "c" else rows.get(key(after), {})
            for column in value["source"]["unchanged"]:
                after[column] = old[column]
            rows[key(after)] = after
    return rows
