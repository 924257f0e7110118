"""A runner's output in Kafka: its progress, and the number of its records.

In: a broker's address, topics.  Out: counts, progress as a read_committed reader sees it.
Invariant: a row is durable when a read_committed reader has it; a runner's own report does not count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.lsn import parse_lsn

BATCH = 10_000
GIVE_UP_S = 30.0


def consumer(bootstrap: str, **more: Any) -> Consumer:
    """Return a read_committed reader without a group of its own."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            **more,
        }
    )


class ProgressReader:
    """Reads a daemon's progress records as they become visible."""

    def __init__(self, bootstrap: str, topic: str, slot: str) -> None:
        self._consumer = consumer(bootstrap, **{"fetch.wait.max.ms": 100})
        self._topic = topic
        self._key = slot.encode()
        self._is_assigned = False
        self.end_lsn = 0
        """The position up to which everything is durable."""

    def look(self, timeout_s: float) -> int:
        """Wait at most `timeout_s` for a progress record; return the durable position, 0 before the first record."""
        if not self._is_assigned and not self._assign():
            time.sleep(timeout_s)
            return self.end_lsn
        message = self._consumer.poll(timeout_s)
        while message is not None:
            self._take(message)
            message = self._consumer.poll(0)
        return self.end_lsn

    def close(self) -> None:
        """Close the reader."""
        self._consumer.close()

    def _assign(self) -> bool:
        topic = self._consumer.list_topics(self._topic, 10).topics[self._topic]
        if topic.error is not None or not topic.partitions:
            return False
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        self._is_assigned = True
        return True

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
            return
        if message.key() == self._key and message.value():
            self.end_lsn = max(self.end_lsn, parse_lsn(json.loads(message.value())["end_lsn"]))


def count_committed(bootstrap: str, topics: Collection[str], at_least: int) -> int:
    """Return the number of records that a read_committed reader finds in these topics, read to their end.

    The broker acknowledges a commit before its markers are in all partitions, so a reader may lag for a moment: while
    there are fewer than `at_least` records, wait for more.
    """
    reader = consumer(bootstrap, **{"queued.min.messages": 100_000, "fetch.message.max.bytes": 8 << 20})
    try:
        known = reader.list_topics(timeout=30).topics
        parts = {(topic, number) for topic in topics if topic in known for number in known[topic].partitions}
        reader.assign([TopicPartition(topic, number, 0) for topic, number in parts])
        count, at_end, heard_s = 0, set[tuple[str, int]](), time.monotonic()
        while at_end != parts or count < at_least:
            messages = reader.consume(BATCH, 1.0)
            for message in messages:
                error = message.error()
                if error is None:
                    count += 1
                    at_end.discard((message.topic(), message.partition()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add((message.topic(), message.partition()))
                elif not error.retriable():
                    raise KafkaException(error)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > GIVE_UP_S:
                break
        return count
    finally:
        reader.close()


_BEING_MADE = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class Watermarks:
    """Counts the records of topics that are written without transactions, without reading them."""

    def __init__(self, bootstrap: str, topics: Collection[str]) -> None:
        self._consumer = consumer(bootstrap)
        self._topics = tuple(topics)
        self._parts: list[TopicPartition] = []

    def total(self) -> int:
        """Return the sum of the ends of all partitions; a topic that does not exist yet has none."""
        if len({part.topic for part in self._parts}) < len(self._topics):
            known = self._consumer.list_topics(timeout=10).topics
            self._parts = [
                TopicPartition(topic, number)
                for topic in self._topics
                if topic in known
                for number in known[topic].partitions
            ]
        return sum(map(self._end_of, self._parts))

    def _end_of(self, part: TopicPartition) -> int:
        try:
            end: int = self._consumer.get_watermark_offsets(part, timeout=10)[1]
        except KafkaException as failure:
            if failure.args[0].code() not in _BEING_MADE:
                raise
            return 0
        return end

    def close(self) -> None:
        """Close the reader."""
        self._consumer.close()


def delete_topics(bootstrap: str, prefix: str) -> None:
    """Delete every topic whose name has this prefix, and wait until they are gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [name for name in admin.list_topics(timeout=30).topics if name.startswith(prefix)]
    if names:
        for future in admin.delete_topics(names, operation_timeout=60).values():
            future.result(90)
