"""A table that is quiet for longer than the retention: Kafka removes the marker after its last record, too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import HistoryMissing
from tests.spark.events import Table, column
from tests.spark.source_stream import Stream
from tests.spark.topics import TopicsWriter, rows_of, run_mirror
from tests.support.daemon import Daemon
from tests.support.forked import Forks
from tests.support.stack import run
from tests.support.waiting import eventually

COLUMNS = [column("id", "int", required=True)]


@pytest.fixture
def items(topics: TopicsWriter) -> Table:
    """Return a table whose transactions have their first offsets."""
    topics.first_offsets = {}
    return topics.table("items", COLUMNS)


def _write(topics: TopicsWriter, items: Table, lsn: int, changes: int = 2) -> None:
    """Write a commit with rows of one key."""
    rows = [topics.change(items, "c", lsn, number, after={"id": 1})[0] for number in range(changes)]
    topics.commit(lsn, rows)
    topics.wait_until_readable(lsn)


def _remove(topics: TopicsWriter, stream: Stream, items: Table, more: int) -> int:
    """Remove the records before the stream's position in its partition, and some more; return the first left."""
    assert stream.reached is not None
    ((partition, offset),) = [one for one in stream.reached[items.topic].items() if one[1]]
    place = TopicPartition(items.topic, int(partition), offset + more)
    return int(topics.admin.delete_records([place])[place].result(30).low_watermark)


@pytest.mark.parametrize("is_new_process", [True, False])
@pytest.mark.parametrize("limits", [{}, {"maxCommits": "1"}])
def test_a_removed_marker_is_no_loss(
    topics: TopicsWriter, items: Table, is_new_process: bool, limits: dict[str, str]
) -> None:
    stream = Stream(brokers=topics.bootstrap, prefix=topics.prefix, **limits)
    _write(topics, items, 10)
    assert stream.batch() == 2
    _remove(topics, stream, items, 1)
    _write(topics, items, 20)
    if is_new_process:
        stream.again()
    assert stream.batch() == 2
    stream.reader.stop()


def test_a_batch_that_is_repeated_after_the_removal(topics: TopicsWriter, items: Table) -> None:
    """Its plan is the first that a new process makes."""
    stream = Stream(brokers=topics.bootstrap, prefix=topics.prefix)
    _write(topics, items, 10)
    stream.batch()
    _write(topics, items, 20)
    end = stream.planned()
    _remove(topics, stream, items, 1)
    assert stream.again().read(end) == 2
    stream.reader.stop()


def test_an_aborted_transaction_before_it_is_no_loss(topics: TopicsWriter, items: Table) -> None:
    stream = Stream(brokers=topics.bootstrap, prefix=topics.prefix)
    _write(topics, items, 10)
    stream.batch()
    topics.write(topics.change(items, "c", 20, 1, after={"id": 1}))
    topics.abort()
    _write(topics, items, 30)
    _remove(topics, stream, items, 3)
    assert stream.batch() == 2
    stream.reader.stop()


@pytest.mark.parametrize("has_headers", [True, False])
def test_a_removed_row_is_an_error(topics: TopicsWriter, items: Table, has_headers: bool) -> None:
    """Of the next transaction, or of the one after which only its second row is left."""
    stream = Stream(brokers=topics.bootstrap, prefix=topics.prefix)
    _write(topics, items, 10)
    stream.batch()
    topics.first_offsets = {} if has_headers else None
    _write(topics, items, 20)
    _remove(topics, stream, items, 2 if has_headers else 1)
    with pytest.raises(HistoryMissing):
        stream.batch()
    stream.reader.stop()


def test_an_earlier_transaction_that_was_removed_is_an_error(topics: TopicsWriter, items: Table) -> None:
    """The first offset is that of all commits between start and end."""
    stream = Stream(brokers=topics.bootstrap, prefix=topics.prefix)
    _write(topics, items, 10)
    stream.batch()
    _write(topics, items, 20, changes=1)
    _write(topics, items, 30)
    _remove(topics, stream, items, 3)
    with pytest.raises(HistoryMissing):
        stream.batch()
    stream.reader.stop()


def test_a_mirror_continues_after_the_removal(
    spark: SparkSession, topics: TopicsWriter, items: Table, target: Path
) -> None:
    _write(topics, items, 10)
    opened = run_mirror(spark, topics, target)
    assert rows_of(opened, items) == [{"id": 1}]
    removed = [
        TopicPartition(items.topic, int(number), offset + 1)
        for number, offset in opened.version.offsets[items.topic].items()
        if offset
    ]
    for future in topics.admin.delete_records(removed).values():
        future.result(30)
    topics.commit(20, topics.change(items, "d", 20, 1, before={"id": 1}))
    assert rows_of(run_mirror(spark, topics, target), items) == []


@pytest.fixture
def daemon(
    tmp_path: Path,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    forks: Forks,
) -> Iterator[Daemon]:
    """Yield a daemon of a quiet table and a busy one, whose topics have one partition."""
    for table in ("quiet", "busy"):
        run(
            postgres,
            database,
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int)",
            f"INSERT INTO {table} VALUES (1, 0)",
        )
    name = f"quiet{database}"
    run(postgres, database, f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES")
    made = Daemon(
        tmp_path / "cdcd",
        name,
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
        sink={"topics": {"partitions": 1, "replication_factor": 1}},
    )
    made.spawn, made.run_command = forks.spawn, forks.run
    yield made
    made.__exit__()


def test_a_stream_continues_after_a_table_was_quiet_for_longer_than_the_retention(
    daemon: Daemon, postgres: PostgresServer, database: str, kafka: KafkaBroker
) -> None:
    """The real daemon writes the offsets that prove that nothing is lost."""
    daemon.start().wait_state("streaming")
    numbers = count(1)

    def reads_change_of(table: str, records: int = 1) -> None:
        """Change a table; wait until the stream has read this number of records, with the change."""
        run(postgres, database, f"UPDATE {table} SET n = {next(numbers)}")
        found: list[int] = []
        eventually(
            lambda: found.append(stream.batch()) or sum(found) >= records, f"the change of {table} is read"
        )
        assert sum(found) == records

    stream = Stream(brokers=kafka.bootstrap, prefix=daemon.name)
    reads_change_of("quiet", records=3)
    assert stream.reached is not None
    topic = f"{daemon.name}.public.quiet"
    place = TopicPartition(topic, 0, stream.reached[topic]["0"] + 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([place])[place].result(30)
    for table in ("busy", "quiet", "quiet"):
        reads_change_of(table)
        stream.again()
    stream.reader.stop()
