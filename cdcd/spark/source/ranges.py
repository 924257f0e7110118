"""Read ranges of Kafka partitions as Arrow batches, each with one consumer for all of them.

In: bootstrap servers, properties, ranges of offsets.  Out: committed records only (read_committed), in offset order
per partition; rows of `RAW_SCHEMA`.
Invariant: a range is read to its end or an error is raised; a range whose start was removed is an error, never a
shorter range. A batch has at most `MOST_ROWS` rows and `MOST_BYTES` of keys and values, or one larger record. The
reader returns as soon as the last end is reached, and destroys its consumer on every path, or gives it back for the
next task (`idle_client`).
Must not: commit consumer offsets.

With the C extension the bytes go from librdkafka's buffers to Arrow's. `RangesInPython` is its specification: it
runs where the extension was not built, or where librdkafka's functions are not found.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from types import ModuleType
from typing import Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.extensions import extension
from cdcd.spark.clients import idle_client, kafka, librdkafka
from cdcd.spark.clients.client_errors import making_client
from cdcd.spark.clients.client_log import CLIENT_LOG
from cdcd.spark.clients.kafka import (
    Range,
    check_error,
    check_messages,
    consumer_settings,
    next_offset,
    take,
    unavailable,
)

_EXTENSION = extension("cdcd.columnar._arrow")

MOST_ROWS = 10_000
MOST_BYTES = 8 << 20
WAIT_S = 1.0
GATHER_S = 0.01
"""How long a batch waits for more records after its first, so that ranges of few records each are one batch."""

Place = tuple[str, int]
Row = tuple[str, int, int, int | None, bytes | None, bytes | None]


class RangesReader(Protocol):
    """A consumer that reads ranges. `arrived` is the number of records and ends of partitions in the last read."""

    arrived: int

    @property
    def waiting(self) -> list[Place]:
        """Return the partitions whose range was not read to its end."""

    def read(self) -> pa.RecordBatch | None:
        """Wait for records a limited time; return a batch or None. Raises the consumer's errors as cdcd's."""

    def close(self) -> None:
        """Destroy the consumer."""


def read_ranges(
    brokers: str, properties: Mapping[str, str], ranges: Sequence[Range]
) -> Generator[pa.RecordBatch]:
    """Yield the committed records of the ranges with one consumer, in offset order within a partition.

    The marker that ends a transaction may reach a partition after the progress record is visible, so the reader waits
    at an end of partition before the range's end. Raises HistoryMissing if the start was removed meanwhile.
    """
    wanted = [part for part in ranges if part.start < part.end]
    if not wanted:
        return
    reader = ranges_reader(consumer_settings(brokers, properties), wanted)
    try:
        deadline_s = time.monotonic() + kafka.STALL_TIMEOUT_S
        while reader.waiting:
            batch = reader.read()
            if batch is not None:
                yield batch
            if reader.arrived:
                deadline_s = time.monotonic() + kafka.STALL_TIMEOUT_S
            elif time.monotonic() > deadline_s:
                raise unavailable("a read of a range of records stalls", waiting=reader.waiting)
    finally:
        reader.close()


def ranges_reader(settings: Mapping[str, object], ranges: Sequence[Range]) -> RangesReader:
    """Return the implementation in use."""
    if _EXTENSION is None or librdkafka.library() is None:
        return RangesInPython(settings, ranges)
    return RangesInC(_EXTENSION, settings, ranges)


class RangesInPython:
    """The fallback: a Python object for each record."""

    def __init__(self, settings: Mapping[str, object], ranges: Sequence[Range]) -> None:
        self._ends = {(part.topic, part.partition): part.end for part in ranges}
        self._pending: list[Message] = []
        self.arrived = 0
        with making_client():
            self._consumer = Consumer(settings, logger=CLIENT_LOG)
        self._consumer.assign([TopicPartition(part.topic, part.partition, part.start) for part in ranges])

    @property
    def waiting(self) -> list[Place]:
        """Return the partitions whose range was not read to its end."""
        return sorted(self._ends)

    def read(self) -> pa.RecordBatch | None:
        """Wait for records a limited time; return a batch or None. Raises the consumer's errors as cdcd's."""
        if not self._pending:
            self._pending = check_messages(take(self._consumer, MOST_ROWS, WAIT_S))
        rows: list[Row] = []
        finished: list[TopicPartition] = []
        size_bytes = self.arrived = 0
        for message in self._pending:
            place = (message.topic(), message.partition())
            end = self._ends.get(place)
            if end is not None and message.error() is None and message.offset() < end:
                row = _row(message)
                size_bytes += len(row[4] or b"") + len(row[5] or b"")
                if rows and size_bytes > MOST_BYTES:
                    break
                rows.append(row)
            self.arrived += 1
            if end is not None and next_offset(message) >= end:
                del self._ends[place]
                finished.append(TopicPartition(*place))
        del self._pending[: self.arrived]
        if finished and self._ends:
            self._consumer.pause(finished)
        return _batch(rows) if rows else None

    def close(self) -> None:
        """Destroy the consumer."""
        self._consumer.close()


def _row(message: Message) -> Row:
    """Return a record's columns; a time that is none, or beyond what Arrow can have, is null."""
    timestamp_us = message.timestamp()[1] * 1000
    known = 0 <= timestamp_us < 1 << 63
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp_us if known else None,
        message.key(),
        message.value(),
    )


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)


class RangesInC:
    """A consumer of librdkafka whose queue the C extension reads."""

    def __init__(self, compiled: ModuleType, settings: Mapping[str, object], ranges: Sequence[Range]) -> None:
        loaded = librdkafka.library()
        assert loaded is not None
        found = sorted((part.topic.encode(), part.partition, part.end) for part in ranges)
        self._places: list[Place] = [(topic.decode(), partition) for topic, partition, _ in found]
        self._waiting = set(self._places)
        self.arrived = 0
        with making_client():
            self._consumer = idle_client.consumer_for(loaded, settings, logger=CLIENT_LOG)
        try:
            functions = compiled.Librdkafka(*(getattr(loaded, name) for name in librdkafka.MESSAGE_FUNCTIONS))
            self._messages = compiled.Messages(
                functions, self._consumer.queue, found, RAW_SCHEMA, MOST_ROWS, MOST_BYTES
            )
            self._consumer.assign((part.topic, part.partition, part.start) for part in ranges)
        except BaseException:
            idle_client.give_back(self._consumer, (), is_done=False)
            raise

    @property
    def waiting(self) -> list[Place]:
        """Return the partitions whose range was not read to its end."""
        return sorted(self._waiting)

    def read(self) -> pa.RecordBatch | None:
        """Wait for records a limited time; return a batch or None. Raises the consumer's errors as cdcd's."""
        batch, finished, errors = self._messages.read(int(WAIT_S * 1000), int(GATHER_S * 1000))
        self._consumer.log_lines()
        self.arrived = self._messages.arrived
        for code, topic, partition in errors:
            check_error(KafkaError(code), topic, partition)
        places = [self._places[at] for at in finished]
        self._waiting.difference_update(places)
        if places and self._waiting:
            self._consumer.pause(places)
        return batch

    def close(self) -> None:
        """Destroy the messages, then the consumer, or keep it for the next task if it has read everything."""
        self._messages.close()
        idle_client.give_back(self._consumer, self._places, is_done=not self._waiting)
