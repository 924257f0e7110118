"""Topics that are deleted, or created again, under a query; and a progress topic that was compacted.

A row that Kafka does not have any more is never awaited in silence, and none that it has is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from pyspark.sql import SparkSession

from cdcd.errors import HistoryMissing, PositionUnavailable, SinkAuthorization
from cdcd.lsn import format_lsn
from cdcd.spark import offsets
from cdcd.spark.clients.kafka import Cluster, check_error
from cdcd.spark.data_source import CdcdReader, CdcdStreamReader
from cdcd.spark.source import progress_log, retained_ranges
from cdcd.spark.source.cuts import Offsets, total, without_start
from cdcd.spark.source.progress_reader import ProgressReader
from cdcd.spark.source.source_options import parse_options
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter, run_mirror
from tests.spark.topics import rows_of as rows_of_mirror
from tests.support.nightly import nightly
from tests.support.waiting import eventually

COLUMNS = [column("id", "int", required=True)]
Row = tuple[str, int]


def batch(topics: TopicsWriter, **more: str) -> list[Row]:
    reader = CdcdReader(parse_options({"brokers": topics.bootstrap, "prefix": topics.prefix, **more}))
    return rows_of(reader, reader.partitions())


def stream(topics: TopicsWriter, **more: str) -> CdcdStreamReader:
    return CdcdStreamReader(parse_options({"brokers": topics.bootstrap, "prefix": topics.prefix, **more}))


def rows_of(reader: CdcdReader | CdcdStreamReader, tasks: Any) -> list[Row]:
    """Return table and offset of each row."""
    rows = [row for task in tasks for one in reader.read(task) for row in one.to_pylist()]
    return sorted((row["topic"].rpartition(".")[2], row["offset"]) for row in rows)


def following(reader: CdcdStreamReader, start: Offsets) -> tuple[list[Row], Offsets]:
    """Return the rows of the next batch, and its end."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return ([], end) if end == start else (rows_of(reader, reader.partitions(start, end)), end)


def write(topics: TopicsWriter, table: Table, numbers: range) -> None:
    """Write a row in each commit, all in one partition."""
    for n in numbers:
        sent = topics.change(table, "c", 10 * n, 1, after={"id": n})
        topics.commit(10 * n, [(topic, 0, key, value) for topic, _, key, value in sent])
    topics.wait_until_readable(10 * numbers[-1])


def delete(topics: TopicsWriter, topic: str) -> None:
    topics.admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in Cluster(topics.bootstrap, {}).partitions(), "the topic is deleted")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_ranges, "SETTLES_WITHIN_S", 0.5)


@pytest.mark.parametrize("more", [nightly(3), 70], ids=["fewer rows than before", "more rows than before"])
def test_a_query_that_has_read_the_former_topic_ends(topics: TopicsWriter, more: int) -> None:
    """A running one, and one that starts again from its checkpoint."""
    items, others = topics.table("items", COLUMNS), topics.table("others", COLUMNS)
    topics.describe(items, others)
    write(topics, items, range(1, 31))
    write(topics, others, range(31, 32))
    running = stream(topics)
    rows, end = following(running, running.initialOffset())
    assert len(rows) == 31
    assert running.reportLatestOffset() == without_start(end)
    assert following(running, end) == ([], end)
    topics.create_again(items.topic)
    topics.describe(items, others)
    write(topics, items, range(32, 32 + more))
    again = stream(topics)
    for reader in (running, again):
        with pytest.raises(PositionUnavailable, match="a topic was recreated"):
            following(reader, end)
        reader.stop()
    assert len(batch(topics)) == more + 1
    with pytest.raises(PositionUnavailable, match="a topic was recreated"):
        batch(topics, startingLsn=format_lsn(100))
    assert len(batch(topics, endingLsn=format_lsn(315))) == 1, "of the former topic nothing is left"
    assert len(batch(topics, startingLsn=format_lsn(320))) == more


def test_a_query_that_begins_with_the_new_topic_reads_all_of_it(
    topics: TopicsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a backlog that the planner does not read at once, in batches of one commit, and after a restart."""
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 4)
    items, others = topics.table("items", COLUMNS), topics.table("others", COLUMNS)
    topics.describe(items, others)
    write(topics, items, range(1, 31))
    write(topics, others, range(31, 33))
    topics.create_again(items.topic)
    topics.describe(items, others)
    write(topics, items, range(33, 43))
    write(topics, others, range(43, 44))
    found: list[Row] = []
    reader = stream(topics, maxCommits="1")
    start, number = reader.initialOffset(), 0
    while True:
        rows, end = following(reader, start)
        if end == start:
            break
        assert len(rows) == 1
        found, start, number = found + rows, json.loads(json.dumps(end)), number + 1
        if number % 4 == 0:
            reader.stop()
            reader = stream(topics, maxCommits="1")
    reader.stop()
    assert [name for name, _ in sorted(found)] == ["items"] * 10 + ["others"] * 3
    assert len(set(found)) == 13


def test_a_mirror_that_has_read_the_former_topic_ends(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    items = topics.table("items", COLUMNS)
    topics.describe(items)
    write(topics, items, range(1, 6))
    assert len(rows_of_mirror(run_mirror(spark, topics, tmp_path / "lake"), items)) == 5
    write(topics, items, range(6, 7))
    assert len(rows_of_mirror(run_mirror(spark, topics, tmp_path / "lake"), items)) == 6
    topics.create_again(items.topic)
    topics.describe(items)
    write(topics, items, range(7, 20))
    for _ in range(2):
        # Spark 4.1's mirror looks for its end itself, before the query starts.
        with pytest.raises(PositionUnavailable, match="a topic was recreated"):
            run_mirror(spark, topics, tmp_path / "lake")
    assert len(rows_of_mirror(run_mirror(spark, topics, tmp_path / "other"), items)) == 13


def test_a_topic_that_is_shorter_than_its_progress_records_is_no_silent_wait(topics: TopicsWriter) -> None:
    """Without the daemon's record of its topics, or between planning and reading."""
    items = topics.table("items", COLUMNS)
    write(topics, items, range(1, 31))
    reader = stream(topics)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    topics.create_again(items.topic)
    with pytest.raises(HistoryMissing, match="recreated"):
        reader.partitions(start, end)
    reader.stop()


def test_a_deleted_topic_is_left_out_of_a_query_that_begins_with_it(topics: TopicsWriter) -> None:
    items, gone = topics.table("items", COLUMNS), topics.table("gone", COLUMNS)
    write(topics, gone, range(1, 2))
    reader = stream(topics)
    rows, read = following(reader, reader.initialOffset())
    assert len(rows) == 1
    write(topics, gone, range(2, 3))
    write(topics, items, range(3, 5))
    end = reader.latestOffset(read, reader.getDefaultReadLimit())
    delete(topics, gone.topic)
    assert [name for name, _ in batch(topics)] == ["items"] * 2
    asked = offsets({"brokers": topics.bootstrap, "prefix": topics.prefix})
    assert list(json.loads(asked["assign"])) == [items.topic]
    with pytest.raises(HistoryMissing, match="a topic was deleted before all of its records were read"):
        reader.partitions(read, end)
    reader.stop()


def test_the_progress_topic_is_created_again(topics: TopicsWriter) -> None:
    items = topics.table("items", COLUMNS)
    write(topics, items, range(1, 6))
    reader = stream(topics)
    _, end = following(reader, reader.initialOffset())
    topics.create_again(topics.progress_topic, 1)
    with pytest.raises(HistoryMissing, match="recreated"):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    reader.stop()


Leave = Callable[[TopicsWriter], None]


def _hole(topics: TopicsWriter) -> None:
    topics.hole()


def _other_slot(topics: TopicsWriter) -> None:
    """Two slots of one name, as after `slot` was changed in the configuration: no record of any was removed."""
    topics.slot = b"before"
    topics.commit(1, [])
    topics.slot = b"test"


@pytest.mark.parametrize("leave", [_hole, nightly(_other_slot)], ids=["compacted", "two slots"])
def test_positions_and_limits_where_not_all_progress_records_are_left(
    topics: TopicsWriter, leave: Leave
) -> None:
    items = topics.table("items", COLUMNS)
    leave(topics)
    write(topics, items, range(1, 6))
    assert len(batch(topics)) == 5
    assert len(batch(topics, startingLsn=format_lsn(40))) == 2
    assert len(batch(topics, startingLsn=format_lsn(20), endingLsn=format_lsn(40))) == 2
    progress = ProgressReader(topics.bootstrap, {}, topics.progress_topic, Cluster(topics.bootstrap, {}))
    start = total([one for one in progress.read() if one.offsets][:2])
    progress.close()
    assert counts_of(topics, start) == [1, 1, 1]


def test_a_restart_on_a_compacted_topic_needs_no_partition_to_be_named(topics: TopicsWriter) -> None:
    """A table that has one row a week would make a restart's backlog one batch."""
    items, rare = topics.table("items", COLUMNS), topics.table("rare", COLUMNS)
    write(topics, rare, range(1, 2))
    topics.slot = b"other"  # from now on it is not known whether there were more records
    write(topics, items, range(2, 4))
    first = stream(topics)
    rows, start = following(first, first.initialOffset())
    first.stop()
    assert len(rows) == 3
    write(topics, items, range(4, 8))
    write(topics, rare, range(8, 9))
    assert counts_of(topics, start) == [1] * 5


def counts_of(topics: TopicsWriter, start: Offsets) -> list[int]:
    """Return the rows of each batch of one commit."""
    reader, counts = stream(topics, maxCommits="1"), []
    while True:
        rows, end = following(reader, start)
        if end == start:
            reader.stop()
            return counts
        counts.append(len(rows))
        start = json.loads(json.dumps(end))


def test_a_partition_that_is_named_late_is_whole_in_the_first_batch(topics: TopicsWriter) -> None:
    """Its first rows are older than the records left; a batch with only the later ones would not end on a commit."""
    items, rare = topics.table("items", COLUMNS), topics.table("rare", COLUMNS)
    topics.hole()
    write(topics, items, range(1, 4))
    write(topics, rare, range(4, 5))
    write(topics, items, range(5, 7))
    reader = stream(topics)
    start = reader.initialOffset()
    reader.stop()
    assert counts_of(topics, start) == [4, 1, 1]


@pytest.mark.parametrize("given", ["latest", nightly("earliest")])
def test_a_query_that_starts_at_the_end_stores_no_backlog(
    topics: TopicsWriter, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 4)
    items = topics.table("items", COLUMNS)
    write(topics, items, range(1, 41))
    reader = stream(topics, startingOffsets=given)
    rows, end = following(reader, reader.initialOffset())
    assert len(rows) == (40 if given == "earliest" else 0)
    assert len(reader._driver()._log.pending) < 5
    write(topics, items, range(41, 43))
    assert len(following(reader, end)[0]) == 2
    reader.stop()


def test_a_missing_right_is_named() -> None:
    with pytest.raises(SinkAuthorization, match="grant the principal Read and Describe") as raised:
        check_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "shop.public.orders", 0)
    assert raised.value.context["topic"] == "shop.public.orders"
