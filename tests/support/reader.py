"""An independent read_committed consumer: Confluent's own deserializer with the registry, without code of cdcd.

In: a broker, a registry, topics.  Out: every committed record, decoded, in the order of each partition.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import parse_schema, schemaless_reader

from tests.support.waiting import next_pause

DEADLINE_S = 120.0
FIRST_PAUSE_S = 0.1
MARKERS_S = 5.0
"""How long a read waits for the markers of transactions that were open when it reached the end of a partition.

Kafka answers a commit before it has written the markers, so a commit that was reported may be readable only later.
"""
Sequence = tuple[int, int, int]
BEGINNING = (0, 0, 0)

SOURCE_ONLY = """{"type": "record", "name": "Envelope", "fields": [
    {"name": "op", "type": "string"},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
        {"name": "schema", "type": "string"}, {"name": "table", "type": "string"},
        {"name": "timeline", "type": "long"},
        {"name": "commit_lsn", "type": "long"}, {"name": "tx_seq", "type": "long"},
        {"name": "txId", "type": ["null", "long"]}]}}]}"""
"""A reader's schema for topics with values that Python's types cannot represent, such as dates before the year 1."""


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
        """The op of the envelope; "m" for a logical message; None for a tombstone."""
        return None if self.value is None else self.value.get("op", "m")

    @property
    def sequence(self) -> Sequence | None:
        """(timeline, commit_lsn, tx_seq); None for a tombstone, a BEGIN or END, a non-transactional message."""
        if self.value is None:
            return None
        source = self.value.get("source", self.value)
        number = source.get("tx_seq")
        return None if number is None else (source["timeline"], source["commit_lsn"], number)

    @property
    def source(self) -> dict[str, Any]:
        """The source block of the change; a logical message has its fields in the value itself."""
        return dict(self.value.get("source", self.value))


class Reader:
    """Reads topics from their beginning at each call; of topics in `beyond_python` only the source block."""

    def __init__(self, bootstrap: str, registry_url: str, beyond_python: Iterable[str] = ()) -> None:
        self._bootstrap = bootstrap
        client = SchemaRegistryClient({"url": registry_url, "timeout": 30})
        self._whole = RecordReader(client)
        self._source_only = RecordReader(client, SOURCE_ONLY)
        self._beyond_python = frozenset(beyond_python)

    def topics(self, prefix: str) -> list[str]:
        """Return the topics with this prefix that have rows."""
        with closing(self._consumer()) as consumer:
            names = consumer.list_topics(timeout=10).topics
        return sorted(name for name in names if name.startswith(f"{prefix}.") and "__" not in name)

    def read(self, *topics: str) -> list[Event]:
        """Return all records committed to these topics so far."""
        return list(self.each(*topics))

    def each(self, *topics: str) -> Iterator[Event]:
        """Yield all records committed to these topics so far."""
        with closing(self._consumer()) as consumer:
            yield from self._from(consumer, {}, topics, MARKERS_S)

    def _from(
        self,
        consumer: Consumer,
        positions: dict[tuple[str, int], int],
        topics: Iterable[str],
        markers_s: float = 0,
    ) -> Iterator[Event]:
        """Yield the records from these offsets on, of other partitions all; advance the offsets to the ends."""
        partitions = self._partitions(consumer, topics)
        consumer.assign([TopicPartition(*one, positions.get(one, 0)) for one in partitions])
        yield from self._drain(consumer, set(partitions), positions, markers_s)

    def wait(
        self, topics: Iterable[str], condition: Callable[[list[Event]], bool], deadline_s: float = DEADLINE_S
    ) -> list[Event]:
        """Read until the condition holds for all committed records. No topic may be deleted meanwhile."""
        names = tuple(topics)
        events: list[Event] = []
        positions: dict[tuple[str, int], int] = {}
        begun_s = time.monotonic()
        with closing(self._consumer()) as consumer:
            while True:
                events += self._from(consumer, positions, names)
                if condition(events):
                    return events
                if time.monotonic() > begun_s + deadline_s:
                    seen = [(event.topic, event.op, event.key) for event in events[-20:]]
                    raise AssertionError(f"condition not met by {len(events)} events, the last: {seen}")
                consumer.unassign()  # otherwise it fetches during the pause
                time.sleep(next_pause(begun_s, FIRST_PAUSE_S))

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "independent",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                # The broker reports the end of a partition only after this time.
                "fetch.wait.max.ms": 20,
            }
        )

    @staticmethod
    def _partitions(consumer: Consumer, topics: Iterable[str]) -> list[tuple[str, int]]:
        """Return the partitions, none of a missing topic. All topics at once would be hundreds of other tests."""
        found = ((name, consumer.list_topics(name, timeout=10).topics[name]) for name in topics)
        return [(name, number) for name, topic in found for number in topic.partitions]

    def _drain(
        self,
        consumer: Consumer,
        waiting: set[tuple[str, int]],
        positions: dict[tuple[str, int], int],
        markers_s: float,
    ) -> Iterator[Event]:
        end_s = time.monotonic() + DEADLINE_S
        high_watermarks: dict[tuple[str, int], int] = {}
        last_stable_s: float | None = None  # since when only open transactions are waited for
        while waiting:
            message = consumer.poll(0.1 if last_stable_s else 1)
            if last_stable_s is not None and time.monotonic() - last_stable_s > markers_s:
                waiting.clear()  # the transactions remain open; a message that was polled now is yielded
            if message is None:
                assert time.monotonic() < end_s, f"the end of {waiting} was not reached"
                continue
            end_s = time.monotonic() + DEADLINE_S
            partition = (message.topic(), message.partition())
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                positions[partition] = message.offset()
                if partition not in high_watermarks:
                    high_watermarks[partition] = _high_watermark(consumer, partition) if markers_s else 0
                if message.offset() >= high_watermarks[partition]:
                    waiting.discard(partition)
                if last_stable_s is None and waiting.issubset(high_watermarks):
                    last_stable_s = time.monotonic()
                continue
            # Also after its end was reached: it may grow until the ends of the others are.
            positions[partition] = message.offset() + 1
            yield self._event(message)

    def _event(self, message: Any) -> Event:
        topic = message.topic()
        read_value = self._source_only if topic in self._beyond_python else self._whole
        key = self._whole(message.key(), topic, MessageField.KEY)
        value = read_value(message.value(), topic, MessageField.VALUE)
        return Event(topic, message.partition(), message.offset(), key, value)


def _high_watermark(consumer: Consumer, partition: tuple[str, int]) -> int:
    """Return the end of a partition, with the records of open transactions, of the last fetch."""
    _, end = consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
    return int(end)


class RecordReader:
    """Decodes keys and values, optionally with a reader's schema.

    Confluent's deserializer decodes the first record of each schema in a topic. It searches the schema for tags at
    each record, so the others are decoded by fastavro, which it uses too.
    """

    def __init__(self, client: SchemaRegistryClient, reader_schema: str | None = None) -> None:
        # The default strategy queries the registry for each record if the registry has no associations.
        conf = {"subject.name.strategy": topic_subject_name_strategy}
        self._deserialize = AvroDeserializer(client, reader_schema, conf=conf)
        self._reader_schema = None if reader_schema is None else parse_schema(json.loads(reader_schema))
        self._client = client
        self._known: dict[tuple[str, str, bytes], Any] = {}

    def __call__(self, raw: bytes | None, topic: str, field: str) -> Any:
        """Return the decoded key or value, None for None."""
        if raw is None:
            return None
        known = self._known.get((topic, field, raw[:5]))
        if known is not None:
            return schemaless_reader(io.BytesIO(raw[5:]), known, self._reader_schema)
        first = self._deserialize(raw, SerializationContext(topic, field))
        schema = self._client.get_schema(int.from_bytes(raw[1:5], "big"))
        parsed = parse_schema(json.loads(schema.schema_str or ""))
        again = schemaless_reader(io.BytesIO(raw[5:]), parsed, self._reader_schema)
        assert repr(again) == repr(first), f"{topic}: fastavro and Confluent's deserializer differ"
        self._known[topic, field, raw[:5]] = parsed
        return first


def assert_each_once(events: list[Event]) -> None:
    """Assert: (timeline, commit_lsn, tx_seq) is unique in a topic (of `t`, `g` in a partition) and increases."""
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
        assert (where, sequence) not in seen, f"repeated: {where} {sequence}"
        seen.add((where, sequence))
        before = last.get((event.topic, event.partition))
        assert before is None or before < sequence, f"out of order in {where}: {before}, then {sequence}"
        last[event.topic, event.partition] = sequence


def assert_tombstones_follow_deletes(events: list[Event]) -> None:
    """Assert that each tombstone follows the delete of its key directly in its partition."""
    before: dict[tuple[str, int], Event] = {}
    for event in events:
        last = before.get((event.topic, event.partition))
        if event.value is None:
            where = f"{event.topic}/{event.partition} at {event.offset}"
            assert last is not None, f"a tombstone is the first record: {where}"
            assert (last.op, last.key) == ("d", event.key), f"a tombstone does not follow its delete: {where}"
        before[event.topic, event.partition] = event


def of_transactions(marks: list[Event]) -> list[Event]:
    """Return the BEGIN and END records of transactions, without those of snapshots."""
    return [event for event in marks if not event.value["id"].startswith("snapshot:")]


def assert_metadata_counts(events: list[Event], topic: str) -> None:
    """Assert that `topic` has a BEGIN and an END of each transaction, and that the END counts its records.

    The records of snapshots are left out.
    """
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
    for event in of_transactions([event for event in events if event.topic == topic]):
        assert event.key == {"id": event.value["id"]}
        reported.setdefault(event.value["id"], []).append(event.value)
    assert all([one["status"] for one in pair] == ["BEGIN", "END"] for pair in reported.values())
    ends = {transaction: pair[1] for transaction, pair in reported.items()}
    assert {
        transaction: {one["data_collection"]: one["event_count"] for one in end["data_collections"]}
        for transaction, end in ends.items()
    } == {
        transaction: {name: len(sequences) for name, sequences in names.items()}
        for transaction, names in counted.items()
    }
    assert all(end["event_count"] == sum(map(len, counted[one].values())) for one, end in ends.items())


def fold(events: list[Event], key: Callable[[dict[str, Any]], Any]) -> dict[Any, dict[str, Any]]:
    """Apply the events in order; return the resulting rows by key."""
    rows: dict[Any, dict[str, Any]] = {}
    deleted: dict[str, Any] = {}
    ordered = sorted((e for e in events if e.sequence is not None), key=lambda e: e.sequence or BEGINNING)
    for event in ordered:
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
                after[column] = old.get(column) if event.op == "r" else old[column]
            rows[key(after)] = after
    return rows
