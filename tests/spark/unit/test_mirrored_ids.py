"""The mirror has the ids of the batches' ends, not those that a broker answers after a batch."""

from __future__ import annotations

import json

import pytest

from cdcd.errors import PositionUnavailable
from cdcd.spark.cuts import ID, ids_of, without_start
from cdcd.spark.manifest import Manifest
from cdcd.spark.next_manifest import next_manifest
from cdcd.spark.topic_ids import number_of
from tests.support.planned import Planned, PlannedTopic, Query, T, U, stored


def mirrored(query: Query, manifest: Manifest) -> Manifest:
    """Return the manifest after the query's next batch."""
    query.batch()
    return next_manifest(manifest, without_start(query.ends[-1]), {}, {}, [])


def test_the_manifest_has_the_id_under_which_the_rows_were_planned(kafka: Planned) -> None:
    kafka.topics = {T: PlannedTopic("a", 30), U: PlannedTopic("u", 10)}
    kafka.describe(T, U)
    kafka.progress(10, {T: 30})
    query = Query(loading="true", ids="true")
    manifest = mirrored(query, Manifest("p", 4))
    assert manifest.offsets == {T: {"0": 30}, U: {"0": 0}, ID + T: {"0": number_of("a")}}
    kafka.progress(20, {T: 30, U: 5})
    manifest = mirrored(query, manifest)
    assert ids_of(manifest.offsets) == {T: number_of("a"), U: number_of("u")}
    kafka.topics[T] = PlannedTopic("b", 40)
    again = Query(startingOffsets=json.dumps(stored(manifest.offsets)), loading="true", ids="true")
    with pytest.raises(PositionUnavailable, match="a topic was created again"):
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
