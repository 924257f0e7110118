"""Read Kafka for Spark: offsets, the progress topic, and ranges of records as Arrow batches.

In: bootstrap servers and offsets.  Out: committed records only (read_committed), in offset order per partition.
Invariant: a range is read to its end or an error is raised; a range whose start was removed is an error, never
a shorter range; log lines of the clients are records of Python's logging, never written by librdkafka itself.
Must not: commit consumer offsets; the positions are in Spark's checkpoint and the mirror's manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, OffsetSpec

from cdcd.errors import HistoryMissing, SinkUnavailable
from cdcd.spark.client_log import CLIENT_LOG
from cdcd.spark.cuts import Commit, Offsets, normal, parse_progress

REQUEST_TIMEOUT_S = 30.0
STALL_TIMEOUT_S = 60.0
FETCH_RECORDS = 10_000

_T = TypeVar("_T")

RAW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""The rows of `format("cdcd")` as an Arrow schema."""


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition with start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int


def consumer_settings(brokers: str, properties: Mapping[str, str]) -> dict[str, object]:
    """Return librdkafka's settings for a reader that commits nothing and sees committed records only."""
    return {
        "bootstrap.servers": brokers,
        "group.id": "cdcd-spark",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "queued.min.messages": 200_000,
        "queued.max.messages.kbytes": 131_072,
        "fetch.message.max.bytes": 8_388_608,
        **properties,
    }


class Cluster:
    """The driver's queries to Kafka: the topics, and the first and last offset of each partition."""

    def __init__(self, brokers: str, properties: Mapping[str, str]) -> None:
        self._admin = AdminClient({"bootstrap.servers": brokers, **properties}, logger=CLIENT_LOG)

    def id(self) -> str:
        """Return the cluster's id."""
        return str(self._asked("Kafka does not return its cluster id", self._listed).cluster_id)

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions of every topic of the cluster."""
        topics = self._asked("Kafka does not list its topics", self._listed).topics
        return {name: sorted(topic.partitions) for name, topic in topics.items()}

    def starts(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the log start offset of each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the last stable offset of each partition: nothing below it belongs to an open transaction."""
        return self._offsets(partitions, OffsetSpec.latest())

    def _offsets(self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        if not partitions:
            return {}
        asked = self._admin.list_offsets(
            {TopicPartition(topic, partition): spec for topic, partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return self._asked(
            "Kafka does not list offsets",
            lambda: {(key.topic, key.partition): future.result().offset for key, future in asked.items()},
        )

    def _listed(self) -> ClusterMetadata:
        return self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)

    def _asked(self, refused: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except KafkaException as error:
            raise _unavailable(refused, reason=error.args[0].name()) from error
        finally:
            self._admin.poll(0)  # delivers the client's log lines


def _unavailable(message: str, **context: object) -> SinkUnavailable:
    """Return the error of a reader; its hint names the option of the brokers and a restart."""
    return SinkUnavailable(message, hint=_AWAY, **context)


_AWAY = "start Kafka, or correct the reader's brokers (--brokers, the option `brokers`); then start it again"


class ProgressReader:
    """A reader of `<prefix>.__progress`, one partition, from its start."""

    def __init__(self, brokers: str, properties: Mapping[str, str], topic: str, cluster: Cluster) -> None:
        self._topic = topic
        self._cluster = cluster
        self._settings = consumer_settings(brokers, properties)
        self._consumer: Consumer | None = None
        self._next = 0
        self._counted = 0
        self._slots: set[bytes | None] = set()
        self._has_all_before: bool | None = None

    @property
    def is_whole(self) -> bool:
        """Whether compaction has removed none of the progress records up to the last one read.

        Compaction retains the last record of a key. If it removed a record of a slot, there is a gap before the first
        remaining one. With two slots, the last record of one may be the first in the topic, which proves nothing.
        """
        return bool(self._has_all_before) and len(self._slots) == 1

    def read(self) -> list[Commit]:
        """Return the records that were committed since the last call; none while the topic does not exist."""
        if self._consumer is None and not self._open():
            return []
        end = self._cluster.ends([(self._topic, 0)])[(self._topic, 0)]
        commits: list[Commit] = []
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while self._next < end:
            for message in self._fetch():
                deadline = time.monotonic() + STALL_TIMEOUT_S
                self._next = max(self._next, next_offset(message))
                if message.error() is not None:
                    continue
                is_progress = b"/" not in (
                    message.key() or b""
                )  # otherwise the record describes a slot, not its progress
                if message.value() is not None and is_progress:
                    if self._has_all_before is None:
                        self._has_all_before = message.offset() == self._counted
                    self._slots.add(message.key())
                    commits.append(parse_progress(message.value()))
                self._counted += 1
            if time.monotonic() > deadline:
                raise _unavailable(
                    "a read of the progress topic stalls", topic=self._topic, offset=self._next
                )
        return commits

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> bool:
        if self._topic not in self._cluster.partitions():
            return False
        self._consumer = Consumer(self._settings, logger=CLIENT_LOG)
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        return True

    def _fetch(self) -> list[Message]:
        assert self._consumer is not None
        return checked(self._consumer.consume(FETCH_RECORDS, 0.5))


def checked(messages: list[Message]) -> list[Message]:
    """Return the records and ends of partitions. Raise errors, except those that librdkafka retries."""
    kept: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            kept.append(message)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise HistoryMissing(
                "Kafka removed records before they were read",
                topic=message.topic(),
                partition=message.partition(),
            )
        elif error.fatal() or not (error.retriable() or error.code() in _PASSING):
            raise _unavailable("Kafka refuses the read", topic=message.topic(), reason=error.name())
    return kept


_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
)


def next_offset(message: Message) -> int:
    """Return the next offset to read after this message; for an end of partition it is after the last marker."""
    offset: int = message.offset()
    return offset if message.error() is not None else offset + 1


def read_ranges(
    brokers: str, properties: Mapping[str, str], ranges: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of the ranges with one consumer, in offset order within a partition.

    The marker that ends a transaction may reach a partition after the progress record is visible, so the reader waits
    at an end of partition before the range's end. Raises HistoryMissing if the start was removed meanwhile.
    """
    left = {(part.topic, part.partition): part.end for part in ranges if part.start < part.end}
    consumer = Consumer(consumer_settings(brokers, properties), logger=CLIENT_LOG)
    try:
        consumer.assign([TopicPartition(part.topic, part.partition, part.start) for part in ranges])
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while left:
            fetched = checked(consumer.consume(FETCH_RECORDS, 1.0))
            if fetched:
                deadline = time.monotonic() + STALL_TIMEOUT_S
                yield from _batches(fetched, left, consumer)
            elif time.monotonic() > deadline:
                raise _unavailable("a read of a range of records stalls", waiting=sorted(left))
    finally:
        consumer.close()


def _batches(
    fetched: list[Message], left: dict[tuple[str, int], int], consumer: Consumer
) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[str, int, int, int, bytes | None, bytes | None]] = []
    finished: list[TopicPartition] = []
    for message in fetched:
        place = (message.topic(), message.partition())
        end = left.get(place)
        if end is None:
            continue
        offset = message.offset()
        if message.error() is None and offset < end:
            rows.append((*place, offset, message.timestamp()[1] * 1000, message.key(), message.value()))
        if next_offset(message) >= end:
            del left[place]
            finished.append(TopicPartition(*place))
    if finished and left:
        consumer.pause(finished)
    if rows:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW_SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)


def check_history(cluster: Cluster, start: Offsets, end: Offsets) -> list[Range]:
    """Return the ranges between two cuts. Raises HistoryMissing if a start is below the log or above its end."""
    wanted = [
        Range(topic, int(partition), start.get(topic, {}).get(partition, 0), offset)
        for topic, partitions in normal(end).items()
        for partition, offset in partitions.items()
    ]
    ranges = [part for part in wanted if part.start != part.end]
    log_starts = cluster.starts([(part.topic, part.partition) for part in ranges])
    for part in ranges:
        log_start = log_starts[(part.topic, part.partition)]
        if part.start < log_start or part.start > part.end:
            raise HistoryMissing(
                "Kafka removed records that were not read yet",
                topic=part.topic,
                partition=part.partition,
                wanted_offset=part.start,
                first_offset=log_start,
                end_offset=part.end,
            )
    return ranges
