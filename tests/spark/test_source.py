"""The batch ends of `format("cdcd")`, requested in the order in which Spark does, with a real broker."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition

from cdcd.errors import ConfigError, PositionUnavailable, SnapshotIncomplete
from cdcd.spark.data_source import CdcdReader, CdcdStreamReader
from cdcd.spark.source import progress_log
from cdcd.spark.source.commits import Commits
from cdcd.spark.source.cuts import Offsets, loading_of, of_topics, without_start
from cdcd.spark.source.source_options import parse_options
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter
from tests.support.hints import hint_of
from tests.support.nightly import nightly

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


Batch = tuple[int, list[str]]


def _batches(
    writer: TopicsWriter, start: Offsets | None, **options: str
) -> tuple[list[Batch], list[Offsets]]:
    """Return the number of records and the loading tables of each batch; and the offsets between the batches."""
    options = {"brokers": writer.bootstrap, "prefix": writer.prefix, "maxRows": "1", **options}
    if start is not None:
        options["startingOffsets"] = json.dumps(start)
    reader = CdcdStreamReader(parse_options(options))
    try:
        start, found = reader.initialOffset(), []
        places = [start]
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            rows = [
                row
                for part in reader.partitions(start, end)
                for batch in reader.read(part)
                for row in batch.to_pylist()
            ]
            marks = [row for row in rows if row["topic"].startswith("loading/")]
            assert all(row["key"] is None and row["value"] is None for row in marks)
            found.append((len(rows) - len(marks), [row["topic"].removeprefix("loading/") for row in marks]))
            start = end
            places.append(end)
        return found, places
    finally:
        reader.stop()


@pytest.mark.parametrize("is_short", [True, nightly(False)], ids=["short", "long"])
def test_a_batch_says_which_tables_are_loading_at_its_end(topics: TopicsWriter, is_short: bool) -> None:
    """The end of a copy is a batch even without records; a restart begins with the tables that its start has."""
    items, others = topics.table("items", COLUMNS), topics.table("others", COLUMNS)
    for number, loading in enumerate([(), (items, others), (others,), (others,)], 1):
        topics.loading = tuple(table.topic for table in loading)
        topics.commit(10 * number, topics.change(items, "c", 10 * number, 1, after={"id": number}))
    topics.commit(50, [])
    expected = [(1, []), (1, [items.topic, others.topic]), (1, [others.topic]), (1, [others.topic])]
    topics.wait_until_readable(50)
    found, places = _batches(topics, None, loading="true")
    assert found == expected
    end = places[-1]
    assert loading_of(end) == {others.topic}
    for number, place in enumerate(places):
        if number == 2 or not is_short:
            assert _batches(topics, place, loading="true")[0] == expected[number:]
    topics.loading = ()
    topics.commit(60, [])
    topics.commit(70, [])
    topics.wait_until_readable(70)
    assert _batches(topics, end, loading="true")[0] == [(0, [])]
    if is_short:
        return
    only_items = _batches(topics, None, loading="true", topics=items.topic)[0]
    assert only_items == [(1, []), (1, [items.topic]), (1, []), (1, [])]
    without, places = _batches(topics, None)
    assert without == [(1, [])] * 4, "other queries see neither the tables nor a batch without records"
    assert places[-1] == of_topics(end)


def test_a_compacted_progress_topic_says_which_tables_are_loading(topics: TopicsWriter) -> None:
    items = topics.table("items", COLUMNS)
    topics.loading = (items.topic,)
    topics.commit(10, topics.change(items, "c", 10, 1, after={"id": 1}))
    topics.commit(20, [])
    # The first three offsets are the joining record, the first progress record and the marker.
    for future in topics.admin.delete_records([TopicPartition(topics.progress_topic, 0, 3)]).values():
        future.result(30)
    topics.wait_until_readable(20)
    found, places = _batches(topics, None, loading="true")
    assert found == [(1, [items.topic])]
    topics.loading = ()
    topics.commit(30, [])
    for future in topics.admin.delete_records([TopicPartition(topics.progress_topic, 0, 6)]).values():
        future.result(30)
    topics.wait_until_readable(30)
    assert _batches(topics, places[-1], loading="true")[0] == [(0, [])]


@pytest.mark.parametrize("limit", ["maxRows", nightly("maxCommits")])
def test_a_snapshot_is_one_batch_whatever_the_limits(topics: TopicsWriter, limit: str) -> None:
    """A new query, one that waits, and a batch: none has rows of the snapshot before its end."""
    items = topics.table("items", COLUMNS)
    options = {"brokers": topics.bootstrap, "prefix": topics.prefix, limit: "1"}
    stream, batch = CdcdStreamReader(parse_options(options)), CdcdReader(parse_options(options))
    topics.snapshot = (items.topic,)
    for number in range(1, 4):
        topics.commit(9, topics.change(items, "r", 9, number, after={"id": number}))
    topics.wait_until_readable(9)
    try:
        start = stream.initialOffset()
        assert without_start(stream.latestOffset(start, stream.getDefaultReadLimit())) == start
        with pytest.raises(SnapshotIncomplete) as raised:
            batch.partitions()
        assert "`state` of /status is `streaming`" in hint_of(str(raised.value))
        topics.snapshot = None
        topics.commit(10, topics.change(items, "r", 9, 4, after={"id": 4}))
        topics.commit(11, topics.change(items, "c", 11, 1, after={"id": 5}))
        topics.wait_until_readable(11)
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert (
            sum(part.end - part.start for task in stream.partitions(start, end) for part in task.value) >= 4
        )
    finally:
        stream.stop()
    assert _batches(topics, None, **{"maxRows": "1000", limit: "1"})[0] == [(4, []), (1, [])]


def _commit(topics: TopicsWriter, items: Table) -> None:
    """Write the commits, each in another partition, and wait until their markers are readable."""
    for number in range(1, COMMITS + 1):
        ((topic, _, key, value),) = topics.change(items, "c", number * 10, 1, after={"id": number})
        topics.commit(number * 10, [(topic, number % COMMITS, key, value)])
    topics.wait_until_readable(COMMITS * 10)


def test_the_newest_commit_is_in_the_progress_of_a_limited_stream(topics: TopicsWriter) -> None:
    """It is the end that a stream without limits would have, whatever the batches have read."""
    items = topics.table("items", COLUMNS)
    _commit(topics, items)
    options = {"brokers": topics.bootstrap, "prefix": topics.prefix}
    limited, whole = (CdcdStreamReader(parse_options(options | more)) for more in ({"maxCommits": "1"}, {}))
    try:
        assert limited.reportLatestOffset() is None
        start = limited.initialOffset()
        newest = whole.latestOffset(start, whole.getDefaultReadLimit())
        assert whole.reportLatestOffset() == newest
        for _ in range(COMMITS):
            assert start != newest
            start = limited.latestOffset(start, limited.getDefaultReadLimit())
            assert limited.reportLatestOffset() == newest
        assert start == newest
    finally:
        limited.stop()
        whole.stop()


@pytest.mark.parametrize("limits", [nightly({}), {"maxCommits": "2"}])
def test_the_driver_forgets_the_commits_that_are_read(
    topics: TopicsWriter, limits: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream runs for months; and of one that starts again, the topic has the commits of days before its start."""
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 4)
    items = topics.table("items", COLUMNS)
    _commit(topics, items)
    options = parse_options({"brokers": topics.bootstrap, "prefix": topics.prefix, **limits})
    reader, again = CdcdStreamReader(options), Commits(options)
    try:
        end = reader.initialOffset()
        while (following := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
            end = following
        assert reader._commits is not None
        assert len(reader._commits._log.pending) == 1
        again.refresh(end)
        assert len(again._log.pending) < COMMITS
        assert again.newest(end) == end
    finally:
        reader.stop()
        again.close()


@pytest.mark.parametrize("is_known", [nightly(True), False])
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


@pytest.mark.nightly
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


def test_a_prefix_that_nobody_writes_under_is_named(
    topics: TopicsWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch is an error; a stream waits for the first record, and says so once."""
    table = topics.table("items", COLUMNS)
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1}))
    options = parse_options({"brokers": topics.bootstrap, "prefix": topics.prefix + "p"})
    with pytest.raises(PositionUnavailable, match=rf"no topic {topics.prefix}p\.__progress") as caught:
        CdcdReader(options).partitions()
    assert "correct the prefix" in caught.value.advice
    with caplog.at_level("WARNING", "cdcd.spark.data_source"):
        reader = CdcdStreamReader(options.of_a_stream())
        start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        assert [reader.latestOffset(start, limit) for _ in range(2)] == [start, start]
        reader.stop()
    assert [topics.prefix + "p.__progress" in line for line in caplog.messages] == [True]


def test_every_wrong_value_of_an_option_is_named() -> None:
    options = {
        "prefix": "shop",
        "maxRows": "many",
        "readers": "0",
        "loading": "yes",
        "startingOffsets": "newest",
        "endingLsn": "12",
        "topic": "shop.public.items",
    }
    with pytest.raises(ConfigError) as raised:
        parse_options(options)
    assert raised.value.problems == (
        "option topic is unknown - did you mean topics?",
        "option maxRows has to be a whole number from 1",
        "option readers has to be a whole number from 1",
        "option loading has to be true or false",
        'option startingOffsets has to be earliest, latest, snapshot_end, or offsets as {"TOPIC": {"0": OFFSET}}',
        "option endingLsn has to be an LSN as PostgreSQL prints it, as 16/B374D848",
        "option brokers is required, or config with the path of the daemon's configuration",
    )
