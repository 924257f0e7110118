"""The tasks of a batch: each offset once, about equal bytes; what they hold is judged by reading them."""

from __future__ import annotations

import random

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.spark import pieces as dividing
from cdcd.spark import record_sizes
from cdcd.spark.connection import Connection
from cdcd.spark.kafka import Range
from cdcd.spark.pieces import ROW_BYTES, UNKNOWN_BYTES, pieces
from cdcd.spark.ranges import read_ranges
from cdcd.spark.record_sizes import REMEMBERED_OFFSETS, SMALL_BATCH_OFFSETS, RecordSizes
from tests.spark.ranges import Topic
from tests.support.nightly import nightly
from tests.support.topics import new_name

MEGABYTE_OFFSETS = 1_000_000 // (UNKNOWN_BYTES + ROW_BYTES)


def test_a_small_batch_is_one_task() -> None:
    ranges = [Range("a", number, 0, MEGABYTE_OFFSETS) for number in range(8)]
    assert pieces(ranges, {}, 4) == [ranges]
    assert pieces([], {}, 4) == []


def test_one_partition_is_divided() -> None:
    assert pieces([Range("a", 0, 10, 1_000_010)], {}, 4) == [
        [Range("a", 0, 10 + 250_000 * number, 250_010 + 250_000 * number)] for number in range(4)
    ]


@pytest.mark.parametrize("seed", range(50))
def test_each_offset_is_in_one_task_and_the_tasks_are_even(seed: int) -> None:
    """One record is the largest difference between two tasks, rounded once at each end."""
    chance = random.Random(seed)
    ranges = []
    for number in range(chance.randrange(1, 12)):
        start = chance.randrange(1_000_000)
        ranges.append(Range(chance.choice("abc"), number, start, start + chance.choice([1, 5, 1000, 10**6])))
    sizes = {name: chance.choice([0.0, 50.0, 50_000.0]) for name in "ab"}
    tasks = pieces(ranges, sizes, most := chance.randrange(1, 9))
    assert 1 <= len(tasks) <= most
    for part in ranges:
        held = [one for task in tasks for one in task if one.partition == part.partition]
        assert [held[0].start, *(one.end for one in held)] == [*(one.start for one in held), part.end]
        assert (held[0].start, {one.topic for one in held}) == (part.start, {part.topic})
        assert all(one.start < one.end for one in held)
    if len(tasks) == most:
        weight = {name: ROW_BYTES + sizes.get(name, UNKNOWN_BYTES) for name in "abc"}
        bytes_of = [sum(weight[one.topic] * (one.end - one.start) for one in task) for task in tasks]
        assert max(bytes_of) - min(bytes_of) <= 2 * max(weight.values())


@pytest.fixture
def topics(kafka: KafkaBroker) -> tuple[Topic, Topic]:
    """Two topics of about a megabyte each: 20,000 rows of 50 bytes in one partition, 20 of 50 kB in three."""
    name = new_name("sizes")
    small, large = Topic(kafka.bootstrap, f"{name}.a", partitions=1), Topic(kafka.bootstrap, f"{name}.b")
    small.commit([(0, b"%08d" % number, bytes(42)) for number in range(20_000)])
    large.commit([(number % 3, b"%08d" % number, bytes(50_000)) for number in range(20)])
    return small, large


@pytest.mark.parametrize("tasks", [nightly(2), 5])
def test_tasks_are_even_with_small_and_large_records(
    topics: tuple[Topic, Topic], kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    monkeypatch.setattr(dividing, "PIECE_BYTES", 300_000)
    ranges = [part for topic in topics for part in topic.ranges()]
    sizes = RecordSizes(Connection(kafka.bootstrap, "sizes")).of(ranges)
    divided = pieces(ranges, sizes, tasks)
    assert len(divided) == tasks
    found = [list(read_ranges(kafka.bootstrap, {}, task)) for task in divided]
    keys = [(row["topic"], row["key"]) for task in found for batch in task for row in batch.to_pylist()]
    assert sorted(keys) == sorted((row.topic, row.key) for topic in topics for row in topic.written)
    bytes_of = [sum(batch.nbytes for batch in task) for task in found]
    assert max(bytes_of) < 1.5 * min(bytes_of)


def test_only_a_large_batch_of_unknown_topics_is_sampled(
    topics: tuple[Topic, Topic], kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[set[str]] = []
    sample = record_sizes._sample

    def counted(connection: Connection, ranges: list[Range]) -> dict[str, float]:
        sampled.append({part.topic for part in ranges})
        return sample(connection, ranges)

    monkeypatch.setattr(record_sizes, "_sample", counted)
    sizes = RecordSizes(Connection(kafka.bootstrap, "sizes"))
    small, large = topics
    assert sizes.of([Range(small.name, 0, 0, SMALL_BATCH_OFFSETS - 1)]) == {}
    assert sizes.of([Range(small.name, 0, 0, SMALL_BATCH_OFFSETS)]) == {small.name: 50}
    assert sizes.of([Range(small.name, 0, 0, REMEMBERED_OFFSETS), *large.ranges()]) == {
        small.name: 50,
        large.name: 50_008,
    }
    sizes.of([Range(small.name, 0, 0, SMALL_BATCH_OFFSETS), *large.ranges()])
    assert sampled == [{small.name}, {large.name}, {small.name}]


def test_a_topic_that_cannot_be_read_has_no_estimate(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sizes, "SAMPLE_TIMEOUT_S", 0.5)
    ranges = [Range(new_name("missing"), 0, 0, SMALL_BATCH_OFFSETS)]
    assert RecordSizes(Connection(kafka.bootstrap, "sizes")).of(ranges) == {}
