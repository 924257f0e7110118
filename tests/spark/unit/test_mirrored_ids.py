"""The mirror has the ids of the batches' ends, not those that a broker answers after a batch."""

from __future__ import annotations

import json

import pytest

from cdcd.errors import HistoryMissing, PositionUnavailable
from cdcd.spark.mirroring.batch_source import MirrorSource
from cdcd.spark.source.cuts import ID, ids_of, without_start
from cdcd.spark.source.source_options import parse_options
from cdcd.spark.source.topic_ids import number_of
from cdcd.spark.tables.next_version import next_version
from cdcd.spark.target.versions import TargetVersion
from tests.support.planned import Planned, PlannedTopic, Query, T, U, options, stored


def mirrored(query: Query, version: TargetVersion) -> TargetVersion:
    """Return the version after the query's next batch."""
    query.batch()
    return next_version(version, without_start(query.ends[-1]), {}, {}, [])


def test_the_version_has_the_id_under_which_the_rows_were_planned(kafka: Planned) -> None:
    kafka.topics = {T: PlannedTopic("a", 30), U: PlannedTopic("u", 10)}
    kafka.describe(T, U)
    kafka.progress(10, {T: 30})
    query = Query(loading="true", ids="true")
    version = mirrored(query, TargetVersion("p", 4))
    assert version.offsets == {T: {"0": 30}, U: {"0": 0}, ID + T: {"0": number_of("a")}}
    kafka.progress(20, {T: 30, U: 5})
    version = mirrored(query, version)
    assert ids_of(version.offsets) == {T: number_of("a"), U: number_of("u")}
    kafka.topics[T] = PlannedTopic("b", 40)
    again = Query(startingOffsets=json.dumps(stored(version.offsets)), loading="true", ids="true")
    with pytest.raises(PositionUnavailable, match="a topic was recreated"):
        again.batch()


def test_a_batch_names_only_the_ids_of_topics_that_are_new_in_it(kafka: Planned) -> None:
    kafka.topics = {T: PlannedTopic("a", 30)}
    kafka.describe(T)
    for n in (1, 2):
        kafka.progress(10 * n, {T: n})
    query, others = (Query(loading="true", maxCommits="1", **more) for more in ({"ids": "true"}, {}))
    assert [query.batch() for _ in range(2)] == [{T: (0, 1), ID + T: (0, number_of("a"))}, {T: (1, 2)}]
    assert others.batch() == {T: (0, 1)}
    (row,) = next(query.reader.read(query.reader.partitions({}, query.ends[0])[-1])).to_pylist()
    assert (row["topic"], row["offset"], row["value"]) == (ID + T, number_of("a") - 1, None)


@pytest.mark.parametrize("names_u", [False, True])
def test_a_mirror_lacks_no_row_of_a_topic_that_its_version_does_not_name(
    kafka: Planned, names_u: bool
) -> None:
    """Other queries begin such a topic with the first record that Kafka has; a mirror would lack the rows before."""
    kafka.topics = {T: PlannedTopic("a", 30, start=10), U: PlannedTopic("u", 10)}
    kafka.describe(T, U)
    kafka.progress(10, {T: 30, U: 5}, firsts={T: 0, U: 0})
    version = TargetVersion("p", 4, offsets={U: {"0": 0}} if names_u else {})
    source = MirrorSource(None, parse_options(options()).connection, version, {}, 0)  # type: ignore[arg-type]
    source.begin(ends_now=True)
    assert source.advance()
    with pytest.raises(HistoryMissing) as raised:
        source.records(1)
    assert raised.value.context["first_offset"] == 10
