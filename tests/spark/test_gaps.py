"""The marker of a gap: the mirror stops there until a new snapshot closes the gap or an operator accepts it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdcd.errors import CdcdError, GapInTopic
from cdcd.spark.tables.plan import Look, plan_table
from cdcd.spark.tables.tasks import fold_group
from cdcd.spark.target.versions import TableEntry
from tests.spark.events import Table, column, envelope_schema, key_schema
from tests.spark.topics import PARTITIONS, Sent, TopicsWriter, rows_of, run_mirror
from tests.support.hints import hint_of
from tests.support.nightly import nightly

ITEMS = [column("id", "int", required=True), column("name", "string")]
LOST = {"gap.from_lsn": "0/A", "gap.to_lsn": "0/14", "gap.reason": "CDCD-SLOT-LOST", "gap.decided": "2026"}
BEFORE_SNAPSHOT = {name: text for name, text in LOST.items() if name != "gap.to_lsn"}
TOO_LARGE = {
    "gap.from_lsn": "0/A",
    "gap.to_lsn": "0/A",
    "gap.reason": "CDCD-RECORD-TOO-LARGE",
    "gap.op": "c",
    "gap.size_bytes": "2000000",
    "gap.dead_letters": "shop.__dead_letters",
}
BACK = {**LOST, "gap.from_lsn": "0/20"}


def _row(number: int, name: str) -> dict[str, object]:
    return {"id": number, "name": name}


def _marker(table: Table, commit_lsn: int, special: dict[str, str], timeline: int = 1) -> list[Sent]:
    """Return the marker that `cdcd.session.gap` writes: no key, no rows, in every partition."""
    _, value = table.event("g", commit_lsn, 1, special=special, timeline=timeline)
    return [(table.topic, partition, None, value) for partition in range(PARTITIONS)]


@pytest.mark.parametrize(
    ("gap", "timeline", "lsns", "key"),
    [
        (LOST, 1, (40, 50), ("id",)),
        nightly(LOST, 1, (40, 50, 60), ("id",)),
        nightly(BACK, 2, (4, 5, 6), ()),
        pytest.param(LOST, 1, (40, 50, 60), (), marks=pytest.mark.long),
        pytest.param(BACK, 2, (4, 5, 6), ("id",), marks=pytest.mark.long),
    ],
)
def test_the_mirror_stops_at_a_gap_until_it_is_accepted(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    key: tuple[str, ...],
    gap: dict[str, str],
    timeline: int,
    lsns: tuple[int, ...],
) -> None:
    """F58: LSNs on a new timeline are new, though the mirror has had the same LSNs on the previous one.

    `lsns`: of the marker, of the row after it, and of rows after the gap was accepted.
    """
    items = topics.table("items", ITEMS, key)
    topics.commit(10, topics.change(items, "r", 10, 1, after=_row(1, "old")))
    assert rows_of(run_mirror(spark, topics, target), items) == [_row(1, "old")]
    topics.commit(lsns[0], _marker(items, lsns[0], gap, timeline))
    new = topics.change(items, "c", lsns[1], 1, after=_row(2, "new"), timeline=timeline)
    topics.commit(lsns[1], new)
    with pytest.raises(CdcdError, match="CDCD-GAP") as raised:
        run_mirror(spark, topics, target)
    assert "start the mirror with --accept-gaps" in hint_of(str(raised.value))
    both = [_row(1, "old"), _row(2, "new")]
    assert rows_of(run_mirror(spark, topics, target, accept_gaps=True), items) == both
    for lsn in lsns[2:]:
        topics.commit(lsn, topics.change(items, "c", lsn, 1, after=_row(3, "later"), timeline=timeline))
        mirrored = run_mirror(spark, topics, target)
        assert rows_of(mirrored, items) == [*both, _row(3, "later")], "the mirror continues after the gap"
        assert mirrored.commit_lsn == lsn


def test_the_mirror_stops_at_a_row_that_was_too_large_for_kafka(tmp_path: Path) -> None:
    """F65: the marker has the row's own key, and is among the rows of one bucket."""
    topic = "shop.public.items"
    value, key = envelope_schema(topic, ITEMS), key_schema(topic, ITEMS[:1])
    items = Table(topic, ITEMS, ("id",), "", (1, value), (2, key))
    row = items.event("c", 10, 1, after=_row(1, "a"))
    marker = (items.key_bytes(_row(2, "")), items.event("g", 10, 2, special=TOO_LARGE)[1])
    look = Look(topic, rows=2, keyed_rows=2, last_values=(marker[1],))
    place = {"topic": [topic] * 2, "bucket": [0] * 2}
    group = pa.table({**place, "key": [row[0], marker[0]], "value": [row[1], marker[1]]})
    for is_accepted in (False, True):
        plan, _ = plan_table(look, TableEntry(topic), {1: value}.__getitem__, accepts_gaps=is_accepted)
        if is_accepted:
            (fold,) = fold_group(group, {topic: plan}, str(tmp_path), 1)
            assert fold.rows is not None
            assert fold.rows.num_rows == 1
            continue
        with pytest.raises(GapInTopic, match=r"too large for Kafka: see shop\.__dead_letters"):
            fold_group(group, {topic: plan}, str(tmp_path), 1)


@pytest.mark.nightly
@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("gap", [BEFORE_SNAPSHOT, pytest.param(LOST, marks=pytest.mark.long)])
def test_a_gap_that_a_snapshot_follows_is_whole(
    spark: SparkSession, topics: TopicsWriter, target: Path, key: tuple[str, ...], gap: dict[str, str]
) -> None:
    items = topics.table("items", ITEMS, key)
    topics.commit(10, topics.change(items, "r", 10, 1, after=_row(1, "gone in the gap")))
    run_mirror(spark, topics, target)
    topics.commit(20, _marker(items, 20, gap))
    if gap is BEFORE_SNAPSHOT:
        assert len(rows_of(run_mirror(spark, topics, target), items)) == 1, "as of the gap's beginning"
    topics.commit(
        30,
        [
            *topics.change(items, "t", 30, 1, snapshot=True),
            *topics.change(items, "r", 30, 2, after=_row(2, "copied")),
        ],
    )
    assert rows_of(run_mirror(spark, topics, target), items) == [_row(2, "copied")]
