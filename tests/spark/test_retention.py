"""The broker's own retention under a running query of Spark: the log start moves while the query waits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.data_source import register
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter
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


class Counted:
    """A query that counts the records of each offset."""

    def __init__(self, spark: SparkSession, topics: TopicsWriter, folder: Path) -> None:
        register(spark)
        options = {"brokers": topics.bootstrap, "prefix": topics.prefix}
        self._changes = spark.readStream.format("cdcd").options(**options).load()
        self._folder = folder
        self.found: list[tuple[str, int, int]] = []

    def start(self) -> StreamingQuery:
        """Start, or continue from the checkpoint."""
        writing = self._changes.writeStream.foreachBatch(self._add)
        return writing.option("checkpointLocation", str(self._folder)).start()

    def _add(self, batch: Any, number: int) -> None:
        self.found += [(one.topic, one.partition, one.offset) for one in batch.collect()]


def _writer(topics: TopicsWriter, table: Table) -> Callable[[int], None]:
    """Return what writes a commit with a row of each partition."""

    def write(lsn: int) -> None:
        topics.commit(lsn, [(table.topic, number, b"k", None) for number in range(3)])

    return write


@pytest.mark.nightly
def test_a_query_reads_on_after_the_broker_has_removed_all_that_it_has_read(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    """Retention removes the marker at which the query is. A record that was not read is an error."""
    table = topics.table("items", COLUMNS)
    retention, write = Retention(topics, table), _writer(topics, table)
    counted = Counted(spark, topics, tmp_path / "checkpoint")
    query = counted.start()
    try:
        for number in range(1, ROUNDS + 1):
            before = retention.starts()
            write(10 * number)
            eventually(lambda: query.exception() or len(counted.found) == 3 * number, "the rows are read")  # noqa: B023
            assert query.exception() is None
            retention.expire_all()
            assert all(now > then for now, then in zip(retention.starts(), before, strict=True))
            if number == 2:
                query.stop()
                query = counted.start()
        write(1000)
        eventually(lambda: query.exception() or len(counted.found) == 3 * (ROUNDS + 1), "the rows are read")
        assert query.exception() is None
        assert len(set(counted.found)) == len(counted.found)
        query.stop()
        write(1010)
        retention.expire_all()
        write(1020)
        query = counted.start()
        with pytest.raises(StreamingQueryException, match="CDCD-HISTORY-MISSING"):
            query.awaitTermination(120)
        assert len(counted.found) == 3 * (ROUNDS + 1)
    finally:
        query.stop()
