"""Topics whose names do not begin with the prefix (`sink.topics.template`), of a progress topic that lost records."""

from __future__ import annotations

import pytest

from cdcd.errors import SparkReadError
from tests.support.planned import Planned, PlannedTopic, Query, T, read

BUSY, QUIET = "cdc.busy", "cdc.quiet"


@pytest.fixture
def lost(kafka: Planned) -> Planned:
    """The slot has written QUIET and BUSY; the record that named QUIET is compacted."""
    kafka.topics = {QUIET: PlannedTopic("q", 3), BUSY: PlannedTopic("b", 30), "other.t": PlannedTopic("o", 5)}
    kafka.progress(10, {QUIET: 3})
    return kafka


def go_on(kafka: Planned, *, describes: bool) -> None:
    if describes:
        kafka.describe(QUIET, BUSY)
    for end in range(1, 31):
        kafka.progress(20 + end, {BUSY: end})
    kafka.compact(["s"], kafka.place - 2)


def test_topics_that_the_slot_has_described_are_read(lost: Planned) -> None:
    go_on(lost, describes=True)
    assert read() == {QUIET: (0, 3), BUSY: (0, 30)}
    assert read(topics=QUIET) == {QUIET: (0, 3)}
    assert Query().batch() == {QUIET: (0, 3), BUSY: (0, 30)}


def test_topics_that_no_record_describes_are_an_error(lost: Planned) -> None:
    go_on(lost, describes=False)
    for ask in (read, Query().batch):
        with pytest.raises(SparkReadError, match="the tables' topics do not begin with the prefix") as raised:
            ask()
        assert raised.value.context["slot"] == "s"


def test_a_query_that_continues_reads_a_topic_whose_only_later_record_was_removed(lost: Planned) -> None:
    lost.describe(QUIET, BUSY)
    lost.progress(11, {BUSY: 1})
    lost.topics[BUSY].end = 1
    query = Query()
    assert query.batch() == {QUIET: (0, 3), BUSY: (0, 1)}
    lost.topics[QUIET].end = 7
    lost.progress(12, {QUIET: 7})
    lost.topics[BUSY].end = 30
    go_on(lost, describes=False)
    assert query.again().batch() == {QUIET: (3, 7), BUSY: (1, 30)}


def test_the_topics_of_a_whole_progress_topic_need_no_description(lost: Planned) -> None:
    lost.progress(20, {BUSY: 30})
    assert read() == {QUIET: (0, 3), BUSY: (0, 30)}


def test_topics_of_both_kinds_are_read(lost: Planned) -> None:
    """The template was changed."""
    lost.topics[T] = PlannedTopic("t", 4)
    lost.progress(12, {T: 4})
    lost.describe(QUIET, BUSY, T)
    go_on(lost, describes=False)
    assert read() == {QUIET: (0, 3), BUSY: (0, 30), T: (0, 4)}


def test_a_start_begins_with_the_first_records_of_the_topics_that_it_names(lost: Planned) -> None:
    lost.topics[QUIET].start = 2
    go_on(lost, describes=True)
    assert Query(topics=f"{QUIET},{BUSY}").batch() == {QUIET: (2, 3), BUSY: (0, 30)}
