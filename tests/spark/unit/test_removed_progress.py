"""A progress topic that has lost records to compaction: what the records that are left do not prove."""

from __future__ import annotations

import pytest

from cdcd.errors import HistoryMissing, PositionUnavailable, SinkAuthorization
from cdcd.lsn import format_lsn
from cdcd.spark.source import progress_log
from cdcd.spark.source.commits import Commits
from cdcd.spark.source.source_options import parse_options
from tests.support.planned import Moves, Planned, PlannedTopic, Query, T, U, V, X, options, read


def rest(kafka: Planned, slot: str = "s", begin: int = 3) -> None:
    """Write commits of U alone; of those before the last one none is left."""
    for n in range(begin, 9):
        kafka.progress(10 * n, {U: n}, slot)
    kafka.compact([slot], kafka.place - 1)
    kafka.progress(100, {U: 9}, slot)
    kafka.topics[U].end = 9


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_record_of_a_former_slot_proves_nothing_of_its_successor(
    kafka: Planned, is_running: bool, is_inside: bool
) -> None:
    """The former one's last record remains for ever. Its successor's records of X are removed, and X rests."""
    kafka.topics = {X: PlannedTopic("x", 40), U: PlannedTopic("u", 100)}
    kafka.describe(U, X, slot="old")
    kafka.progress(10, {X: 22, U: 1}, "old", snapshot=[X] if is_inside else None)
    query = Query()
    before: Moves = query.batch() if is_running else {}
    kafka.describe(U, X, slot="new")
    kafka.progress(20, {X: 40, U: 2}, "new")
    rest(kafka, "new")
    after = query.again().batch()
    assert {topic: after[topic][1] for topic in after} == {X: 40, U: 9}
    assert {topic: after[topic][0] for topic in after} == {
        topic: before.get(topic, (0, 0))[1] for topic in (X, U)
    }
    assert read() == {X: (0, 40), U: (0, 9)}


@pytest.mark.parametrize("had_it_before", [True, False])
def test_a_query_of_more_topics_than_before_reads_all_records_of_the_others(
    kafka: Planned, had_it_before: bool
) -> None:
    kafka.topics = {T: PlannedTopic("t", 30), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(5, {U: 1, T: 10} if had_it_before else {U: 1})
    query = Query(topics=f"{T},{U}" if had_it_before else U)
    query.batch()
    query.with_options(topics=U).again()
    kafka.progress(6, {T: 30})
    rest(kafka, begin=2)
    assert query.batch() == {U: (1, 9)}
    query.with_options(topics=f"{T},{U}").again()
    assert query.batch() == {T: (10 if had_it_before else 0, 30)}
    kafka.topics[U].end = 10
    kafka.progress(110, {U: 10})
    assert query.batch() == {U: (9, 10)}


@pytest.mark.parametrize("had_it_before", [True, False])
def test_removed_rows_of_a_topic_that_a_query_did_not_follow_are_an_error(
    kafka: Planned, had_it_before: bool
) -> None:
    """The records that named these rows are compacted, and the first offset of the next ones does not prove them."""
    kafka.topics = {T: PlannedTopic("t", 31), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(5, {U: 1, T: 10} if had_it_before else {U: 1}, firsts={U: 0, T: 0})
    query = Query(topics=f"{T},{U}" if had_it_before else U)
    query.batch()
    query.with_options(topics=U).again()
    kafka.progress(6, {T: 30}, firsts={T: 11})
    rest(kafka, begin=2)
    assert query.batch() == {U: (1, 9)}
    kafka.topics[T].start, kafka.topics[T].end = 31, 33
    kafka.progress(105, {T: 32}, firsts={T: 31})
    query.with_options(topics=f"{T},{U}").again()
    with pytest.raises(HistoryMissing):
        query.batch()


@pytest.mark.parametrize("reached", [0, 10])
def test_a_removed_row_without_a_marker_is_an_error(kafka: Planned, reached: int) -> None:
    """With at_least_once no marker is after a row. The record that named this one is compacted; it has one offset."""
    kafka.topics = {T: PlannedTopic("t", reached + 1), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(5, {U: 1, T: reached} if reached else {U: 1})
    query = Query(topics=f"{T},{U}" if reached else U)
    query.batch()
    query.with_options(topics=U).again()
    kafka.progress(6, {T: reached + 1})
    rest(kafka, begin=2)
    assert query.batch() == {U: (1, 9)}
    kafka.topics[T].start, kafka.topics[T].end = reached + 1, reached + 3
    kafka.progress(105, {T: reached + 2}, firsts={T: reached + 1})
    query.with_options(topics=f"{T},{U}").again()
    with pytest.raises(HistoryMissing):
        query.batch()


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_record_of_a_former_slot_proves_no_removed_rows_of_its_successor(
    kafka: Planned, delivery: str
) -> None:
    """It ends where the query is, and remains for ever. The successor's first records of T are compacted."""
    end = 30 if delivery == "exactly_once" else 11
    begin = end + (delivery == "exactly_once")
    kafka.topics = {T: PlannedTopic("t", begin), U: PlannedTopic("u", 100)}
    kafka.describe(T, U, slot="old")
    kafka.progress(5, {U: 1, T: 10}, "old", firsts={U: 0, T: 0})
    query = Query()
    query.batch()
    query.with_options(topics=U).again()
    kafka.describe(T, U)
    kafka.progress(6, {T: end}, firsts={T: 11} if delivery == "exactly_once" else None)
    rest(kafka, begin=2)
    assert query.batch() == {U: (1, 9)}
    kafka.topics[T].start, kafka.topics[T].end = begin, begin + 2
    kafka.progress(105, {T: begin + 1}, firsts={T: begin})
    query.with_options(topics=f"{T},{U}").again()
    with pytest.raises(HistoryMissing):
        query.batch()


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_removed_marker_is_no_loss_where_another_slot_writes_too(
    kafka: Planned, is_started_again: bool
) -> None:
    kafka.topics = {T: PlannedTopic("t", 31), V: PlannedTopic("v", 100)}
    kafka.describe(V, slot="other")
    kafka.describe(T)
    kafka.progress(4, {V: 1}, "other", firsts={V: 0})
    kafka.progress(5, {T: 30}, firsts={T: 0})
    query = Query()
    assert query.batch() == {T: (0, 30), V: (0, 1)}
    kafka.progress(10, {V: 2}, "other", firsts={V: 1})
    assert query.batch() == {V: (1, 2)}
    if is_started_again:
        query.again()
    kafka.topics[T].start, kafka.topics[T].end = 31, 33
    kafka.progress(20, {T: 32}, firsts={T: 31})
    assert query.batch() == {T: (31, 32)}


@pytest.mark.parametrize("aborted", [0, 2])
@pytest.mark.parametrize("is_started_again", [False, True])
@pytest.mark.parametrize("is_left", [True, False])
def test_a_removed_marker_is_no_loss_where_each_later_record_is_known(
    kafka: Planned, is_started_again: bool, is_left: bool, aborted: int
) -> None:
    """`is_left`: compaction has not removed the record that ends where the query is.

    Otherwise a query that is started again does not know whether that was the last one before the later records:
    with at_least_once a row has no marker. `aborted`: the offsets of a transaction that was aborted.
    """
    kafka.topics = {T: PlannedTopic("t", 31), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(5, {U: 1, T: 30}, firsts={U: 0, T: 0})
    query = Query()
    assert query.batch() == {T: (0, 30), U: (0, 1)}
    kafka.progress(10, {U: 2}, firsts={U: 1})
    assert query.batch() == {U: (1, 2)}
    if not is_left:
        kafka.compact(["s"], kafka.place - 1)
    if is_started_again:
        query.again()
    first = 31 + aborted
    kafka.topics[T].start, kafka.topics[T].end = first, first + 2
    kafka.progress(20, {T: first + 1}, firsts={T: first})
    if is_started_again and not is_left:
        with pytest.raises(HistoryMissing):
            query.batch()
    else:
        assert query.batch() == {T: (first, first + 1)}


@pytest.mark.parametrize("delivery", ["with first offsets", "without"])
@pytest.mark.parametrize("start", [10, 11, 12, 14, 22])
def test_a_start_by_lsn_is_refused_only_where_a_record_after_it_is_removed(
    kafka: Planned, start: int, delivery: str
) -> None:
    """T is quiet between its transactions: of records 0 to 9, and after an aborted one of 14 to 20."""
    kafka.topics = {T: PlannedTopic("t", 22, start), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    has = delivery == "with first offsets"
    kafka.progress(10, {U: 1, T: 10}, firsts={U: 0, T: 0} if has else None)
    kafka.progress(20, {U: 3}, firsts={U: 2} if has else None)
    kafka.progress(30, {U: 5, T: 21}, firsts={U: 4, T: 14} if has else None)
    kafka.progress(40, {U: 7}, firsts={U: 6} if has else None)
    assert read(startingLsn=format_lsn(40)) == {U: (5, 7)}
    is_known = start == 10 or (has and start <= 14)
    if is_known:
        assert read(startingLsn=format_lsn(20)) == {T: (max(10, start), 21), U: (1, 7)}
        return
    with pytest.raises(PositionUnavailable, match="has removed records after this position"):
        read(startingLsn=format_lsn(20))


def test_a_start_by_lsn_is_refused_where_only_one_of_two_transactions_after_it_is_left(
    kafka: Planned,
) -> None:
    kafka.topics = {T: PlannedTopic("t", 22, 14), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(10, {U: 1, T: 10}, firsts={U: 0, T: 0})
    kafka.progress(20, {T: 12}, firsts={T: 11})
    kafka.progress(30, {T: 21}, firsts={T: 14})
    with pytest.raises(PositionUnavailable, match="has removed records after this position"):
        read(startingLsn=format_lsn(20))
    assert read(startingLsn=format_lsn(30)) == {T: (14, 21)}


def test_a_removed_marker_is_no_loss_where_a_backlog_is_joined(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader joins the commits before the query's start, and those after it."""
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 8)
    kafka.topics = {T: PlannedTopic("t", 31), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    for n in range(1, 10):
        kafka.progress(n, {U: n}, firsts={U: n - 1})
    kafka.progress(10, {U: 10, T: 30}, firsts={U: 9, T: 0})
    query = Query()
    assert query.batch() == {T: (0, 30), U: (0, 10)}
    kafka.topics[T].start, kafka.topics[T].end = 31, 33
    for n in range(11, 30):
        moved = {U: n, T: 32} if n == 20 else {U: n}
        kafka.progress(n, moved, firsts={U: n - 1, T: 31})
    assert query.again().batch()[T] == (31, 32)


def test_first_offsets_of_a_query_that_looks_for_its_start_are_bounded(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_log, "READ_OFFSETS", 8)
    kafka.topics = {U: PlannedTopic("u", 100)}
    kafka.describe(U)
    for n in range(1, 50):
        kafka.progress(n, {U: n}, firsts={U: n - 1})
    commits = Commits(parse_options(options(startingLsn="0/5")))
    commits.refresh(None)
    pending = commits._log.pending
    assert len(pending) == 49
    assert sum(one.firsts is not None for one in pending) <= 8


@pytest.mark.parametrize("is_available_now", [False, True])
def test_rows_are_not_read_before_their_commit_where_kafka_completes_it_later_in_the_progress_topic(
    kafka: Planned, is_available_now: bool
) -> None:
    """No record that is left names X, so its rows up to the listed end would be read, and those of an open commit."""
    kafka.topics = {X: PlannedTopic("x", 40), U: PlannedTopic("u", 100)}
    kafka.describe(U, X)
    kafka.progress(5, {X: 40, U: 1})
    rest(kafka, begin=2)
    kafka.readable = kafka.place
    kafka.topics[X].end, kafka.topics[U].end = 51, 11
    kafka.progress(110, {X: 50, U: 10})
    query = Query()
    if is_available_now:  # it would end as if it had read everything
        query.reader.prepareForTriggerAvailableNow()
        with pytest.raises(PositionUnavailable, match="not complete"):
            query.batch()
        query = Query()
        query.reader.prepareForTriggerAvailableNow()
    else:
        assert query.batch() == {}
    with pytest.raises(PositionUnavailable, match="not complete"):
        read()
    kafka.readable = None
    kafka.progress(120, {U: 11})
    kafka.topics[U].end = 12
    assert query.batch() == {X: (0, 50), U: (0, 11)}


def test_a_topic_that_may_not_be_described_is_not_left_out(kafka: Planned) -> None:
    kafka.topics = {T: PlannedTopic("t", 30), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(6, {T: 30})
    rest(kafka)
    kafka.hidden.add(T)
    with pytest.raises(SinkAuthorization, match=T):
        Query().batch()
    with pytest.raises(SinkAuthorization, match=T):
        read(topics=T)
    assert Query(topics=U).batch() == {U: (0, 9)}
    kafka.hidden.clear()
    assert Query().batch() == {T: (0, 30), U: (0, 9)}


def test_offsets_whose_topics_are_not_known_any_more_are_of_no_topic(kafka: Planned) -> None:
    """Compaction ended between a record of the topics and the progress record of the same Kafka transaction."""
    kafka.topics = {T: PlannedTopic("a", 30), U: PlannedTopic("u", 100)}
    kafka.describe(T, U)
    kafka.progress(10, {T: 30, U: 1})
    kafka.topics[T] = PlannedTopic("b", 7)
    kafka.describe(T, U)
    kafka.compact(["s/topics"], kafka.place - 1)
    kafka.compact(["s"], 1)
    kafka.progress(20, {T: 5, U: 2})
    kafka.progress(30, {U: 3})
    query = Query(maxCommits="1")
    assert query.batch() == {T: (0, 5), U: (0, 2)}
    assert query.batch() == {U: (2, 3)}


def test_a_first_batch_is_repeated_although_its_start_is_not_known_any_more(kafka: Planned) -> None:
    """Its end has the start. A new query cannot start there."""
    kafka.topics = {T: PlannedTopic("t", 100), U: PlannedTopic("u", 0), V: PlannedTopic("v", 9)}
    kafka.describe(T, U)
    for n in range(1, 10):
        kafka.progress(10 * n, {T: n})
    kafka.compact(["s"], kafka.place - 6)
    position = format_lsn(70)
    query = Query(startingLsn=position)
    end = query.fail()
    kafka.topics[U].end = 3
    kafka.describe(T, U)
    kafka.progress(200, {U: 3})
    assert query.repeat(end) == {T: (6, 9)}
    assert query.batch() == {U: (0, 3)}
    for given in ({}, {"maxCommits": "1"}):
        with pytest.raises(PositionUnavailable, match="older than the progress records"):
            Query(startingLsn=position, **given).batch()
