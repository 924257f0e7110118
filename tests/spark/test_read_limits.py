"""The limits of a stream's batches where Spark gives the source neither a start nor a limit, as Spark 4.1 does."""

from __future__ import annotations

import threading
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdcd.spark import progress_log
from cdcd.spark.cuts import Offsets
from cdcd.spark.session import run_to_end
from cdcd.spark.source import CdcdStreamReader, register
from cdcd.spark.source_options import parse_options
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter
from tests.support.nightly import nightly

COLUMNS = [column("id", "int", required=True)]
LIMITS = [{"maxCommits": "1"}, nightly({"maxRows": "1"}), nightly({"maxBytes": "1"})]


@pytest.fixture
def items(topics: TopicsWriter) -> Table:
    """A table with four commits of a row each."""
    table = topics.table("items", COLUMNS)
    for number in range(1, 5):
        _commit(topics, table, number)
    topics.wait_until_readable(40)
    return table


def _commit(topics: TopicsWriter, table: Table, number: int) -> None:
    topics.commit(10 * number, topics.change(table, "c", 10 * number, 1, after={"id": number}))


def _reader(topics: TopicsWriter, options: dict[str, str]) -> CdcdStreamReader:
    given = {"brokers": topics.bootstrap, "prefix": topics.prefix, "topics": f"{topics.prefix}.public.items"}
    return CdcdStreamReader(parse_options(given | options))


def _rows(reader: CdcdStreamReader, start: Offsets, end: Offsets) -> int:
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


def _first(reader: CdcdStreamReader) -> tuple[Offsets, int]:
    """Run the first batch of a query, in the order in which Spark 4.1 asks."""
    end = reader.latestOffset()
    return end, _rows(reader, reader.initialOffset(), end)


@pytest.mark.usefixtures("items")
@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_counts_from_the_end_of_the_last_batch(topics: TopicsWriter, limit: dict[str, str]) -> None:
    reader = _reader(topics, limit)
    try:
        end, rows = _first(reader)
        found = [rows]
        while (following := reader.latestOffset()) != end:
            found.append(_rows(reader, end, following))
            end = following
    finally:
        reader.stop()
    assert found == [1, 1, 1, 1]


def test_a_limit_of_bytes_counts_all_tables(topics: TopicsWriter) -> None:
    """Commits of ten rows, in turns in a table of small rows and in one of large rows."""
    limit_bytes, characters, ids = 40_000, {"small": 100, "large": 2000}, range(1, 11)
    tables = {name: topics.table(name, [*COLUMNS, column("text", "string")]) for name in characters}
    for number, name in enumerate(["small", "large"] * 3, 1):
        rows = [{"id": at, "text": "x" * characters[name]} for at in ids]
        sent = [topics.change(tables[name], "c", 10 * number, at, after=rows[at - 1]) for at in ids]
        topics.commit(10 * number, chain.from_iterable(sent))
    topics.wait_until_readable(60)
    given = {"maxBytes": str(limit_bytes), "topics": ",".join(table.topic for table in tables.values())}
    reader = _reader(topics, given)
    try:
        end, found = reader.initialOffset(), []
        while (following := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
            found.append([batch for part in reader.partitions(end, following) for batch in reader.read(part)])
            end = following
    finally:
        reader.stop()
    assert [sum(batch.num_rows for batch in batches) for batches in found] == [30, 20, 10]
    assert all(_bytes_of(batches) <= limit_bytes for batches in found)


def _bytes_of(batches: list[pa.RecordBatch]) -> int:
    values = [value.as_py() for batch in batches for name in ("key", "value") for value in batch[name]]
    return sum(map(len, values))


@pytest.mark.usefixtures("items")
@pytest.mark.parametrize("is_committed", [nightly(True), False])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_restart_goes_on_from_the_checkpoint(
    topics: TopicsWriter, limit: dict[str, str], is_committed: bool
) -> None:
    """Spark plans an empty batch at the last offset of the checkpoint, and the last batch again if it failed."""
    reader = _reader(topics, limit)
    first, _ = _first(reader)
    second = reader.latestOffset()
    reader.stop()
    again = _reader(topics, limit)
    try:
        assert again.partitions(second, second) == []
        if not is_committed:
            assert _rows(again, first, second) == 1
        third = again.latestOffset()
        assert _rows(again, second, third) == 1
    finally:
        again.stop()


@pytest.mark.parametrize("ends", [True, nightly(False)], ids=["available now", "as it comes"])
def test_a_backlog_is_not_read_before_it_is_needed(
    topics: TopicsWriter, items: Table, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The driver stores a few commits of it; a query that ends does so at the commit that was the newest."""
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 4)
    reader = _reader(topics, {"maxCommits": "1"})
    if ends:
        reader.prepareForTriggerAvailableNow()
    try:
        end, found, reported = reader.initialOffset(), [], []
        while (following := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
            found.append((_rows(reader, end, following), len(reader._driver()._log.pending)))
            reported.append(reader.reportLatestOffset())
            if len(found) == 1:
                _commit(topics, items, 5)
                topics.wait_until_readable(50)
            end = following
        assert reader.reportLatestOffset() == end
    finally:
        reader.stop()
    assert [rows for rows, _ in found] == [1] * (4 if ends else 5)
    assert max(stored for _, stored in found) <= 3
    assert reported[0] is None, "it is not known"


@pytest.mark.usefixtures("items")
def test_without_limits_a_backlog_is_one_commit(
    topics: TopicsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 4)
    reader = _reader(topics, {})
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert len(reader._driver()._log.pending) <= 2
        assert _rows(reader, start, end) == 4
    finally:
        reader.stop()


@pytest.mark.usefixtures("items")
def test_a_batch_that_spark_does_not_plan_is_passed(topics: TopicsWriter) -> None:
    """A query whose filter is always false reads nothing; its ends go on all the same."""
    reader = _reader(topics, {"maxCommits": "1"})
    try:
        first, second = reader.latestOffset(), reader.latestOffset()
        assert _rows(reader, first, second) == 1
    finally:
        reader.stop()


@pytest.mark.usefixtures("items")
def test_a_query_that_a_limit_ends_early_is_reported(
    topics: TopicsWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark 4.1 stops the reader after one batch if the trigger is availableNow."""
    for options, is_reported in (({"maxCommits": "1"}, True), ({"maxCommits": "4"}, False), ({}, False)):
        caplog.clear()
        reader = _reader(topics, options)
        _first(reader)
        reader.stop()
        assert ("runs it as a single batch" in caplog.text) == is_reported, options


def test_the_start_of_a_new_query_does_not_move(topics: TopicsWriter, items: Table) -> None:
    """Spark asks for it after the end of the first batch, so a commit may have come in between."""
    reader = _reader(topics, {"startingOffsets": "latest"})
    try:
        end = reader.latestOffset()
        _commit(topics, items, 5)
        topics.wait_until_readable(50)
        assert _rows(reader, reader.initialOffset(), end) == 0
        assert _rows(reader, end, reader.latestOffset()) == 1
    finally:
        reader.stop()


class _Batches:
    """The function of foreachBatch: stores each batch's ids; fails at a batch, or sets `done` after the last id."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.found: list[list[int]] = []
        self.done = threading.Event()

    def __call__(self, batch: DataFrame, number: int) -> None:
        ids = [row["id"] for row in batch.select("after.id").collect()]
        if number == self.fails_at:
            raise ValueError("a batch that fails")
        self.found += [ids] if ids else []
        if ids == [4]:
            self.done.set()


def test_a_query_has_one_commit_a_batch_also_after_a_failure(
    spark: SparkSession, topics: TopicsWriter, items: Table, tmp_path: Path
) -> None:
    register(spark)
    options = topics.connection.options() | {"table": "public.items", "maxCommits": "1"}

    def started(batches: _Batches) -> StreamingQuery:
        writer = spark.readStream.format("cdcd").options(**options).load().writeStream.foreachBatch(batches)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    failing, batches = _Batches(fails_at=2), _Batches()
    assert "a batch that fails" in str(run_to_end(partial(started, failing)))
    assert run_to_end(partial(started, batches), batches.done) is None
    assert failing.found + batches.found == [[1], [2], [3], [4]]
