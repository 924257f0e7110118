"""Topics that were deleted: a new query leaves them out, one that has read them ends."""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest

from cdcd.errors import HistoryMissing, SinkAuthorization, SinkUnavailable
from cdcd.lsn import format_lsn
from cdcd.spark import offsets
from cdcd.spark.source.cuts import has_records, without_start
from tests.support.planned import Planned, PlannedTopic, Query, T, U, options, read


@pytest.fixture
def kafka(kafka: Planned) -> Planned:
    """Return a Kafka of which a topic with three commits was deleted; another one has a commit after them."""
    kafka.topics = {T: PlannedTopic("a", 3), U: PlannedTopic("u", 10)}
    kafka.describe(T, U)
    del kafka.topics[T]
    for n in (1, 2, 3):
        kafka.progress(10 * n, {T: n})
    kafka.progress(40, {U: 1})
    return kafka


@pytest.mark.parametrize("limits", [{}, {"maxCommits": "1"}, {"maxRows": "1"}, {"maxBytes": "1"}])
@pytest.mark.usefixtures("kafka")
def test_a_deleted_topic_is_left_out_of_a_new_query_whatever_its_limits(limits: dict[str, str]) -> None:
    query = Query(**limits)
    assert query.batch() == {U: (0, 1)}
    assert query.batch() == query.again().batch() == {}
    assert query.ends
    assert all(T not in end for end in query.ends)
    assert query.reader.reportLatestOffset() == without_start(query.ends[-1])


def test_records_that_are_read_later_name_it_too(kafka: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcd.spark.source.progress_log.READ_OFFSETS", 4)
    for n in range(2, 10):
        kafka.progress(10 * n + 30, {U: n, T: n + 2})
    query = Query(maxCommits="1")
    assert [query.batch() for _ in range(9)] == [{U: (n, n + 1)} for n in range(9)]
    assert all(T not in end for end in query.ends)


@pytest.mark.parametrize("start", [{"startingLsn": format_lsn(20)}, {"startingTimestamp": "20000"}])
@pytest.mark.usefixtures("kafka")
def test_a_start_before_the_deletion_leaves_it_out(start: dict[str, str]) -> None:
    """Also a batch read, and the offsets for Spark's own source, which would wait for the topic."""
    assert read(**start) == {U: (0, 1)}
    assert Query(**start).batch() == {U: (0, 1)}
    for end in ({}, {"endingLsn": format_lsn(48)}):
        assert json.loads(offsets(options(**start, **end))["assign"]) == {U: [0]}


def test_a_topic_that_is_equal_at_start_and_end_is_not_assigned(kafka: Planned) -> None:
    kafka.progress(50, {U: 2})
    asked = offsets(options(startingLsn=format_lsn(40), endingLsn=format_lsn(50)))
    assert json.loads(asked["startingOffsets"]) == {U: {"0": 0}}
    assert json.loads(asked["endingOffsets"]) == {U: {"0": 1}}


@pytest.mark.usefixtures("kafka")
def test_a_batch_read_from_offsets_inside_it_is_an_error() -> None:
    for end in ({}, {"endingLsn": format_lsn(40)}):
        with pytest.raises(HistoryMissing, match="a topic was deleted"):
            read(startingOffsets=json.dumps({T: {"0": 1}}), **end)


def test_a_query_that_has_read_some_of_it_ends(kafka: Planned) -> None:
    kafka.topics[T] = PlannedTopic("a", 3)
    query = Query(maxCommits="1")
    assert query.batch() == {T: (0, 1)}
    del kafka.topics[T]
    for _ in range(2):
        with pytest.raises(HistoryMissing, match="a topic was deleted"):
            query.batch()
        query.again()


def test_a_topic_that_is_deleted_before_the_query_comes_to_it_is_left_out(kafka: Planned) -> None:
    kafka.topics[T] = PlannedTopic("a", 3)
    kafka.log, kafka.place = kafka.log[:1], 1
    for n in (1, 2, 3):
        kafka.progress(10 * n, {U: n})
        kafka.progress(10 * n + 5, {T: n})
    query = Query(maxCommits="1")
    assert query.batch() == {U: (0, 1)}
    del kafka.topics[T]
    assert [query.batch() for _ in range(3)] == [{U: (1, 2)}, {U: (2, 3)}, {}]
    assert query.again().batch() == {}
    assert not has_records(query.ends[-1], T)


@pytest.mark.parametrize("is_same_process", [True, False])
def test_so_is_one_of_a_backlog_that_is_not_read_yet(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch, is_same_process: bool
) -> None:
    monkeypatch.setattr("cdcd.spark.source.progress_log.READ_OFFSETS", 40)
    kafka.topics[T] = PlannedTopic("a", 100)
    kafka.topics[U].end = 100
    kafka.log, kafka.place = kafka.log[:1], 1
    kafka.progress(10, {U: 1})
    for n in range(2, 60):
        kafka.progress(10 * n, {U: n, T: n})
    query = Query(maxCommits="1")
    assert query.batch() == {U: (0, 1)}
    assert query.reader._driver().is_behind
    del kafka.topics[T]
    for n in range(1, 59):
        assert (query if is_same_process else query.again()).batch() == {U: (n, n + 1)}
    assert not has_records(query.ends[-1], T)


def test_the_driver_does_not_store_the_commits_of_a_deleted_topic(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be millions before the first one of another topic."""
    monkeypatch.setattr("cdcd.spark.source.progress_log.READ_OFFSETS", 10)
    kafka.log, kafka.place = kafka.log[:1], 1
    for n in range(1, 200):
        kafka.progress(10 * n, {T: n})
    kafka.progress(2000, {U: 1})
    query, listed, stored = Query(maxCommits="1"), kafka.missing, []

    def missing(topics: Collection[str]) -> frozenset[str]:
        stored.append(len(query.reader._driver()._log.pending))
        return listed(topics)

    monkeypatch.setattr(kafka, "missing", missing)
    assert query.batch() == {U: (0, 1)}
    assert max(stored) < 20


@pytest.mark.parametrize("is_same_process", [True, False])
def test_all_rows_are_read_when_it_is_created_again(kafka: Planned, is_same_process: bool) -> None:
    query = Query()
    assert query.batch() == {U: (0, 1)}
    kafka.topics[T] = PlannedTopic("b", 40)
    kafka.describe(T, U)
    kafka.progress(50, {T: 5, U: 2})
    assert (query if is_same_process else query.again()).batch() == {T: (0, 5), U: (1, 2)}
    kafka.progress(60, {T: 40})
    assert query.batch() == {T: (5, 40)}


@pytest.mark.parametrize(
    ("start", "is_same_process"),
    [
        ({"startingOffsets": "latest"}, True),
        ({"startingLsn": format_lsn(40)}, True),
        ({"startingLsn": format_lsn(40)}, False),
    ],
)
def test_all_rows_are_read_where_a_query_starts_while_it_is_missing(
    kafka: Planned, start: dict[str, str], is_same_process: bool
) -> None:
    """The daemon is halted then, and continues by `cdcd resume --accept-topic`."""
    query = Query(**start)
    query.batch()
    kafka.topics[T] = PlannedTopic("b", 40)
    kafka.describe(U)
    kafka.progress(40, {})
    kafka.describe(T, U)
    kafka.progress(50, {T: 5, U: 2})
    assert (query if is_same_process else query.again()).batch()[T] == (0, 5)


def test_a_broker_that_lists_the_new_topic_later_drops_no_rows(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()
    assert query.batch() == {U: (0, 1)}
    kafka.topics[T] = PlannedTopic("b", 40)
    kafka.describe(T, U)
    kafka.progress(50, {T: 5, U: 2})
    listed, answers = kafka.partitions, [1, 2, 3]

    def late() -> dict[str, list[int]]:
        return {
            name: found for name, found in listed().items() if name != T or not answers or not answers.pop()
        }

    monkeypatch.setattr(kafka, "partitions", late)
    monkeypatch.setattr("cdcd.spark.source.retained_ranges.SETTLES_WITHIN_S", 5.0)
    assert query.batch() == {T: (0, 5), U: (1, 2)}


def test_a_topic_that_may_not_be_described_was_not_deleted(kafka: Planned) -> None:
    """The read reports the right that is missing; no rows are left out."""
    kafka.topics[T] = PlannedTopic("a", 3)
    kafka.hidden.add(T)
    for asked in ({}, {"topics": T}, {"maxRows": "1"}):
        with pytest.raises(SinkAuthorization):
            Query(**asked).batch()
    with pytest.raises(SinkAuthorization):
        read(topics=T)
    with pytest.raises(SinkAuthorization):
        offsets(options())


def test_nor_was_one_with_a_topic_that_is_deleted_later(kafka: Planned) -> None:
    kafka.topics[T] = PlannedTopic("a", 3)
    query = Query()
    end = query.fail()
    kafka.hidden.add(U)
    del kafka.topics[T]
    with pytest.raises(SinkAuthorization):
        query.repeat(end)


def test_a_partition_that_is_listed_but_not_known_to_its_leader_is_an_error(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No endless wait."""
    kafka.topics[T] = PlannedTopic("a", 3)
    query = Query()
    end = query.fail()
    existing = kafka.partitions()
    del kafka.topics[T]
    monkeypatch.setattr(kafka, "partitions", lambda: existing)
    with pytest.raises(SinkUnavailable):
        query.repeat(end)
