"""The offsets for Spark's own Kafka source, which fails where it begins before the first record that Kafka has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.errors import HistoryMissing
from cdcd.spark import offsets
from tests.support.planned import Moves, Planned, PlannedTopic, T, U, options, read

FROM_T_30 = json.dumps({T: {"0": 30}, U: {"0": 1}})


def _moves(**given: str) -> Moves:
    """Return what Spark's source reads of each topic."""
    asked = offsets(options(**given))
    starting, ending = json.loads(asked["startingOffsets"]), json.loads(asked["endingOffsets"])
    return {topic: (starting[topic]["0"], ending[topic]["0"]) for topic in starting}


@pytest.fixture
def quiet(kafka: Planned) -> Planned:
    """Kafka has removed the marker after the records of T, and then T has another one."""
    kafka.topics = {T: PlannedTopic("t", 33, start=31), U: PlannedTopic("u", 2)}
    kafka.describe(T, U)
    kafka.progress(5, {U: 1, T: 30}, firsts={U: 0, T: 0})
    kafka.progress(20, {T: 32}, firsts={T: 31})
    return kafka


def test_a_start_that_kafka_has_removed_without_records_is_the_first_record(quiet: Planned) -> None:
    assert _moves(startingOffsets=FROM_T_30) == {T: (31, 32), U: (1, 1)}
    assert _moves(startingOffsets=FROM_T_30, endingOffsets=FROM_T_30) == {T: (30, 30), U: (1, 1)}


def test_a_start_whose_records_are_removed_is_an_error(quiet: Planned) -> None:
    quiet.topics[T].start = 32
    with pytest.raises(HistoryMissing) as raised:
        offsets(options(startingOffsets=FROM_T_30))
    assert raised.value.context["first_offset"] == 32


@pytest.mark.parametrize(("removed", "moves"), [(31, (31, 32)), (32, None)])
def test_earliest_is_the_first_record_also_where_kafka_removes_records_meanwhile(
    quiet: Planned, monkeypatch: pytest.MonkeyPatch, removed: int, moves: tuple[int, int] | None
) -> None:
    quiet.topics[T].start = 10
    listed = quiet.bounds

    def removes(places: Any) -> Any:
        quiet.topics[T].start = removed
        return listed(places)

    monkeypatch.setattr(quiet, "bounds", removes)
    assert _moves()[T] == (moves or (32, 32))
    quiet.topics[T].start = 10
    assert read().get(T) == moves
