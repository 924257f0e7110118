"""Topics that are created again: an end has the offsets of a topic under the id by which the slot described them."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import pytest

from cdcd.errors import PositionUnavailable
from cdcd.spark.source.cuts import ID, ids_of, of_topics, with_ids
from cdcd.spark.source.topic_ids import number_of
from tests.support.planned import Planned, PlannedTopic, Query, T, U, V, read

RECREATED = "a topic was recreated"


@pytest.fixture
def kafka(kafka: Planned) -> Planned:
    """Return a Kafka with two topics."""
    kafka.topics = {T: PlannedTopic("a", 30), U: PlannedTopic("u", 10)}
    kafka.describe(T, U)
    kafka.progress(10, {T: 30})
    kafka.progress(20, {U: 1})
    return kafka


def create_again(kafka: Planned, end: int = 40) -> None:
    """Create the topic again, as the daemon describes it, with a first commit of five rows."""
    kafka.topics[T] = PlannedTopic("b", end)
    kafka.describe(T, U)
    kafka.progress(30, {T: 5, U: 2})


def test_a_query_that_restarts_while_the_topic_is_missing_ends(kafka: Planned) -> None:
    """The new one comes within the time for which a missing topic is not asked for again."""
    query = Query()
    assert query.batch() == {T: (0, 30), U: (0, 1)}
    del kafka.topics[T]
    assert query.again().batch() == {}
    create_again(kafka)
    with pytest.raises(PositionUnavailable, match=RECREATED):
        query.batch()
    with pytest.raises(PositionUnavailable, match=RECREATED):
        query.again()


def test_the_id_of_a_missing_topic_remains_in_the_checkpoint(kafka: Planned) -> None:
    query = Query()
    query.batch()
    del kafka.topics[T]
    kafka.progress(30, {U: 2})
    assert query.again().batch() == {U: (1, 2)}
    assert ids_of(query.ends[-1]) == {T: number_of("a"), U: number_of("u")}


def test_a_checkpoint_with_ids_of_the_former_length_continues(kafka: Planned) -> None:
    """Those of 56 bits, of which the present ones are the first 48."""
    query = Query()
    query.batch()
    assert query.reached is not None
    long = int.from_bytes(hashlib.sha256(b"a").digest()[:7], "big")
    query.reached[ID + T] = {"0": long}
    kafka.progress(30, {U: 2})
    assert query.again().batch() == {U: (1, 2)}
    assert ids_of(query.ends[-1]) == {T: number_of("a"), U: number_of("u")}
    query.reached[ID + T] = {"0": long}
    create_again(kafka)
    with pytest.raises(PositionUnavailable, match=RECREATED):
        query.again()


@pytest.mark.parametrize("is_known", [True, False], ids=["the broker knows it", "the broker is late"])
def test_a_query_that_starts_at_the_end_has_the_ids(kafka: Planned, is_known: bool) -> None:
    """No batch has stored any before the topic is created again."""
    query = Query(startingOffsets="latest")
    assert query.batch() == {}
    create_again(kafka)
    if not is_known:
        kafka.late[T] = "a"
    with pytest.raises(PositionUnavailable, match=RECREATED):
        query.batch()


def test_a_start_at_the_first_records_that_are_left_has_the_ids(kafka: Planned) -> None:
    """Before the first batch, too, the new topic has other rows at these offsets."""
    kafka.topics[T].start = 30
    kafka.log = kafka.log[:2]
    query = Query()
    assert query.batch() == {}
    create_again(kafka)
    with pytest.raises(PositionUnavailable, match=RECREATED):
        query.batch()


def test_no_commit_of_the_former_topic_is_left_when_the_slot_describes_the_new_one(kafka: Planned) -> None:
    """Without Kafka transactions the record of the topics may be read before the progress, and the broker be late."""
    kafka.topics[T] = PlannedTopic("b", 40)
    kafka.describe(T, U)
    kafka.late[T] = "a"
    query = Query()
    assert query.batch() == {U: (0, 1)}
    kafka.progress(30, {T: 5, U: 2})
    assert query.batch() == {T: (0, 5), U: (1, 2)}


def test_a_broker_that_knows_of_the_new_topic_later_drops_no_rows(kafka: Planned) -> None:
    """The slot's record says that the answer is out of date."""
    kafka.topics[V] = PlannedTopic("a", 100)
    query = Query(topics=f"{U},{V}")
    assert query.batch() == {U: (0, 1)}
    kafka.describe(T, U, V)
    kafka.topics[V] = PlannedTopic("b", 100)
    kafka.late[V] = "a"
    kafka.describe(T, U, V)
    kafka.progress(30, {V: 5, U: 2})
    assert query.batch() == {U: (1, 2), V: (0, 5)}
    assert ids_of(query.ends[-1])[V] == number_of("b")
    del kafka.late[V]
    kafka.progress(40, {V: 40})
    assert query.again().batch() == {V: (5, 40)}


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_record_that_is_older_than_the_topic_names_nothing_of_it(
    kafka: Planned, is_compacted: bool
) -> None:
    """Another slot may describe the former topic once more, by what it knew before."""
    if is_compacted:
        kafka.clear()
    create_again(kafka)
    kafka.topics[T].id = "a"
    kafka.describe(T, slot="old")
    kafka.topics[T].id = "b"
    kafka.progress(40, {T: 30}, "old")
    kafka.progress(50, {T: 7, U: 3})
    query = Query()
    assert query.batch() == {T: (0, 7), U: (0, 3)}
    assert ids_of(query.ends[-1])[T] == number_of("b")


def test_the_first_commit_after_a_compaction_has_the_new_rows(kafka: Planned) -> None:
    """It waits inside a snapshot while the topic is created again."""

    def go_on() -> None:
        kafka.topics[T] = PlannedTopic("b", 4)
        kafka.describe(T, U)
        kafka.progress(20, {T: 4}, snapshot=[T])
        kafka.progress(21, {U: 1})
        kafka.progress(30, {U: 2})

    kafka.log, kafka.place = [], 50
    kafka.describe(T, U)
    kafka.progress(10, {T: 30}, snapshot=[T])
    query = Query()
    assert query.batch() == {}
    go_on()
    assert query.batch() == {T: (0, 4), U: (0, 2)}


def test_only_the_topics_of_a_query_are_described(kafka: Planned) -> None:
    """The principal of a consumer of one table may have no right on the others."""
    query = Query(topics=U)
    query.batch()
    query.again().batch()
    assert set(kafka.asked) == {U}


def test_offsets_of_other_topics_end_no_query(kafka: Planned) -> None:
    """A mirror of some topics has the offsets of others, which it read before."""
    kafka.topics[T].end = 3
    start = {T: {"0": 30}, f"id/{T}": {"0": number_of("former")}}
    query = Query(topics=U, startingOffsets=json.dumps(start), loading="true")
    assert query.batch() == {U: (0, 1)}
    assert of_topics(query.ends[-1])[T] == {"0": 30}
    with pytest.raises(PositionUnavailable, match=RECREATED):
        Query(startingOffsets=json.dumps(start)).batch()


def test_offsets_without_an_id_before_a_topic_that_was_created_again_are_reported(
    kafka: Planned, caplog: pytest.LogCaptureFixture
) -> None:
    """They are those of an earlier version, or of a user."""
    create_again(kafka)
    query = Query(startingOffsets=json.dumps({T: {"0": 5}}))
    with caplog.at_level(logging.WARNING, "cdcd.spark.data_source"):
        query.batch()
    assert f"{T} was recreated" in caplog.text


def test_two_ends_of_different_topics_are_no_reversed_range(kafka: Planned) -> None:
    query = Query()
    query.batch()
    (end,) = query.ends
    former: dict[str, Any] = {**end, f"id/{T}": {"0": number_of("former")}}
    for start, stop in ((former, end), (end, former)):
        with pytest.raises(PositionUnavailable, match=RECREATED):
            read(startingOffsets=json.dumps(start), endingOffsets=json.dumps(stop))


def test_an_end_in_a_former_topic_is_an_error(kafka: Planned) -> None:
    """So a mirror of the former topic is not compared with the present one."""
    kafka.topics[T].end = 50
    end = with_ids({T: {"0": 30}}, {T: number_of("former")})
    with pytest.raises(PositionUnavailable, match=RECREATED):
        read(topics=T, endingOffsets=json.dumps(end))
    assert read(topics=T, endingOffsets=json.dumps(with_ids({T: {"0": 30}}, {T: number_of("a")}))) == {
        T: (0, 30)
    }


def test_an_id_is_a_number_that_every_reader_of_json_has() -> None:
    assert all(number_of(f"topic {n}") < 1 << 53 for n in range(1000))


def test_a_running_query_with_a_backlog_reads_no_row_of_the_new_topic_at_former_offsets(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not read the slot's record of the new topic yet."""
    monkeypatch.setattr("cdcd.spark.source.progress_log.READ_OFFSETS", 20)
    monkeypatch.setattr("cdcd.spark.source.topic_ids.LOOK_AGAIN_S", 0.0)
    kafka.topics[V] = PlannedTopic("v", 100)
    for n in range(1, 60):
        kafka.progress(20 + n, {V: n})
    query = Query(maxCommits="1")
    while V not in query.batch():
        pass
    kafka.topics[V] = PlannedTopic("w", 1000)
    with pytest.raises(PositionUnavailable, match=RECREATED):
        query.batch()
