"""A topic to which two slots write: a mirror cannot know the order of its changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import MirrorInconsistent, SparkReadError, TablesParked
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rows_of, run_mirror

FIELDS = [column("id", "int", required=True), column("name", "string")]


def test_a_table_of_two_slots_is_parked_until_it_is_copied_again(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """The second slot has lower LSNs than the first one: its rows would be left out as repetitions."""
    shared, own = topics.table("shared", FIELDS), topics.table("own", FIELDS)

    def write(slot: str, lsn: int, number: int) -> None:
        topics.slot = slot.encode()
        change = {"after": {"id": number, "name": slot}}
        records = topics.change(shared, "c", lsn, 1, **change)
        topics.commit(lsn, records + (topics.change(own, "c", lsn, 2, **change) if slot == "a" else []))

    write("a", 1000, 1)
    opened = run_mirror(spark, topics, target)
    assert rows_of(opened, shared) == [{"id": 1, "name": "a"}]
    for number, (slot, lsn) in enumerate((("b", 500), ("a", 1010), ("b", 510)), 2):
        write(slot, lsn, number)
    with pytest.raises(MirrorInconsistent, match="slots=a, b"):
        run_mirror(spark, topics, target)
    with pytest.raises(TablesParked, match="several slots write to the topic"):
        run_mirror(spark, topics, target, on_error="park")
    opened = read_mirror(target)
    assert list(opened.version.parked) == [shared.topic]
    assert rows_of(opened, own) == [{"id": 1, "name": "a"}, {"id": 3, "name": "a"}]
    with pytest.raises(SparkReadError, match="lack tables of the target"):
        mirror(spark, topics.connection, str(target), topics=[own.topic])

    topics.slot, topics.loading = b"a", (shared.topic,)
    topics.commit(2000, topics.change(shared, "t", 2000, 1, snapshot=True))
    topics.loading = ()
    topics.commit(2010, topics.change(shared, "r", 2000, 2, after={"id": 9, "name": "copied"}))
    opened = run_mirror(spark, topics, target)
    assert (opened.version.parked, rows_of(opened, shared)) == ({}, [{"id": 9, "name": "copied"}])
