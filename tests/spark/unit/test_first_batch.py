"""The first batch of a query, which Spark repeats from a start that it asks for once more."""

from __future__ import annotations

import json

import pytest

from cdcd.errors import HistoryMissing
from cdcd.lsn import format_lsn
from cdcd.spark import offsets
from cdcd.spark.source.cuts import of_topics
from tests.support.planned import Planned, PlannedTopic, Query, T, U, options, read


@pytest.fixture
def kafka(kafka: Planned) -> Planned:
    """Return a Kafka with one commit."""
    kafka.topics = {T: PlannedTopic("a", 40)}
    kafka.describe(T)
    kafka.progress(10, {T: 10})
    return kafka


@pytest.mark.parametrize("more", [0, 1])
def test_a_first_batch_that_failed_has_the_same_rows_again(kafka: Planned, more: int) -> None:
    """Also where the newest commit is another one by then; later batches have each row once."""
    query = Query(startingOffsets="latest")
    assert query.batch() == {}
    kafka.progress(20, {T: 20})
    end = query.fail()
    for n in range(more):
        kafka.progress(30 + n, {T: 30 + n})
    assert query.repeat(end) == {T: (10, 20)}
    assert of_topics(end) == {T: {"0": 20}}
    kafka.progress(40, {T: 40})
    assert query.batch() == {T: (20, 40)}
    assert query.again().batch() == {}
    assert set(query.ends[-1]) == {T, f"id/{T}"}, "only the first end has the start"


@pytest.mark.parametrize(
    "start", [{"startingOffsets": "latest"}, {"startingLsn": format_lsn(18)}, {"startingTimestamp": "10001"}]
)
def test_an_empty_first_batch_that_failed_is_empty_again(kafka: Planned, start: dict[str, str]) -> None:
    """The rows that come meanwhile are those of the next batch."""
    query = Query(**start)
    end = query.fail()
    kafka.progress(20, {T: 20})
    assert query.repeat(end) == {}
    assert query.batch() == {T: (10, 20)}
    assert set(query.ends[-1]) == {T, f"id/{T}"}, "only the first end has the start"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_restart_after_it_plans_none_of_its_rows(kafka: Planned, is_deleted: bool) -> None:
    """Kafka may not have them any more."""
    query = Query(startingLsn=format_lsn(15))
    kafka.progress(20, {T: 20})
    assert query.batch() == {T: (10, 20)}
    if is_deleted:
        del kafka.topics[T]
    else:
        kafka.topics[T].start = 15
    assert query.again().batch() == {}


def test_so_has_one_that_started_before_there_was_a_topic(kafka: Planned) -> None:
    kafka.clear()
    topics, kafka.topics = kafka.topics, {}
    query = Query(startingOffsets="latest")
    kafka.progress(5, {})
    assert query.batch() == {}
    kafka.topics = topics
    kafka.progress(20, {T: 20})
    end = query.fail()
    assert query.repeat(end) == {T: (0, 20)}


def test_its_end_is_a_start_of_another_query(kafka: Planned) -> None:
    """As Spark's progress shows it: what it has of its own start is no part of the position."""
    query = Query(startingOffsets="latest")
    query.batch()
    kafka.progress(20, {T: 20})
    assert query.batch() == {T: (10, 20)}
    kafka.progress(30, {T: 30})
    start = json.dumps(query.ends[-1])
    assert read(startingOffsets=start, endingLsn=format_lsn(38)) == {T: (20, 30)}
    assert Query(startingOffsets=start).batch() == {T: (20, 30)}
    assert read(endingOffsets=start) == {T: (0, 20)}


def test_so_has_one_after_a_snapshot(kafka: Planned) -> None:
    kafka.clear()
    kafka.progress(10, {T: 5}, snapshot=[T])
    kafka.progress(10, {T: 10})
    query = Query(startingOffsets="snapshot_end")
    assert query.batch() == {}
    kafka.progress(20, {T: 20})
    end = query.fail()
    kafka.progress(30, {T: 25}, snapshot=[T])
    kafka.progress(30, {T: 30})
    assert query.repeat(end) == {T: (10, 20)}
    assert query.batch() == {T: (20, 30)}


@pytest.mark.parametrize("start", [{}, {"startingLsn": format_lsn(15)}, {"startingTimestamp": "15000"}])
def test_so_has_one_of_any_other_start(kafka: Planned, start: dict[str, str]) -> None:
    kafka.progress(20, {T: 20})
    query = Query(**start)
    end = query.fail()
    kafka.progress(14, {T: 30})
    assert query.repeat(end) == {T: (10 if start else 0, 20)}


FROM_5 = json.dumps({T: {"0": 5}})


@pytest.mark.parametrize(("start", "first"), [({}, 0), ({"startingOffsets": FROM_5}, 5)])
def test_other_options_and_other_first_records_of_kafka_do_not_change_it(
    kafka: Planned, start: dict[str, str], first: int
) -> None:
    """The same batch has no other rows, and none twice: rows that Kafka has removed meanwhile are missing."""
    end = (query := Query(**start)).fail()
    query.with_options(startingOffsets=json.dumps({T: {"0": 8}})).again()
    assert query.repeat(end) == {T: (first, 10)}
    end = (query := Query(**start)).fail()
    kafka.topics[T].start = first + 1
    with pytest.raises(HistoryMissing):
        query.repeat(end)


@pytest.mark.parametrize("begins", [10, 30])
def test_a_topic_that_the_offsets_do_not_name_begins_with_its_first_record(
    kafka: Planned, begins: int
) -> None:
    """Whatever Kafka has removed of it; a batch that failed has the same rows again."""
    kafka.topics = {T: PlannedTopic("a", 30, start=begins), U: PlannedTopic("u", 100)}
    kafka.clear()
    kafka.describe(T, U)
    kafka.progress(5, {T: 5, U: 1}, firsts={T: 0, U: 0})
    kafka.progress(6, {T: 30, U: 50}, firsts={T: 10, U: 20})
    start = json.dumps({U: {"0": 20}})
    moves = {U: (20, 50), **({T: (begins, 30)} if begins < 30 else {})}
    query = Query(startingOffsets=start)
    end = query.fail()
    assert query.repeat(end) == read(startingOffsets=start) == moves
    asked = offsets(options(startingOffsets=start))
    assert json.loads(asked["startingOffsets"]) == {T: {"0": begins}, U: {"0": 20}}
    kafka.progress(7, {T: 35, U: 60}, firsts={T: 30, U: 50})
    kafka.topics[T].end = 35
    assert query.batch() == {T: (30, 35), U: (50, 60)}


def test_a_named_offset_whose_records_kafka_has_removed_is_an_error(kafka: Planned) -> None:
    kafka.topics[T].start = 7
    with pytest.raises(HistoryMissing):
        read(startingOffsets=FROM_5)


def test_the_sizes_of_records_are_estimated_once(kafka: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of a topic is no topic whose records have a size."""
    looked: list[object] = []
    query = Query(maxBytes="1")
    monkeypatch.setattr(query.reader._sizes, "learn", looked.append)
    monkeypatch.setattr(query.reader._sizes, "_offsets_left", {T: 100})
    assert query.batch() == {T: (0, 10)}
    assert looked == []
