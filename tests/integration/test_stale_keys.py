"""The keys of a topic that have no record since a copy began, on a real broker.

The judge is the list of records that the test has written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import SnapshotRefused
from cdcd.sink.settings import SinkSettings
from cdcd.sink.stale_keys import StaleKeys, ends_of
from tests.support.topics import create_topic
from tests.support.waiting import eventually

NUMBERS = count()
PARTITIONS = 2


class Topic:
    """A topic, and a transactional producer."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"stale-{os.getpid()}-{next(NUMBERS)}"
        create_topic(bootstrap, self.name, PARTITIONS)
        self.settings = SinkSettings(bootstrap, "exactly_once", self.name, "test", "unused", "unused")
        self.producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": self.name})
        self.producer.init_transactions(30)

    def begin(self, *records: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
        """Begin a transaction with records, each a key and a value."""
        self.producer.begin_transaction()
        for key, value in records:
            self.producer.produce(self.name, key=key, value=value, partition=partition)
        self.producer.flush(30)

    def write(self, *records: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
        self.begin(*records, partition=partition)
        self.producer.commit_transaction(30)

    def ends(self) -> tuple[int, ...]:
        return ends_of(self.settings, self.name)

    def stale(self, starts: tuple[int, ...], max_bytes: int = 1 << 20) -> list[bytes]:
        keys = StaleKeys(
            self.settings, self.name, starts, None, max_bytes, lambda value: {b"t": True}.get(value)
        )
        try:
            while not keys.read():
                pass
            found: list[bytes] = []
            while some := keys.take(2):
                found += some
            return sorted(found)
        finally:
            keys.close()


@pytest.fixture
def topic(kafka: KafkaBroker) -> Iterator[Topic]:
    return Topic(kafka.bootstrap)


def test_the_last_record_before_the_ends_decides(topic: Topic) -> None:
    topic.write((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", b"1"), (b"e", b"1"))
    topic.write((b"b", None), (b"f", b"1"), partition=0)
    topic.write((b"g", b"1"), partition=1)
    topic.begin((b"aborted", b"1"))
    topic.producer.abort_transaction(30)
    starts = topic.ends()
    topic.write((b"c", b"2"), (b"new", b"1"))
    topic.write((b"d", None))
    topic.begin((b"a", b"2"))
    topic.producer.abort_transaction(30)
    assert topic.stale(starts) == [b"a", b"e", b"f", b"g"]


def test_a_transaction_that_was_open_at_the_beginning(topic: Topic) -> None:
    """Its records precede the ends, and are readable later: the stable end may be below them for a long time."""
    topic.write((b"a", b"1"))
    topic.begin((b"b", b"1"))
    starts = topic.ends()
    keys = StaleKeys(topic.settings, topic.name, starts, None, 1 << 20, lambda value: None)
    assert not keys.read(), "the topic is not shorter than it was"
    topic.producer.commit_transaction(30)
    while not keys.read():
        pass
    assert sorted(keys.take(10)) == [b"a", b"b"]
    keys.close()


def test_a_truncate_leaves_nothing_of_before_in_its_partition(topic: Topic) -> None:
    topic.write((b"a", b"1"), (b"b", b"1"))
    topic.write((b"p", b"1"), partition=1)
    topic.write((None, b"t"))
    topic.write((b"b", b"2"))
    assert topic.stale(topic.ends()) == [b"b", b"p"]


def test_a_key_in_two_partitions_of_a_widened_topic(topic: Topic, kafka: KafkaBroker) -> None:
    topic.write((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    starts = topic.ends()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (future,) = admin.create_partitions([NewPartitions(topic.name, PARTITIONS + 1)]).values()
    future.result(30)
    eventually(lambda: len(topic.ends()) == PARTITIONS + 1, "the topic is wider")
    topic.producer.list_topics(topic.name, timeout=30)
    topic.write((b"a", b"2"), (b"b", None), partition=PARTITIONS)
    assert topic.stale(starts)[-1] == b"c"


Spoil = Callable[[Topic, AdminClient], None]


def _keyless(topic: Topic, admin: AdminClient) -> None:
    topic.write((None, b"a row"))


def _removed(topic: Topic, admin: AdminClient) -> None:
    topic.write((b"a", b"1"))
    place = TopicPartition(topic.name, 0, 1)
    admin.delete_records([place])[place].result(30)


@pytest.mark.parametrize(
    ("spoil", "match"), [(_keyless, "rows without a key"), (_removed, "has removed records")]
)
def test_what_is_not_known_is_refused(topic: Topic, kafka: KafkaBroker, spoil: Spoil, match: str) -> None:
    starts = topic.ends()
    spoil(topic, AdminClient({"bootstrap.servers": kafka.bootstrap}))
    if spoil is _keyless:
        starts = topic.ends()
    with pytest.raises(SnapshotRefused, match=match):
        topic.stale(starts)


def test_a_topic_that_is_shorter_than_it_was_is_refused(topic: Topic) -> None:
    topic.write((b"a", b"1"))
    with pytest.raises(SnapshotRefused, match="fewer records than when the copy began"):
        topic.stale((1_000, 0))


def test_the_file_is_bounded(topic: Topic) -> None:
    topic.write(*((b"%060d" % n, b"1") for n in range(2_000)))
    with pytest.raises(SnapshotRefused, match="could not be stored"):
        topic.stale(topic.ends(), max_bytes=64 * 1024)
