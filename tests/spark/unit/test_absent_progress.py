"""A query that cannot see the progress topic does not say that it has everything."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import PositionUnavailable
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.mirroring.batch_source import MirrorSource
from cdcd.spark.source.backlog import Backlog
from cdcd.spark.target.versions import TargetVersion
from tests.support.planned import PREFIX, PROGRESS, Planned, PlannedTopic, Query, T, options

NO_TOPIC = rf"no topic {PREFIX}\.__progress"


def mirror(**version: Any) -> MirrorSource:
    given = options(**{"schema.registry.url": "none"})
    start = TargetVersion(PREFIX, 4, **version)
    return MirrorSource(
        None, connection_from({k: v for k, v in given.items() if k != "readers"}), start, {}, 0
    )  # type: ignore[arg-type]


@pytest.fixture
def hidden(kafka: Planned) -> Planned:
    """Return a Kafka with records, whose progress topic was deleted, or may not be described."""
    kafka.topics[T] = PlannedTopic("id of T", 50_000)
    kafka.progress(10, {T: 50_000})
    kafka.hidden.add(PROGRESS)
    return kafka


@pytest.mark.parametrize("ends_now", [True, False])
def test_a_mirror_that_has_read_records_ends_with_an_error(hidden: Planned, ends_now: bool) -> None:
    source = mirror(number=7, offsets={T: {"0": 100}}, end_lsn=5)
    source.begin(ends_now=ends_now)
    with pytest.raises(PositionUnavailable, match=NO_TOPIC):
        source.advance()
    hidden.hidden.clear()
    source = mirror(number=7, offsets={T: {"0": 100}}, end_lsn=5)
    source.begin(ends_now=ends_now)
    assert source.advance()


def test_a_new_mirror_waits_unless_it_ends_now_and_knows_no_backlog(hidden: Planned) -> None:
    source = mirror()
    source.begin(ends_now=True)
    with pytest.raises(PositionUnavailable, match=NO_TOPIC):
        source.advance()
    source = mirror()
    source.begin(ends_now=False)
    assert not source.advance()
    assert source.backlog(is_applied=True) == Backlog()
    hidden.hidden.clear()
    assert source.advance()
    assert source.backlog(is_applied=True) == Backlog(0, is_pending=False)


def test_a_mirror_of_a_cdcd_that_has_written_nothing_is_complete(kafka: Planned) -> None:
    source = mirror()
    source.begin(ends_now=True)
    assert not source.advance()
    assert source.backlog(is_applied=True) == Backlog()


def test_a_stream_that_ends_now_is_an_error(hidden: Planned) -> None:
    query = Query()
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(PositionUnavailable, match=NO_TOPIC):
        query.batch()


def test_the_backlog_is_unknown_while_the_first_record_to_read_is(kafka: Planned) -> None:
    """Compaction has removed records, and a transaction is not complete in the progress topic."""
    kafka.topics[T] = PlannedTopic("id of T", 50)
    kafka.progress(10, {T: 20})
    kafka.progress(20, {T: 30})
    kafka.progress(30, {T: 50})
    kafka.compact(["s"], 1)
    kafka.readable = 2
    for ends_now in (False, True):
        source = mirror(number=7, offsets={}, end_lsn=5)
        source.begin(ends_now=ends_now)
        if ends_now:
            with pytest.raises(PositionUnavailable, match="is not complete"):
                source.advance()
            continue
        assert not source.advance()
        assert source.backlog(is_applied=True) == Backlog()
