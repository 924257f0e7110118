"""Read the committed records of whole topics, up to the ends that their logs have now.

In: the sink's settings, topics.  Out: the bounds of each partition; batches of records, each partition in order.
Invariant: the ends are those of the logs, after every open transaction. So whatever was committed before `bounds_of`
is below them, even if Kafka writes the commit's marker later; the reader waits for it.
Must not: join a consumer group, commit offsets, end early without an error.
Every function here blocks.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import SinkUnavailable, TopicMissing
from cdcd.sink.admin import Admin
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import kafka_errors, making_client, translate
from cdcd.sink.listed_offset import listed_offsets
from cdcd.sink.names import MAX_TOPIC_CHARACTERS
from cdcd.sink.reader import position_of
from cdcd.sink.settings import READS_TO_END, SinkSettings, reader_properties
from cdcd.sink.topic_configs import configurations

__all__ = [
    "Bounds",
    "RecordsRemoved",
    "TopicRecord",
    "bounds_of",
    "cleanup_policies",
    "read_records",
    "topic_ids",
    "topics_with_records",
]

_BATCH = 5_000
_MOST_BETWEEN = 100
"""Versions of a topic: another program may have created one of any number."""
_POLL_S = 1.0
_NO_OTHER_OFFSET = {"auto.offset.reset": "error"}
"""An offset that was removed since the bounds were looked up is an error, never a later start of the log."""
_REMOVED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_READ: dict[str, object] = {
    "queued.max.messages.kbytes": 16_384,  # librdkafka's default of 64 MiB would be most of the memory
    "fetch.message.max.bytes": 4 << 20,
}


class Bounds(NamedTuple):
    """The first offset of a partition, and the end of its log."""

    start: int
    end: int


class TopicRecord(NamedTuple):
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def topics_with_records(admin: Admin, topic: str) -> list[str]:
    """Return the topic, and the later ones of its table (`<topic>.v2`), as far as they exist, in their order.

    The list of all topics leaves out one that the principal may not describe, and one that the broker does not have
    yet: the topic, the versions between, and the next version are asked about by their names. No topic has a longer
    name than Kafka allows, and a broker answers such a request with an error.
    Raises Sink errors, SinkAuthorization if one may not be described.
    """
    listed = admin.metadata(None, "listing topics").topics
    later = re.compile(rf"{re.escape(topic)}\.v([2-9]|[1-9][0-9]+)")
    there = {int(found[1]) for found in map(later.fullmatch, listed) if found}
    there |= {1} if topic in listed else set()
    last = max(there, default=1)
    asked = {*range(1, min(last, _MOST_BETWEEN) + 1), last + 1} - there
    names = {number: topic if number == 1 else f"{topic}.v{number}" for number in there | asked}
    asked = {number for number in asked if len(names[number]) <= MAX_TOPIC_CHARACTERS}
    found = _existing(admin, [names[number] for number in sorted(asked)])
    return [names[number] for number in sorted(names) if number in there or names[number] in found]


def _existing(admin: Admin, names: list[str]) -> set[str]:
    """Return those of the topics that exist. Raises Sink errors. No broker creates a topic for such a request."""
    if not names:
        return set()
    asked = admin.client.describe_topics(TopicCollection(names), request_timeout=admin.timeout_s)
    found = set()
    for name, future in asked.items():
        with contextlib.suppress(TopicMissing), kafka_errors("looking up a topic", topic=name):
            future.result()
            found.add(name)
    return found


def cleanup_policies(admin: Admin, topics: list[str]) -> dict[str, str]:
    """Return the cleanup.policy of the topics; one that may not be described is left out. Raises Sink errors."""
    found = configurations(admin.client, topics, admin.timeout_s)
    return {topic: one.get("cleanup.policy", "") for topic, one in found.items()}


def topic_ids(admin: Admin, topics: list[str]) -> dict[str, str]:
    """Return an id of each topic, of the cluster and of this life of the topic. Raises Sink errors."""
    if not topics:
        return {}
    doing = "describing topics"
    cluster = admin.metadata(topics[0], doing).cluster_id
    asked = admin.client.describe_topics(TopicCollection(topics), request_timeout=admin.timeout_s)
    found = {}
    for topic, future in asked.items():
        with kafka_errors(doing, topic=topic):
            found[topic] = f"{cluster}/{future.result().topic_id}"
    return found


def bounds_of(admin: Admin, topics: list[str]) -> dict[tuple[str, int], Bounds]:
    """Return the bounds of each partition of the topics. Raises SinkUnavailable, TopicMissing, SinkAuthorization."""
    doing = "looking up the ends of topics"
    partitions: list[tuple[str, int]] = []
    for topic in topics:
        described = admin.metadata(topic, doing, topic=topic).topics[topic]
        if described.error is not None:
            raise translate(described.error, doing, topic=topic)
        partitions += [(topic, number) for number in sorted(described.partitions)]
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()
    starts = listed_offsets(admin.client, partitions, earliest, doing, admin.timeout_s)
    ends = listed_offsets(admin.client, partitions, latest, doing, admin.timeout_s)
    return {place: Bounds(starts[place], end) for place, end in ends.items()}


class RecordsRemoved(Exception):
    """Kafka has removed records after their bounds were looked up."""


def read_records(
    settings: SinkSettings, bounds: Mapping[tuple[str, int], Bounds], silence_s: float
) -> Iterator[list[TopicRecord]]:
    """Yield the committed records within the bounds, in batches; an empty batch where none arrived.

    Raises SinkUnavailable if no partition gets nearer to its end for `silence_s`, RecordsRemoved, TopicMissing,
    SinkAuthorization.
    """
    reading = _Reading(bounds)
    if not reading.ends:
        return
    with making_client():
        consumer = Consumer(
            _READ | READS_TO_END | reader_properties(settings) | _NO_OTHER_OFFSET, logger=CLIENT_LOG
        )
    try:
        consumer.assign([TopicPartition(*place, reading.reached[place]) for place in reading.ends])
        heard_s = time.monotonic()
        while reading.ends:
            first = consumer.poll(_POLL_S)  # `consume` alone would wait for a full batch
            messages = [] if first is None else [first, *consumer.consume(_BATCH, 0)]
            before = dict(reading.reached)
            batch, finished = reading.take(messages)
            if finished and reading.ends:
                consumer.pause([TopicPartition(*place) for place in finished])
            if reading.reached != before:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > silence_s:
                raise _silent(reading.ends)
            yield batch
    finally:
        consumer.close()


class _Reading:
    """How far the partitions are read. `ends`: of those that are not read to their end; `reached`: next offsets."""

    def __init__(self, bounds: Mapping[tuple[str, int], Bounds]) -> None:
        self.ends = {place: one.end for place, one in bounds.items() if one.start < one.end}
        self.reached = {place: bounds[place].start for place in self.ends}

    def take(self, messages: list[Any]) -> tuple[list[TopicRecord], list[tuple[str, int]]]:
        """Return the records below the ends, and the partitions whose ends are reached. Raises RecordsRemoved."""
        found, finished = [], []
        for message in messages:
            place = topic, partition = message.topic(), message.partition()
            end = self.ends.get(place)
            if end is None:
                continue
            if message.error() is None:  # as nearly always: without a function call
                offset = message.offset()
                position = offset + 1
                if position <= end:
                    found.append(TopicRecord(topic, partition, offset, message.key(), message.value()))
            else:
                reached = _end_of(message, topic)
                if reached is None:
                    continue
                position = reached
            self.reached[place] = position
            if position >= end:
                del self.ends[place]
                finished.append(place)
        return found, finished


def _end_of(message: Any, topic: str) -> int | None:
    if message.error().code() in _REMOVED:
        raise RecordsRemoved
    return position_of(message, topic)


def _silent(left: Mapping[tuple[str, int], int]) -> SinkUnavailable:
    topic, partition = next(iter(left))
    return SinkUnavailable(
        "a topic could not be read to its end in time",
        hint="an open transaction, or a committed one whose marker a killed broker did not write, may block the "
        "topic (docs/kafka.md; kafka-transactions find-hanging)",
        topic=topic,
        partition=partition,
        end=left[topic, partition],
    )
