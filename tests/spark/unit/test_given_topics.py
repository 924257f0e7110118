"""Names in the options of a query that no topic or partition has."""

from __future__ import annotations

import json

import pytest

from cdcd.errors import CdcdError, PositionUnavailable, SparkReadError
from cdcd.spark import offsets
from tests.support.planned import PREFIX, Planned, PlannedTopic, Query, T, U, options, read


@pytest.fixture
def kafka(kafka: Planned) -> Planned:
    """Return a Kafka with one topic; another one was deleted after one commit."""
    kafka.topics = {T: PlannedTopic("a", 1), U: PlannedTopic("u", 10)}
    kafka.describe(T, U)
    del kafka.topics[T]
    kafka.progress(10, {T: 1})
    kafka.progress(40, {U: 1})
    return kafka


WRONG = U[:-1]
"""Like the name of a topic, without its last letter."""


def _refused_by_all(kind: type[CdcdError], text: str, **given: str) -> CdcdError:
    errors = []
    for ask in (
        lambda: read(**given),
        lambda: Query(**given).batch(),
        lambda: Query(**given, maxRows="1").batch(),
        lambda: offsets(options(**given)),
    ):
        with pytest.raises(kind, match=text) as raised:
            ask()
        errors.append(raised.value)
    return errors[0]


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("asked", [WRONG, f"{U},{WRONG}"])
def test_a_name_of_the_option_topics_that_no_topic_has_is_an_error(asked: str) -> None:
    error = _refused_by_all(SparkReadError, "the option topics has a name", topics=asked)
    assert error.context["topic"] == WRONG
    assert f"did you mean {U}" in str(error)


@pytest.mark.parametrize("asked", ["other.public.u", f"{PREFIX}.__progress"])
def test_so_is_a_topic_that_has_no_changes_of_the_prefix(kafka: Planned, asked: str) -> None:
    kafka.topics[asked] = PlannedTopic("o", 5)
    _refused_by_all(SparkReadError, "the option topics has a name", topics=asked)


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("other", [T, f"{PREFIX}.message", f"{PREFIX}.transaction"])
def test_a_topic_that_was_deleted_or_is_created_later_is_no_wrong_name(other: str) -> None:
    assert Query(topics=f"{U},{other}").batch() == read(topics=f"{U},{other}") == {U: (0, 1)}


def test_nor_is_one_that_records_of_a_backlog_name(kafka: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcd.spark.source.progress_log.READ_OFFSETS", 8)
    kafka.log, kafka.place = kafka.log[:1], 1
    for n in range(1, 30):
        kafka.progress(10 * n, {U: n})
    kafka.topics[U].end = 29
    kafka.progress(1000, {f"{PREFIX}.public.later": 1})
    query = Query(topics=f"{U},{PREFIX}.public.later", maxCommits="1")
    assert [query.batch() for _ in range(29)] == [{U: (n, n + 1)} for n in range(29)]


def test_a_query_that_continues_is_not_ended_by_a_name(kafka: Planned) -> None:
    """A table's topic may be deleted, and the slot's record of it be replaced."""
    query = Query(topics=f"{U},{T}")
    assert query.batch() == {U: (0, 1)}
    kafka.clear()
    kafka.describe(U)
    kafka.progress(50, {U: 2})
    with pytest.raises(SparkReadError, match="the option topics has a name"):
        Query(topics=f"{U},{T}").batch()
    assert query.again().batch() == {U: (1, 2)}


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("side", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("unknown", [WRONG, "other.public.u"])
def test_a_topic_of_a_position_that_the_prefix_does_not_have_is_an_error(side: str, unknown: str) -> None:
    given = {side: json.dumps({U: {"0": 1}, unknown: {"0": 1}})}
    with pytest.raises(
        PositionUnavailable, match=f"{side} has a topic that the prefix does not have"
    ) as raised:
        read(**given)
    assert raised.value.context["topic"] == unknown


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("side", ["startingOffsets", "endingOffsets"])
def test_so_is_a_partition_that_the_topic_does_not_have(side: str) -> None:
    given = {side: json.dumps({U: {"0": 1, "7": 0}})}
    with pytest.raises(PositionUnavailable, match="has a partition that its topic does not have") as raised:
        read(**given)
    assert raised.value.context["partition"] == "7"


@pytest.mark.usefixtures("kafka")
def test_offsets_of_a_stream_are_checked_too() -> None:
    for wrong in ({WRONG: {"0": 1}}, {U: {"7": 0}}):
        with pytest.raises(PositionUnavailable, match="startingOffsets has a"):
            Query(startingOffsets=json.dumps(wrong)).batch()
