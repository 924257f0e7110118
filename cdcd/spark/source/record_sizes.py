"""The bytes of a record of each topic, estimated on the driver: for even tasks, and for a limit of a batch's bytes.

In: the ranges of a batch.  Out: the mean bytes of key and value of some records of each topic, by offset: markers of
transactions have an offset, too, and no bytes. Kafka does not report the bytes of a range of offsets; the records of
one topic are alike in its partitions, because the key chooses them.
Invariant: a small batch is not sampled for its tasks, a topic only once in `REMEMBERED_OFFSETS`. A topic that is not
read within `SAMPLE_TIMEOUT_S` has no estimate and counts as `UNKNOWN_BYTES` a record; the tasks report the cause.
Must not: commit consumer offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdcd.spark.clients.client_errors import making_client
from cdcd.spark.clients.client_log import CLIENT_LOG
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import FETCH_RECORDS, Range, consumer_settings, take
from cdcd.spark.source.cuts import Offsets, distance

SMALL_BATCH_OFFSETS = 1000
REMEMBERED_OFFSETS = 1_000_000
SAMPLE_TIMEOUT_S = 2.0
_WAIT_S = 0.1
UNKNOWN_BYTES = 1000
"""The assumed bytes of a record of a topic whose records were not read."""
_ONE_FETCH = {"queued.min.messages": 1, "fetch.message.max.bytes": 65_536, "fetch.max.bytes": 1_048_576}
"""The client fetches nothing more of a partition that has records in its queue. A fetch of 64 KB of compressed
records is some megabytes in memory."""


class RecordSizes:
    """The estimates of one query, for all of its batches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bytes: dict[str, float] = {}
        self._offsets_left: dict[str, int] = {}

    def of(self, ranges: Sequence[Range]) -> Mapping[str, float]:
        """Return the bytes of an offset by topic, for the topics of which they are known."""
        offsets: dict[str, int] = {}
        for part in ranges:
            offsets[part.topic] = offsets.get(part.topic, 0) + part.end - part.start
        if sum(offsets.values()) >= SMALL_BATCH_OFFSETS:
            self.learn(ranges)
        for topic, passed in offsets.items():
            self._offsets_left[topic] = self._offsets_left.get(topic, 0) - passed
        return self._bytes

    def lacks(self, topics: Iterable[str]) -> bool:
        """Return whether one of these topics has to be read for an estimate."""
        return any(self._offsets_left.get(topic, 0) <= 0 for topic in topics)

    def learn(self, ranges: Sequence[Range]) -> None:
        """Read some records of each topic of these ranges that has to be read."""
        ranges = [part for part in _longest(ranges) if self.lacks([part.topic])]
        if ranges:
            self._bytes |= _sample(self._connection, ranges)
            self._offsets_left |= {part.topic: REMEMBERED_OFFSETS for part in ranges}

    def between(self, start: Offsets, end: Offsets) -> float:
        """Return the estimated bytes of the records between two cuts."""
        return sum(
            self._bytes.get(topic, UNKNOWN_BYTES) * distance(start, {topic: partitions})
            for topic, partitions in end.items()
        )


def _longest(ranges: Sequence[Range]) -> list[Range]:
    """Return the longest range of each topic."""
    found: dict[str, Range] = {}
    for part in sorted(ranges, key=lambda one: one.end - one.start):
        found[part.topic] = part
    return list(found.values())


def _sample(connection: Connection, ranges: Sequence[Range]) -> dict[str, float]:
    """Return the mean bytes of an offset in the first fetch from the middle of each range."""
    settings = consumer_settings(connection.brokers, connection.read_properties()) | _ONE_FETCH
    with making_client():
        consumer = Consumer(settings, logger=CLIENT_LOG)
    try:
        middles = [(part.topic, part.partition, (part.start + part.end) // 2) for part in ranges]
        consumer.assign([TopicPartition(*middle) for middle in middles])
        found: dict[str, dict[int, int]] = {}
        waiting, deadline_s = {part.topic for part in ranges}, time.monotonic() + SAMPLE_TIMEOUT_S
        while waiting and time.monotonic() < deadline_s:
            for message in take(consumer, FETCH_RECORDS, _WAIT_S):
                error = message.error()
                if error is None:
                    found.setdefault(message.topic(), {})[message.offset()] = _bytes_of(message)
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.topic())
        return {topic: sum(sizes.values()) / (max(sizes) - min(sizes) + 1) for topic, sizes in found.items()}
    finally:
        consumer.close()


def _bytes_of(message: Message) -> int:
    return len(message.key() or b"") + len(message.value() or b"")
