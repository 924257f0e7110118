"""The batch ends of `format("cdcd")`, requested in the order in which Spark does, with a real broker."""

from __future__ import annotations

import pytest

from cdcd.lsn import format_lsn
from cdcd.spark.kafka import Cluster, ProgressReader
from cdcd.spark.source import CdcdStreamReader, parse_options
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter
from tests.support.waiting import eventually

COLUMNS = [column("id", "int", required=True)]
COMMITS = 3


def _cuts(topics: TopicsWriter) -> list[int]:
    """Return the number of records in each batch of a new query with one commit a batch."""
    options = {"brokers": topics.bootstrap, "prefix": topics.prefix, "maxCommits": "1"}
    reader = CdcdStreamReader(parse_options(options))
    try:
        start, found = reader.initialOffset(), []
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            records = [record for part in reader.partitions(start, end) for record in reader.read(part)]
            found.append(sum(batch.num_rows for batch in records))
            start = end
        return found
    finally:
        reader.stop()


def _commit(topics: TopicsWriter, items: Table) -> None:
    """Write the commits, and wait until their markers are readable."""
    for number in range(1, COMMITS + 1):
        topics.commit(number * 10, topics.change(items, "c", number * 10, 1, after={"id": number}))
    reader = ProgressReader(topics.bootstrap, {}, topics.progress_topic, Cluster(topics.bootstrap, {}))
    found: set[str] = set()
    try:
        eventually(
            lambda: (
                found.update(commit.commit_lsn for commit in reader.read())
                or format_lsn(COMMITS * 10) in found
            ),
            "every commit can be read",
        )
    finally:
        reader.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_new_query_keeps_to_its_limit_from_the_beginning(topics: TopicsWriter, is_known: bool) -> None:
    """The limit also holds with records before the first progress record: the joining record and the
    topics record.
    """
    items = topics.table("items", COLUMNS)
    if is_known:
        topics.topics_record = b"{}"
    _commit(topics, items)
    assert _cuts(topics) == [1] * COMMITS


def test_a_hole_before_the_first_progress_record_may_be_a_compacted_record(topics: TopicsWriter) -> None:
    """The hole may be the trace of a compaction: partitions of removed records are read to their end, in
    one batch.
    """
    items = topics.table("items", COLUMNS)
    topics.hole()
    _commit(topics, items)
    assert _cuts(topics) == [COMMITS]


def test_a_hole_after_another_slots_record_may_be_a_compacted_record(topics: TopicsWriter) -> None:
    """The other slot's record stays at the start for ever, so a hole after it may be a compacted record of
    this slot.
    """
    items = topics.table("items", COLUMNS)
    topics.slot = b"former"
    topics.commit(5, [])
    topics.slot = b"test"
    topics.hole()
    _commit(topics, items)
    assert _cuts(topics) == [COMMITS]
