"""A batch read never returns a part of a table that cdcd copies while it streams, unless the user accepts it."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import ConfigError, SnapshotIncomplete
from cdcd.lsn import format_lsn
from cdcd.spark.source.cuts import loading_of
from cdcd.spark.source.jvm import offsets
from cdcd.spark.source.source_options import parse_options
from tests.support.planned import Planned, PlannedTopic, Query, T, U, V, X, options, read


@pytest.fixture(autouse=True)
def copied(kafka: Planned) -> Planned:
    """Return a Kafka in which T is copied, after a commit of U."""
    kafka.topics = {T: PlannedTopic("t", 100), U: PlannedTopic("u", 100)}
    kafka.progress(5, {U: 50})
    kafka.progress(10, {T: 50, U: 60}, loading=[T])
    return kafka


@pytest.mark.parametrize(
    "given", [{}, {"endingLsn": format_lsn(10 + 8)}, {"topics": T}, {"loading": "false"}]
)
def test_a_batch_that_would_have_a_part_of_a_table_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(SnapshotIncomplete) as raised:
        read(**given)
    assert T in str(raised.value)
    assert "CDCD-SNAPSHOT-INCOMPLETE" in str(raised.value)


def test_the_offsets_of_sparks_own_source_are_refused_too(kafka: Planned) -> None:
    with pytest.raises(SnapshotIncomplete):
        offsets(options())
    assert offsets(options(loading="true"))["endingOffsets"] == f'{{"{T}": {{"0": 50}}, "{U}": {{"0": 60}}}}'


def test_other_tables_and_an_end_before_the_copy_are_read(kafka: Planned) -> None:
    assert read(topics=U) == {U: (0, 60)}
    assert read(endingLsn=format_lsn(6)) == {U: (0, 50)}


def test_the_user_may_accept_a_part_of_the_rows(kafka: Planned) -> None:
    assert read(loading="true") == {T: (0, 50), U: (0, 60)}
    asked = parse_options(options(table="s.T", loading="true"))
    assert not asked.of_a_batch().refuses_copies


def test_the_table_is_read_when_its_copy_is_complete(kafka: Planned) -> None:
    kafka.progress(20, {T: 100})
    assert read() == {T: (0, 100), U: (0, 60)}


def test_a_stream_has_the_rows_as_they_come(kafka: Planned) -> None:
    """Typed columns have no row that names the table, so a stream of them refuses the option."""
    assert Query().batch() == {T: (0, 50), U: (0, 60)}
    with pytest.raises(ConfigError, match="exclude each other in a stream"):
        parse_options(options(table="s.T", loading="true")).of_a_stream()


@pytest.mark.parametrize(
    "incomplete", [{"joined": {"7": V}}, {"begun": {"7": V}}, {"joined": {"8": X}, "begun": {"7": V}}]
)
def test_a_table_that_waits_for_its_copy_or_whose_copy_was_stopped_lacks_rows_too(
    kafka: Planned, incomplete: dict[str, Any]
) -> None:
    """By the record of the topics that the progress record names; others have no effect."""
    kafka.topics[V], kafka.topics[X] = PlannedTopic("v", 100), PlannedTopic("x", 0)
    kafka.clear()
    kafka.describe(T, U, V, X, incomplete=incomplete)
    kafka.progress(10, {T: 50, U: 60, V: 1})
    for given in ({}, {"endingLsn": format_lsn(10 + 8)}, {"topics": V}):
        with pytest.raises(SnapshotIncomplete) as raised:
            read(**given)
        assert V in str(raised.value)
    assert read(topics=f"{T},{U}") == {T: (0, 50), U: (0, 60)}
    loading = Query(loading="true")
    found = loading.batch()
    assert {name: found[name] for name in (T, U, V)} == {T: (0, 50), U: (0, 60), V: (0, 1)}
    assert loading_of(loading.ends[-1]) >= {V}

    kafka.describe(T, U, V, X)
    kafka.progress(10, {})
    assert read() == {T: (0, 50), U: (0, 60), V: (0, 1)}, "the end of the copy is a commit"
    assert loading.batch() == {}
    assert loading_of(loading.ends[-1]) == set()


def test_the_record_that_the_progress_record_names_counts(kafka: Planned) -> None:
    """With delivery at_least_once a later one may be of a session that ended before its position was durable."""
    kafka.describe(T, U)
    kafka.progress(20, {T: 50})
    stale = kafka._described_at["s"]
    kafka.describe(T, U, incomplete={"begun": {"7": U}})
    kafka._described_at["s"] = stale
    kafka.progress(30, {U: 70})
    assert read() == {T: (0, 50), U: (0, 70)}
