"""The broker's own retention under a running query: the log start moves while the query waits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import HistoryMissing
from cdcd.spark import offsets
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.data_source import CdcdReader
from cdcd.spark.source.source_options import parse_options
from tests.spark.events import Table, column
from tests.spark.source_stream import Stream
from tests.spark.topics import PARTITIONS, TopicsWriter
from tests.support.waiting import eventually

COLUMNS = [column("id", "int", required=True)]
OFTEN = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
ROUNDS = 3


@pytest.fixture
def topics(tmp_path: Path, artefacts: Cache, registry: SchemaRegistry) -> Iterator[TopicsWriter]:
    """Yield a writer to a broker that looks for expired segments all the time."""
    with KafkaBroker(tmp_path / "kafka", cache=artefacts, settings=OFTEN) as broker:
        writer = TopicsWriter(broker.bootstrap, registry.url, f"t{uuid.uuid4().hex[:8]}")
        writer.first_offsets = {}
        yield writer
        writer.close()


class Retention:
    """The retention of a table's topic."""

    def __init__(self, topics: TopicsWriter, table: Table) -> None:
        self._admin = AdminClient({"bootstrap.servers": topics.bootstrap})
        self._cluster = Cluster(topics.bootstrap, {})
        self._topic = table.topic

    def expire_all(self) -> None:
        """Have the broker remove all records, with the markers after them, and then retain the next ones."""
        self._set("1")
        eventually(lambda: self.starts() == self._ends(), "the broker has removed all records", 120)
        self._set("-1")

    def starts(self) -> list[int]:
        """Return the first offset of each partition."""
        return [*self._cluster.starts(self._places()).values()]

    def _ends(self) -> list[int]:
        return [*self._cluster.high_watermarks(self._places()).values()]

    def _places(self) -> list[tuple[str, int]]:
        return [(self._topic, number) for number in self._cluster.partitions()[self._topic]]

    def _set(self, retention_ms: str) -> None:
        values = {"retention.ms": retention_ms, "segment.ms": "200"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(30)


def _write(topics: TopicsWriter, table: Table, lsn: int) -> None:
    """Write a commit with a record in each partition."""
    topics.commit(lsn, [(table.topic, number, b"k", None) for number in range(PARTITIONS)])
    topics.wait_until_readable(lsn)


@pytest.mark.nightly
def test_a_query_reads_on_after_the_broker_has_removed_all_that_it_has_read(topics: TopicsWriter) -> None:
    """Retention removes the marker at which the query is. A record that was not read is an error."""
    table = topics.table("items", COLUMNS)
    retention = Retention(topics, table)
    stream = Stream(brokers=topics.bootstrap, prefix=topics.prefix)
    try:
        for number in range(1, ROUNDS + 1):
            before = retention.starts()
            _write(topics, table, 10 * number)
            assert stream.batch() == PARTITIONS
            retention.expire_all()
            assert all(now > then for now, then in zip(retention.starts(), before, strict=True))
            if number % 2:
                stream.again()
        _write(topics, table, 1000)
        assert stream.batch() == PARTITIONS
        _write(topics, table, 1010)
        retention.expire_all()
        _write(topics, table, 1020)
        with pytest.raises(HistoryMissing):
            stream.batch()
    finally:
        stream.reader.stop()


@pytest.mark.nightly
def test_a_batch_from_earliest_has_what_the_broker_has_left(topics: TopicsWriter) -> None:
    """Also the offsets for Spark's own source begin there."""
    table = topics.table("items", COLUMNS)
    retention = Retention(topics, table)
    _write(topics, table, 10)
    retention.expire_all()
    _write(topics, table, 20)
    options = {"brokers": topics.bootstrap, "prefix": topics.prefix}
    reader = CdcdReader(parse_options(options))
    assert sum(one.num_rows for part in reader.partitions() for one in reader.read(part)) == PARTITIONS
    starting = json.loads(offsets(options)["startingOffsets"])[table.topic]
    assert [starting[str(number)] for number in range(PARTITIONS)] == retention.starts()
