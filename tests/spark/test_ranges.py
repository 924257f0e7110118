"""Ranges of partitions on a real broker, by both readers: the rows are those that were written, in their order."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import HistoryMissing, SinkUnavailable
from cdcd.spark.clients import kafka as reading
from cdcd.spark.clients.kafka import Range
from cdcd.spark.source import ranges
from cdcd.spark.source.ranges import read_ranges
from tests.spark.ranges import (
    IN_USE,
    Row,
    Topic,
    by_place,
    plain_producer,
    reader_of,
    records,
    rows_of,
)
from tests.support.nightly import nightly
from tests.support.topics import new_name, transactional_producer
from tests.support.waiting import eventually


def read(bootstrap: str, wanted: list[Range]) -> list[object]:
    return rows_of(read_ranges(bootstrap, {}, wanted))  # type: ignore[return-value]


@IN_USE
def test_committed_records_without_aborted_ones(implementation: str, kafka: KafkaBroker) -> None:
    """The last transaction is aborted, so that each range ends behind a marker and has no record before it."""
    topic = Topic(kafka.bootstrap)
    topic.commit(records(0, 500))
    topic.abort(records(500, 300))
    topic.commit(records(800, 25_000))
    topic.abort(records(26_000, 40))
    assert by_place(read(kafka.bootstrap, topic.ranges())) == by_place(topic.written)


@IN_USE
def test_any_part_of_the_partitions(implementation: str, kafka: KafkaBroker) -> None:
    """A range's start or end may be a record, a marker, an aborted record or within none of them."""
    topic = Topic(kafka.bootstrap, partitions=2)
    for number in range(4):
        topic.commit(records(10 * number, 6, 2))
        topic.abort(records(1000, 3, 2))
    whole = topic.ranges()
    for start in range(whole[0].end):
        for length in (0, 1, 2, 5):
            wanted = [
                Range(topic.name, part.partition, min(start, part.end), min(start + length, part.end))
                for part in whole
            ]
            assert by_place(read(kafka.bootstrap, wanted)) == by_place(topic.between(wanted)), wanted


@IN_USE
def test_a_partition_may_be_divided_inside_any_transaction(implementation: str, kafka: KafkaBroker) -> None:
    """The records of two writers alternate, first both aborted, then one of them. The partitions are equal, and each
    is divided at another offset, so that a reader ends and another one starts at each offset.
    """
    end = 2 * (2 * ALTERNATIONS * 2 + 2)  # twice: the records of two writers, and their markers
    topic = Topic(kafka.bootstrap, partitions=end + 1)
    other = transactional_producer(kafka.bootstrap, new_name("aborted"))
    _alternate(topic, other)
    topic.producer.abort_transaction(60)
    other.abort_transaction(60)
    rows = _alternate(topic, other)
    other.abort_transaction(60)
    topic.producer.commit_transaction(60)
    topic.written += rows
    eventually(lambda: {part.end for part in topic.ranges()} == {end}, "the markers")
    whole = topic.ranges()
    for parts in (
        [replace(part, end=at) for at, part in enumerate(whole)],
        [replace(part, start=at) for at, part in enumerate(whole)],
    ):
        assert by_place(read(kafka.bootstrap, parts)) == by_place(topic.between(parts))


ALTERNATIONS = 4


def _alternate(topic: Topic, other: Producer) -> list[Row]:
    """Begin a transaction of both, write two records at a time into each partition; return the topic's own."""
    rows: list[Row] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        if message.key() == b"own":
            rows.append(Row(message.topic(), message.partition(), message.offset(), b"own", message.value()))

    for producer in (topic.producer, other):
        producer.begin_transaction()
    for producer, key in [(topic.producer, b"own"), (other, b"other")] * ALTERNATIONS:
        for number in range(2 * topic.partitions):
            value = bytes(number)
            producer.produce(topic.name, value, key, number % topic.partitions, on_delivery=delivered)
        assert producer.flush(60) == 0
    return rows


def test_null_and_empty_keys_and_values_and_headers(implementation: str, kafka: KafkaBroker) -> None:
    topic = Topic(kafka.bootstrap, partitions=1)
    parts = (None, b"", b"\0", b"x" * 300)
    topic.commit([(0, key, value) for key in parts for value in parts], headers=[("h", b"v"), ("n", None)])
    topic.commit([(0, b"", b"")])
    assert read(kafka.bootstrap, topic.ranges()) == topic.written


def test_several_topics_one_name_the_start_of_another(implementation: str, kafka: KafkaBroker) -> None:
    first = new_name("ranges")
    topics = [Topic(kafka.bootstrap, name) for name in (f"{first}.b", first, f"{first}.a", f"{first}-1")]
    for number, topic in enumerate(topics):
        topic.commit(records(number, 50 * (number + 1)))
    wanted = [part for topic in topics for part in topic.ranges()]
    found = read(kafka.bootstrap, wanted)
    assert by_place(found) == by_place(row for topic in topics for row in topic.written)


def test_the_timestamps_are_the_producers(implementation: str, kafka: KafkaBroker) -> None:
    config = {"message.timestamp.before.max.ms": str(2**62), "retention.ms": "-1"}
    topic = Topic(kafka.bootstrap, partitions=1, config=config)
    topic.commit([(0, b"k", b"v")], timestamp=1_234_567_890_123)
    (batch,) = read_ranges(kafka.bootstrap, {}, topic.ranges())
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1_234_567_890_123_000]


def test_a_batch_is_limited_in_bytes(
    implementation: str, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "MOST_BYTES", 10_000)
    topic = Topic(kafka.bootstrap, partitions=1)
    topic.commit([(0, b"k", bytes(size)) for size in (100, 20_000, 4_000, 4_000, 4_000, 10_000, 1)])
    batches = list(read_ranges(kafka.bootstrap, {}, topic.ranges()))
    assert rows_of(batches) == topic.written
    for batch in batches:
        size = sum(len(value) for name in ("key", "value") for value in batch[name].to_pylist())
        assert size <= 10_000 or batch.num_rows == 1


@IN_USE
def test_a_record_of_fifty_megabytes(implementation: str, kafka: KafkaBroker) -> None:
    topic = Topic(kafka.bootstrap, partitions=1, config={"max.message.bytes": "60000000"})
    large = os.urandom(50_000_000)
    producer = plain_producer(kafka.bootstrap)
    for value in (b"before", large, b"after"):
        producer.produce(topic.name, value, partition=0)
        assert producer.flush(60) == 0
    found = [row.value for row in read(kafka.bootstrap, topic.ranges())]  # type: ignore[attr-defined]
    assert [hashlib.sha256(value).digest() for value in found] == [
        hashlib.sha256(value).digest() for value in (b"before", large, b"after")
    ]


def test_an_end_behind_an_open_transaction_is_waited_for(implementation: str, kafka: KafkaBroker) -> None:
    """The reader sees the partition's end before the range's end; the range ends with the marker."""
    topic = Topic(kafka.bootstrap, partitions=1)
    topic.commit(records(0, 3, 1))
    late = topic.send(records(3, 2, 1))
    reader = reader_of(implementation, kafka.bootstrap, [Range(topic.name, 0, 0, late[-1].offset + 2)])
    try:
        batches = []
        seen = 0
        while seen < 4:  # three records and the end of the partition
            batches.append(reader.read())
            seen += reader.arrived
        assert reader.waiting == [(topic.name, 0)]
        topic.producer.commit_transaction(60)
        while reader.waiting:
            batches.append(reader.read())
    finally:
        reader.close()
    assert rows_of(batch for batch in batches if batch is not None) == [*topic.written, *late]


@IN_USE
@pytest.mark.own_broker
def test_compacted_records_leave_gaps(implementation: str, kafka: KafkaBroker) -> None:
    _configure(kafka, "log.cleaner.backoff.ms", "100")
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200"}
    topic = Topic(kafka.bootstrap, partitions=1, config=compacted)
    producer = plain_producer(kafka.bootstrap)
    written: list[tuple[int, bytes, bytes]] = []

    def gaps() -> bool:
        """Write on, because only a segment that is not the last one is compacted."""
        for key in (b"a", b"b", b"b"):
            value = b"%d" % len(written)
            producer.produce(
                topic.name, value, key, 0, on_delivery=lambda _, m: written.append((m.offset(), *kv(m)))
            )
        assert producer.flush(60) == 0
        return len(read(kafka.bootstrap, topic.ranges())) < len(written) // 2

    def kv(message: object) -> tuple[bytes, bytes]:
        return message.key(), message.value()  # type: ignore[attr-defined]

    eventually(gaps, "compaction")
    wanted = topic.ranges()
    found = [(row.offset, row.key, row.value) for row in read(kafka.bootstrap, wanted)]  # type: ignore[attr-defined]
    assert set(found) < set(written)
    assert found == sorted(found)
    newest = {key: (offset, value) for offset, key, value in written}
    assert {(offset, key, value) for key, (offset, value) in newest.items()} <= set(found)


def _configure(kafka: KafkaBroker, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ConfigResource.Type.BROKER, str(kafka.node_id), incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.incremental_alter_configs([broker]).values():
        future.result(30)


@pytest.mark.parametrize("is_read_before", [nightly(False), True])
def test_a_removed_start_is_an_error(implementation: str, kafka: KafkaBroker, is_read_before: bool) -> None:
    topic = Topic(kafka.bootstrap, partitions=1)
    for first in range(0, 90_000, 30_000):
        topic.commit(records(first, 30_000, 1))
    found = read_ranges(kafka.bootstrap, {}, topic.ranges())
    if is_read_before:
        next(found)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    end = topic.written[-1].offset
    for future in admin.delete_records([TopicPartition(topic.name, 0, end)]).values():
        future.result(30)
    with pytest.raises(HistoryMissing) as raised:
        list(found)
    assert raised.value.context == {"topic": topic.name, "partition": 0}


@IN_USE
def test_a_missing_topic_is_an_error(
    implementation: str, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka looks for the topic again, because a new one is not known to all brokers at once."""
    monkeypatch.setattr(reading, "STALL_TIMEOUT_S", 2.0)
    missing = new_name("missing")
    with pytest.raises(SinkUnavailable, match=missing):
        read(kafka.bootstrap, [Range(missing, 0, 0, 1)])


@pytest.mark.own_broker
@IN_USE
def test_a_broker_that_starts_again_in_the_middle(implementation: str, kafka: KafkaBroker) -> None:
    topic = Topic(kafka.bootstrap)
    for first in range(0, 60_000, 20_000):
        topic.commit([(n % 3, b"%d" % n, bytes(1000)) for n in range(first, first + 20_000)])
    found = read_ranges(kafka.bootstrap, {}, topic.ranges())
    rows = rows_of([next(found)])
    kafka.stop()
    restart = threading.Thread(target=kafka.start)
    restart.start()
    rows += rows_of(found)
    restart.join()
    assert by_place(rows) == by_place(topic.written)


MEASURED = """
import re, sys, time
from pathlib import Path
from cdcd.spark.clients.kafka import Range
from cdcd.spark.source.ranges import read_ranges

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256

before, rows = resident(), 0
for batch in read_ranges(sys.argv[1], {}, [Range(sys.argv[2], p, 0, int(sys.argv[3])) for p in (0, 1)]):
    if not rows:
        sizes = [0, resident()]
        while sizes[-1] > sizes[-2]:  # until the client fetches nothing more
            time.sleep(0.5)
            sizes.append(resident())
    rows += batch.num_rows
# The peak of this program; that of getrusage is the parent's, if it is larger.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
print(rows, peak - before)
"""


def test_the_memory_does_not_depend_on_the_backlog(kafka: KafkaBroker) -> None:
    """The rows that a slow task leaves in the queue are tombstones: each takes much more memory than its bytes."""
    topic = Topic(kafka.bootstrap, partitions=2)
    producer = plain_producer(kafka.bootstrap)
    count = 600_000
    for number in range(count):
        while True:
            try:
                producer.produce(topic.name, key=b"%d" % number, partition=number % 2)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(60) == 0
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, kafka.bootstrap, topic.name, str(count // 2)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows, grown_mbytes = map(int, done.stdout.split())
    assert rows == count
    assert grown_mbytes < 150
