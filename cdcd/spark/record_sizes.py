"""The bytes of a record of each topic, estimated on the driver, so that the tasks of a large batch are even.

In: the ranges of a batch.  Out: the mean bytes of key and value of some records of each topic. Kafka does not report
the bytes of a range of offsets; the records of one topic are alike in its partitions, because the key chooses them.
Invariant: a small batch is not sampled, a topic only once in `REMEMBERED_OFFSETS`. A topic that is not read within
`PATIENCE_S` has no estimate, which costs only balance; the tasks report the cause.
Must not: commit consumer offsets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdcd.spark.client_errors import making_client
from cdcd.spark.client_log import CLIENT_LOG
from cdcd.spark.connection import Connection
from cdcd.spark.kafka import FETCH_RECORDS, Range, consumer_settings, taken

SMALL_BATCH_OFFSETS = 1000
REMEMBERED_OFFSETS = 1_000_000
PATIENCE_S = 2.0
_WAIT_S = 0.1
_ONE_FETCH = {"queued.min.messages": 1}
"""The client fetches nothing more of a partition that has records in its queue."""


class RecordSizes:
    """The estimates of one query, for all of its batches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bytes: dict[str, float] = {}
        self._offsets_left: dict[str, int] = {}

    def of(self, ranges: Sequence[Range]) -> Mapping[str, float]:
        """Return the bytes of a record by topic, for the topics of which they are known."""
        offsets: dict[str, int] = {}
        for part in ranges:
            offsets[part.topic] = offsets.get(part.topic, 0) + part.end - part.start
        if sum(offsets.values()) >= SMALL_BATCH_OFFSETS:
            self._sample([part for part in _longest(ranges) if self._offsets_left.get(part.topic, 0) <= 0])
        for topic, passed in offsets.items():
            self._offsets_left[topic] = self._offsets_left.get(topic, 0) - passed
        return self._bytes

    def _sample(self, ranges: Sequence[Range]) -> None:
        if ranges:
            self._bytes |= _sampled(self._connection, ranges)
            self._offsets_left |= {part.topic: REMEMBERED_OFFSETS for part in ranges}


def _longest(ranges: Sequence[Range]) -> list[Range]:
    """Return the longest range of each topic."""
    found: dict[str, Range] = {}
    for part in sorted(ranges, key=lambda one: one.end - one.start):
        found[part.topic] = part
    return list(found.values())


def _sampled(connection: Connection, ranges: Sequence[Range]) -> dict[str, float]:
    """Return the mean bytes of the records that the first fetch from the middle of each range returns."""
    settings = consumer_settings(connection.brokers, connection.read_properties()) | _ONE_FETCH
    with making_client():
        consumer = Consumer(settings, logger=CLIENT_LOG)
    try:
        middles = [(part.topic, part.partition, (part.start + part.end) // 2) for part in ranges]
        consumer.assign([TopicPartition(*middle) for middle in middles])
        found: dict[str, list[int]] = {}
        waiting, deadline_s = {part.topic for part in ranges}, time.monotonic() + PATIENCE_S
        while waiting and time.monotonic() < deadline_s:
            for message in taken(consumer, FETCH_RECORDS, _WAIT_S):
                error = message.error()
                if error is None:
                    found.setdefault(message.topic(), []).append(_bytes_of(message))
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.topic())
        return {topic: sum(sizes) / len(sizes) for topic, sizes in found.items()}
    finally:
        consumer.close()


def _bytes_of(message: Message) -> int:
    return len(message.key() or b"") + len(message.value() or b"")
