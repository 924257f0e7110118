"""The daemon's part in Spark's tests: Kafka transactions with events and a progress record each.

In: events from `tests.spark.events`.  Out: records on a real broker, committed, aborted or left open.
Invariant: as in wire-format.md: one progress record per Kafka transaction, next offsets after the last record.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdcd.lsn import format_lsn
from cdcd.sink.progress import FIRST_OFFSETS, dump_offsets
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.session import run_to_end
from cdcd.spark.source.progress_reader import ProgressReader
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.target_writer import TargetWriter
from tests.spark.events import Table, progress_value
from tests.support.waiting import eventually

PARTITIONS = 3
Sent = tuple[str, int, bytes | None, bytes | None]


class TopicsWriter:
    """Writes like one daemon with one slot."""

    def __init__(self, bootstrap: str, registry_url: str, prefix: str) -> None:
        self.bootstrap, self.registry_url, self.prefix = bootstrap, registry_url, prefix
        self.progress_topic = f"{prefix}.__progress"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._create(self.progress_topic, 1)
        self.producer = self._producer()
        self.slot = b"test"
        self.topics_record: bytes | None = None
        """The next transaction's record of the topics, under a key of its own."""
        self.loading: tuple[str, ...] = ()
        """The topics of the tables that are being copied at the following commits."""
        self.snapshot: tuple[str, ...] | None = None
        """The topics that the initial snapshot has begun at the following commits; None: it is complete."""
        self.commit_us = 0
        """The commit time in the following progress records."""
        self.first_offsets: dict[str, dict[int, int]] | None = None
        """Those of the open transaction, which its progress record has as a header; None: without one."""
        self.committed = -1
        """The offset of the last commit's progress record."""

    @property
    def connection(self) -> Connection:
        """How a reader connects."""
        return Connection(self.bootstrap, self.prefix, registry=RegistryAccess(self.registry_url))

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"cdcd-{self.prefix}",
                "queue.buffering.max.messages": 1_000_000,
                "linger.ms": 0,  # each test waits for its commits
            }
        )
        producer.init_transactions(60)
        return producer

    def _create(self, topic: str, partitions: int) -> None:
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(60)

    def table(self, name: str, fields: list[dict[str, Any]], key: tuple[str, ...] = ("id",)) -> Table:
        """Return a table whose topic exists."""
        topic = f"{self.prefix}.public.{name}"
        self._create(topic, PARTITIONS)
        return Table(topic, fields, key, self.registry_url)

    def send(self, table: Table, key: bytes | None, value: bytes | None) -> Sent:
        """Return a record for the partition of its key."""
        return table.topic, zlib.crc32(key or b"") % PARTITIONS, key, value

    def change(self, table: Table, op: str, commit_lsn: int, tx_seq: int, **rest: Any) -> list[Sent]:
        """Return the records of a change: a truncation goes to every partition, a tombstone after a delete."""
        key, value = table.event(op, commit_lsn, tx_seq, **rest)
        if op == "t":
            return [(table.topic, partition, None, value) for partition in range(PARTITIONS)]
        sent = [self.send(table, key, value)]
        return [*sent, self.send(table, key, None)] if op == "d" and key is not None else sent

    def commit(self, commit_lsn: int, records: Iterable[Sent]) -> None:
        """Write one Kafka transaction. The progress topic joins it early, by a record without a value."""
        offsets = self.write(records)
        firsts = self.first_offsets
        self.producer.produce(self.progress_topic, key=self.slot + b"/joining", partition=0)
        if self.topics_record is not None:
            self.producer.produce(
                self.progress_topic, key=self.slot + b"/topics", value=self.topics_record, partition=0
            )
            self.topics_record = None
        progress = progress_value(
            commit_lsn, offsets, loading=self.loading, snapshot=self.snapshot, commit_us=self.commit_us
        )
        place: list[int] = []
        self.producer.produce(
            self.progress_topic,
            key=self.slot,
            value=progress,
            partition=0,
            headers=[] if firsts is None else [(FIRST_OFFSETS, dump_offsets(firsts))],
            on_delivery=lambda _, message: place.append(message.offset()),
        )
        self.producer.commit_transaction(60)
        (self.committed,) = place

    def wait_until_readable(self, last: int) -> None:
        """Wait until the progress record of a commit is readable."""
        reader = ProgressReader(self.bootstrap, {}, self.progress_topic, Cluster(self.bootstrap, {}))
        found: set[str] = set()

        def is_readable() -> bool:
            found.update(commit.commit_lsn for commit in reader.read())
            return format_lsn(last) in found

        try:
            eventually(
                is_readable,
                "every commit can be read",
            )
        finally:
            reader.close()

    def wait_until_visible(self) -> None:
        """Wait until the last commit's progress record is: Kafka answers before it has written the markers."""
        place = (self.progress_topic, 0)
        cluster = Cluster(self.bootstrap, {})
        eventually(lambda: cluster.ends([place])[place] > self.committed, "the last commit is visible")

    def write(self, records: Iterable[Sent]) -> dict[str, dict[int, int]]:
        """Begin a Kafka transaction, write into it and leave it open; return the next offsets."""
        offsets: dict[str, dict[int, int]] = {}

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            if self.first_offsets is not None:
                self.first_offsets.setdefault(message.topic(), {}).setdefault(
                    message.partition(), message.offset()
                )
            reached = offsets.setdefault(message.topic(), {})
            reached[message.partition()] = max(message.offset() + 1, reached.get(message.partition(), 0))

        self.producer.begin_transaction()
        if self.first_offsets is not None:
            self.first_offsets = {}
        for topic, partition, key, value in records:
            self.producer.produce(topic, key=key, value=value, partition=partition, on_delivery=delivered)
        self.producer.flush(60)
        return offsets

    def abort(self) -> None:
        """Abort the open Kafka transaction."""
        self.producer.abort_transaction(60)

    def hole(self) -> None:
        """Leave a hole in the progress topic: readers do not see the aborted record."""
        self.producer.begin_transaction()
        self.producer.produce(self.progress_topic, key=self.slot, value=b"{}", partition=0)
        self.producer.flush(60)
        self.abort()

    def describe(self, *tables: Table) -> None:
        """Write the ids of the tables' topics with the next transaction, as the daemon does."""
        topics = [table.topic for table in tables]
        ids = Cluster(self.bootstrap, {})
        eventually(lambda: len(ids.ids(topics)) == len(topics), "the broker knows the topics")
        identities = TopicIdentities()
        for topic, one in ids.ids(topics).items():
            identities.take(topic, TopicIdentity(one, PARTITIONS))
        self.topics_record = identities.dump()

    def create_again(self, topic: str, partitions: int = PARTITIONS) -> None:
        """Delete a topic and create it, as an operator does before `cdcd resume --accept-topic`."""
        self.admin.delete_topics([topic])[topic].result(30)

        def is_created() -> bool:
            try:
                self._create(topic, partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # its deletion has not ended
                    raise
                return False
            return True

        eventually(is_created, "the topic is created")
        self.close()
        self.producer = self._producer()  # the former one knows the former topic

    def close(self) -> None:
        """Close the producer; no transaction stays open."""
        with suppress(KafkaException):
            self.producer.abort_transaction(10)
        del self.producer  # otherwise its threads would continue to connect to a stopped broker


def rewind(target: Path) -> None:
    """Let the next batch repeat all records: a version without offsets."""
    found = read_latest(target)
    assert found is not None
    TargetWriter(target, found).publish(replace(found, offsets={}))


def run_mirror(spark: SparkSession, topics: TopicsWriter, target: Path, /, **options: Any) -> Mirror:
    """Run the mirror until it has read all records, and open it."""
    topics.wait_until_visible()
    start = partial(mirror, spark, topics.connection, str(target), **{"on_error": "fail", **options})
    if failure := run_to_end(start):
        raise failure
    return read_mirror(target)


def rows_of(opened: Mirror, table: Table) -> list[dict[str, Any]]:
    """Return a table's rows ordered by all their values; `__special` only in rows that have it."""
    rows = [
        {name: value for name, value in row.items() if name != "__special" or value}
        for row in opened.table(table.topic).to_pylist()
    ]
    return sorted(rows, key=repr)
