"""Records go to the producer in order, each once; the first and the last one of each partition are reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.extensions import extension
from cdcd.model import Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.produce_batch import (
    MOST_PARTITIONS,
    by_partition,
    by_partition_in_python,
    produce_batch,
    produce_batch_in_python,
)
from cdcd.sink.settings import SinkSettings

Produce = Callable[..., tuple[int, Exception | None]]
Arrange = Callable[[Sequence[Record]], Sequence[Record]]
needs_extension = pytest.mark.skipif(
    extension("cdcd.sink._produce_batch") is None, reason="the Python fallbacks were asked for"
)
BOTH = [
    pytest.param(produce_batch, marks=needs_extension, id="compiled"),
    pytest.param(produce_batch_in_python, id="python"),
]
BOTH_ARRANGE = [
    pytest.param(by_partition, marks=needs_extension, id="compiled"),
    pytest.param(by_partition_in_python, id="python"),
]


class Producer:
    """Accepts `takes` records, then raises."""

    def __init__(self, takes: int, failure: Exception | None) -> None:
        self.taken: list[Record] = []
        self.reported: list[int] = []
        self._takes = takes
        self._failure = failure

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, report: object = None
    ) -> None:
        if self._failure is not None and len(self.taken) == self._takes:
            raise self._failure
        if report is not None:
            assert report is _report
            self.reported.append(len(self.taken))
        self.taken.append(Record(topic, partition, key, value))


def _report(*_: object) -> None:
    """The callback for delivery reports."""


def _records(chance: random.Random) -> list[Record]:
    topics = [f"topic-{n}" for n in range(chance.choice((1, 1, 3, 500)))]
    partitions = chance.choice((1, 4, 300, 5000))
    return [
        Record(
            chance.choice(topics),
            chance.randrange(partitions),
            chance.choice((None, b"k")),
            chance.choice((None, b"%d" % n)),
        )
        for n in range(chance.choice((0, 1, 2, 20, 3000)))
    ]


def _ends_of_each(records: Sequence[Record]) -> set[int]:
    first: dict[tuple[str, int], int] = {}
    last = {}
    for at, record in enumerate(records):
        first.setdefault((record.topic, record.partition), at)
        last[record.topic, record.partition] = at
    return {*first.values(), *last.values()}


@pytest.mark.parametrize("give", BOTH)
def test_each_record_is_produced_once_in_order_and_the_ends_of_each_partition_are_reported(
    give: Produce,
) -> None:
    for seed in range(150):
        chance = random.Random(seed)
        records = _records(chance)
        start = chance.randrange(len(records) + 1)
        producer = Producer(0, None)
        assert give(producer.produce, _report, records, start) == (len(records), None)
        assert producer.taken == records[start:], seed
        ends = _ends_of_each(producer.taken)
        assert ends <= set(producer.reported), seed
        if len({record.topic for record in records}) == 1 and max(r.partition for r in records) < 256:
            assert len(producer.reported) == len(ends), "with many records, no unneeded delivery reports"


@pytest.mark.parametrize("give", BOTH)
@pytest.mark.parametrize("failure", [BufferError("full"), KafkaException(KafkaError(KafkaError._FATAL))])
def test_the_index_of_the_first_refused_record_is_returned_with_the_reason(
    give: Produce, failure: Exception
) -> None:
    for seed in range(100):
        chance = random.Random(seed)
        records = _records(chance) or [Record("t", 0, None, b"v")]
        start = chance.randrange(len(records))
        takes = chance.randrange(len(records) - start)
        producer = Producer(takes, failure)
        assert give(producer.produce, _report, records, start) == (start + takes, failure)
        assert producer.taken == records[start : start + takes], seed
        rest = Producer(0, None)
        assert give(rest.produce, _report, records, start + takes) == (len(records), None)
        assert producer.taken + rest.taken == records[start:], seed


@needs_extension
def test_records_that_are_not_a_list_use_the_fallback() -> None:
    producer = Producer(0, None)
    records = (Record("t", 0, None, b"1"), Record("t", 0, None, b"2"))
    assert produce_batch(producer.produce, _report, records, 0) == (2, None)
    assert (producer.taken, producer.reported) == (list(records), [0, 1])


def _of(topic: str, partition: int, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if (record.topic, record.partition) == (topic, partition)]


@pytest.mark.parametrize("arrange", BOTH_ARRANGE)
@pytest.mark.parametrize("partitions", [1, 2, 4, MOST_PARTITIONS])
def test_each_partitions_records_are_neighbours_and_stay_in_order(arrange: Arrange, partitions: int) -> None:
    """Equal topic names and partition numbers may be different objects: they are compared by value."""
    for seed in range(20):
        chance = random.Random(seed)
        records = [
            Record(
                "".join(["t", chance.choice("ab")]),
                chance.randrange(partitions // 2 or 1) + 1000,
                b"%d" % n,
                None,
            )
            for n in range(chance.choice((0, 1, 3, 1000)))
        ]
        ordered = list(arrange(records))
        order = list(dict.fromkeys((record.topic, record.partition) for record in records))
        assert ordered == [record for one in order for record in _of(*one, records)], seed


@pytest.mark.parametrize("arrange", BOTH_ARRANGE)
@pytest.mark.parametrize("is_ordered", [True, False])
def test_records_of_more_partitions_are_left_as_they_are(arrange: Arrange, is_ordered: bool) -> None:
    partitions = MOST_PARTITIONS + (not is_ordered)
    records = [Record("t", n % partitions, b"%d" % n, None) for n in range(300)]
    assert (list(arrange(records)) != records) == is_ordered
    assert sorted(arrange(records)) == sorted(records)


@needs_extension
def test_extension_and_fallback_order_alike() -> None:
    for seed in range(150):
        records = _records(random.Random(seed))
        assert list(by_partition(records)) == list(by_partition_in_python(records)), seed


def test_the_sink_orders_a_chunk_by_partition_and_drops_nothing() -> None:
    """The writer relies on this: the indexes in a partly produced chunk are positions in this order."""
    sink = KafkaSink(SinkSettings("k:9092", "exactly_once", "id", "id", "p", "s"))
    for seed in range(150):
        records = _records(random.Random(seed))
        assert list(sink.by_partition(records)) == list(by_partition_in_python(records)), seed
