"""The retention of a history: what has ended before it goes, what is valid after it remains as it is.

The judge is the model of `test_row_history`, which replays the changes one by one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import ConfigError
from cdcd.spark import history, read_mirror
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.tables import history_merges
from tests.spark.batches import Record
from tests.spark.history_model import (
    FIELDS,
    TABLE,
    Model,
    Timed,
    Version,
    batch_of,
    copy_of,
    item,
    stopped_copy_of,
    versions_of,
)
from tests.spark.topics import TopicsWriter
from tests.support.nightly import nightly


@pytest.fixture
def items(tmp_path: Path) -> Timed:
    made = Timed(tmp_path / "mirror", FIELDS)
    made.scd_type = 2
    return made


@pytest.mark.parametrize("part_bytes", [1 << 26, nightly(200)])
@pytest.mark.parametrize("seed", [1, *(nightly(seed) for seed in range(2, 10))])
def test_what_is_valid_after_the_retention_remains(
    spark: SparkSession, items: Timed, monkeypatch: pytest.MonkeyPatch, seed: int, part_bytes: int
) -> None:
    """Random changes of all kinds: updates without TOASTed values, TRUNCATE, copies."""
    monkeypatch.setattr(history_merges, "SHARE", 1 << 30)  # a cut at each new line
    monkeypatch.setattr(history_merges, "PART_BYTES", part_bytes)
    model, chosen = Model(), random.Random(seed)
    for batch in range(1, 12):
        make = copy_of if batch in (4, 5, 10) else batch_of
        if batch == 5:
            items.run(stopped_copy_of(items, model, 450, chosen), loading=True)
        items.run(make(items, model, 100 * batch, chosen), loading=False)
        items.retain_from(100 * batch - 450)
        items.compact()
        if batch not in (6, 11):  # Spark takes seconds to read a history
            continue
        found = versions_of(spark, items.target)
        assert set(found) <= set(model.versions), "no version is another one than it was"
        assert set(found) >= {one for one in model.versions if _end(one) > 100 * batch - 400}
    assert len(found) < len(model.versions)
    items.retain_from(10_000)
    items.compact()
    valid = [one for one in model.versions if one[4] is None]
    assert versions_of(spark, items.target) == valid
    assert items.rows() == sorted(model.rows.values(), key=lambda row: row["id"])


def test_nothing_is_cut_off_while_the_table_is_copied(spark: SparkSession, items: Timed) -> None:
    """The rows that are not copied again yet may be the same, and then their versions go on."""
    items.run([items.change("c", 10, number, after=item(number, "a")) for number in (1, 2)], loading=False)
    copied = [items.change("t", 20, 1, snapshot=True), items.change("r", 20, 2, after=item(1, "a"))]
    items.run(copied, loading=True)
    items.retain_from(10_000)
    items.compact()
    items.run([items.change("r", 40, 1, after=item(2, "a"))], loading=False)
    items.compact()
    assert versions_of(spark, items.target) == [(1, "a", "n", (10, 1), None), (2, "a", "n", (10, 2), None)]


def _end(version: Version) -> float:
    return float("inf") if version[4] is None else version[4][0]


def test_the_files_of_removed_lines_go_and_the_value_of_an_open_version_remains(
    spark: SparkSession, items: Timed
) -> None:
    """A value that an update did not send is in a line that goes; a table without changes is looked at, too."""
    items.run([items.change("c", 10, 1, after=item(1, "a", "long")), _insert(items, 2)], loading=False)
    items.run([items.change("u", 20, 1, after=item(1, "b", None), unchanged=["note"])], loading=False)
    items.run([items.change("d", 30, 1, before=item(2, None))], loading=False)
    before, at = versions_of(spark, items.target), read_mirror(items.target).at
    assert len(before) == 3
    items.retain_from(25)
    items.compact()
    assert versions_of(spark, items.target) == [
        (1, "b", "long", (20, 1), None),
        (2, "a", "n", (10, 2), (30, 1)),
    ]
    assert versions_of(spark, items.target, at=at) == before, "an earlier version has its files"
    items.retain_from(35)
    items.compact()
    assert versions_of(spark, items.target) == [(1, "b", "long", (20, 1), None)]
    assert items.lines() == 1


def _insert(items: Timed, number: int) -> Record:
    return items.change("c", 10, number, after=item(number, "a"))


def test_rows_that_are_copied_after_the_retention_go_on(spark: SparkSession, items: Timed) -> None:
    """The copy began before the retention, and its rows come after it."""
    items.run([_insert(items, 1), _insert(items, 2)], loading=False)
    items.run([items.change("t", 20, 1, snapshot=True)], loading=True)
    items.run([items.change("r", 40, 1, after=item(1, "a"))], loading=False)
    items.retain_from(30)
    items.compact()
    assert versions_of(spark, items.target) == [(1, "a", "n", (10, 1), None)]


def test_without_a_retention_nothing_goes(spark: SparkSession, items: Timed) -> None:
    items.run([_insert(items, 1)], loading=False)
    items.run([items.change("u", 20, 1, after=item(1, "b"))], loading=False)
    items.compact()
    assert len(versions_of(spark, items.target)) == 2


def test_texts_of_values_outside_their_types_remain(spark: SparkSession, items: Timed) -> None:
    """The text is that of a line that goes, as its value is."""
    sent = {"after": item(1, "a", None), "special": {"after.note": "kept"}}
    items.run([items.change("c", 10, 1, **sent)], loading=False)
    items.run([items.change("u", 20, 1, after=item(1, "b", None), unchanged=["note"])], loading=False)
    items.retain_from(25)
    items.compact()
    (row,) = history(spark, str(items.target), TABLE).collect()
    assert (row["name"], row["__special"]) == ("b", {"note": "kept"})
    assert items.lines() == 1


def test_a_retention_without_a_history_is_refused(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    with pytest.raises(ConfigError, match="retention of the history"):
        mirror(spark, topics.connection, str(target), history_retain_s=5.0)
