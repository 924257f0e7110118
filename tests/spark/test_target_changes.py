"""The net changes between two versions of a mirror: applied to the first they give the second."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import ConfigError, SparkReadError, TablesParked
from cdcd.spark import changes, read_mirror
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.tables.compaction import FAN
from cdcd.spark.tables.table_files import changed_rows, read_keys, read_table, write_delta
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.support.nightly import nightly_except

FIELDS = [column("id", "int", required=True), column("name", "string")]
Row = dict[str, Any]


def _history(items: Batches, seed: int, batches: int, *, has_truncate: bool) -> list[list[Row]]:
    """Apply random batches, each at the LSN 10 * its number; return the rows after each."""
    chosen = random.Random(seed)
    rows: dict[int, str] = {}
    found = []
    for batch in range(1, batches + 1):
        records = []
        if has_truncate and batch == batches // 2:
            records.append(items.change("t", 10 * batch, 1))
            rows = {}
        for number in range(2, 8):
            one, name = chosen.randrange(20), f"{batch}.{number}"
            if one in rows and chosen.random() < 0.3:
                records.append(
                    items.change("d", 10 * batch, number, before={"id": one, "name": rows.pop(one)})
                )
                continue
            before = {"id": one, "name": rows.get(one)} if one in rows else None
            op = "u" if one in rows else "c"
            rows[one] = name
            records.append(
                items.change(op, 10 * batch, number, before=before, after={"id": one, "name": name})
            )
        items.run(records, loading=False)
        found.append([{"id": one, "name": name} for one, name in rows.items()])
    return found


def _applied(rows: list[Row], found: DataFrame) -> Counter[tuple[Any, ...]]:
    """Return the rows after the changes. Each removed row is there."""
    counts = Counter((row["id"], row["name"]) for row in rows)
    for change in found.collect():
        assert (
            change["op"]
            == {(False, True): "c", (True, True): "u", (True, False): "d"}[
                change["before"] is not None, change["after"] is not None
            ]
        )
        if change["before"] is not None:
            counts[change["before"]["id"], change["before"]["name"]] -= 1
        if change["after"] is not None:
            counts[change["after"]["id"], change["after"]["name"]] += 1
    assert all(count >= 0 for count in counts.values())
    return +counts


@pytest.mark.parametrize(
    ("has_key", "has_truncate", "table_format"),
    nightly_except(
        [(*way, one) for way in ((True, False), (True, True), (False, True)) for one in TABLE_FORMATS],
        *((True, False, "parquet"), (True, True, "delta"), (False, True, "parquet")),
    ),
)
def test_the_changes_lead_from_one_version_to_the_other(
    spark: SparkSession, tmp_path: Path, has_key: bool, has_truncate: bool, table_format: TableFormat
) -> None:
    items = Batches(tmp_path / "mirror", FIELDS, has_key=has_key, table_format=table_format)
    states = _history(items, 7, 2 * FAN + 2, has_truncate=has_truncate)
    last = len(states)
    for since, until in ((1, last), (last - 3, last), (last, last), (FAN - 1, FAN + 1)):
        found = changes(spark, str(items.target), "public.items", 10 * since, 10 * until)
        expected = Counter((row["id"], row["name"]) for row in states[until - 1])
        assert _applied(states[since - 1], found) == expected, (since, until)


def test_a_row_that_is_as_it_was_is_no_change(spark: SparkSession, tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", FIELDS)
    rows = [{"id": one, "name": "a"} for one in (1, 2)]
    items.run([items.change("c", 10, one["id"], after=one) for one in rows], loading=False)
    items.run([items.change("u", 20, 1, after={"id": 1, "name": "b"})], loading=False)
    items.run([items.change("u", 30, 1, after={"id": 1, "name": "a"})], loading=False)
    assert changes(spark, str(items.target), "public.items", 10).count() == 0
    assert changes(spark, str(items.target), "public.items", 20).collect()[0]["after"]["name"] == "a"
    with pytest.raises(SparkReadError, match="no such table"):
        changes(spark, str(items.target), "public.others", 10)


def test_a_change_in_a_merged_file_of_a_delta_table_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """A changed row replaces its file, which is of the same level then."""
    items = Batches(tmp_path / "mirror", FIELDS, table_format="delta")
    for number in range(FAN):
        items.run(
            [items.change("c", 10 + number, 1, after={"id": number, "name": "a"})],
            loading=False,
        )
    with items.mirror() as mirror:
        mirror.compact()
    items.run([items.change("u", 50, 1, after={"id": 1, "name": "b"})], loading=False)
    found = changes(spark, str(items.target), "public.items", 9 + FAN).collect()
    assert [(one["op"], one["after"]["name"]) for one in found] == [("u", "b")]


@pytest.mark.parametrize(
    ("has_key", "logical"),
    nightly_except(
        product([True, False], ["timestamp-micros", "local-timestamp-micros"]),
        *((True, "timestamp-micros"), (False, "local-timestamp-micros")),
    ),
)
def test_a_timestamp_that_changes_by_a_microsecond_is_a_change(
    spark: SparkSession, tmp_path: Path, has_key: bool, logical: str
) -> None:
    """Spark's JSON of a row, by which rows are compared, has milliseconds by default."""
    at = column("at", {"type": "long", "logicalType": logical})
    items = Batches(tmp_path / "mirror", [FIELDS[0], at], has_key=has_key)
    rows = [{"id": one, "at": 1_700_000_000_123_456 + one} for one in (1, 2)]
    items.run([items.change("c", 10, one["id"], after=one) for one in rows], loading=False)
    moved = rows[0] | {"at": rows[0]["at"] + 1}
    items.run([items.change("u", 20, 1, before=rows[0], after=moved)], loading=False)
    found = changes(spark, str(items.target), "public.items", 10)
    shown = found.selectExpr(
        "op", "unix_micros(cast(before.at AS timestamp))", "unix_micros(cast(after.at AS timestamp))"
    )
    expected = {("u", rows[0]["at"], moved["at"])}
    if not has_key:
        expected = {("d", rows[0]["at"], None), ("c", None, moved["at"])}
    assert {tuple(one) for one in shown.collect()} == expected


@pytest.mark.parametrize(
    ("since", "table_format"),
    nightly_except(product([10, 20], TABLE_FORMATS), *product([10, 20], ["parquet"]), (20, "delta")),
)
def test_a_truncate_between_two_versions_removes_each_row(
    spark: SparkSession, tmp_path: Path, since: int, table_format: TableFormat
) -> None:
    """Also the rows of base files and of deltas that are gone, and that no later file names."""
    items = Batches(tmp_path / "mirror", FIELDS, table_format=table_format)
    copied = [items.change("r", 10, one, after={"id": one, "name": "a"}) for one in range(1, 6)]
    items.run(copied, loading=False)
    changed = items.change("u", 20, 1, after={"id": 1, "name": "b"})
    items.run([changed, items.change("c", 20, 2, after={"id": 6, "name": "c"})], loading=False)
    items.run(
        [items.change("t", 30, 1), items.change("c", 30, 2, after={"id": 2, "name": "d"})], loading=False
    )
    items.run([items.change("c", 40, 1, after={"id": 9, "name": "e"})], loading=False)
    found = {
        (one["before"] or one["after"])["id"]: one["op"]
        for one in changes(spark, str(items.target), "public.items", since).collect()
    }
    gone = {1, 3, 4, 5} | ({6} if since == 20 else set())
    assert found == dict.fromkeys(gone, "d") | {2: "u", 9: "c"}


def _without_base_files(items: Batches) -> None:
    """Publish a version in which a delta has all rows of the table."""
    version = read_latest(items.target)
    assert version is not None
    entry = version.tables[TOPIC]
    rows = read_table(items.target, entry)
    delta = write_delta(items.target, entry.shape(), changed_rows(rows, rows["__key"].combine_chunks()))
    assert len(read_keys(items.target, delta)) == rows.num_rows
    moved = replace(entry, files=(), deltas=(delta,))
    TargetWriter(items.target, version).publish(replace(version, tables={TOPIC: moved}))


def test_a_truncate_of_a_table_without_base_files_removes_each_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its deltas are gone, without a merge: no file that is left names a key of them."""
    items = Batches(tmp_path / "mirror", FIELDS)
    items.run(
        [items.change("r", 10, one, after={"id": one, "name": "a"}) for one in (1, 2, 3)], loading=False
    )
    _without_base_files(items)
    assert len(items.rows()) == 3
    assert changes(spark, str(items.target), "public.items", 10).count() == 0
    items.run([items.change("t", 20, 1)], loading=False)
    found = changes(spark, str(items.target), "public.items", 10).collect()
    assert sorted((one["op"], one["before"]["id"]) for one in found) == [("d", 1), ("d", 2), ("d", 3)]


def _park(items: Batches) -> None:
    items.run([items.change("u", 20, 1, after={"id": 9, "name": None}, unchanged=["name"])], loading=False)


def _drop(items: Batches) -> None:
    drop_table(str(items.target), "public.items")


def _create_again(items: Batches) -> None:
    items.alter(FIELDS, relid=8)


LEAVES = {"parked": _park, "dropped": _drop, "created again": _create_again}


@pytest.mark.parametrize(
    ("how", "is_empty", "table_format"),
    nightly_except(
        product(LEAVES, [False, True], TABLE_FORMATS),
        *product(LEAVES, [False], ["parquet"]),
        ("parked", False, "delta"),
        ("dropped", True, "parquet"),
    ),
)
def test_a_table_that_began_anew_has_its_former_values(
    spark: SparkSession, tmp_path: Path, how: str, is_empty: bool, table_format: TableFormat
) -> None:
    """Its columns have other numbers in the new files, and no version between may have the table."""
    items = Batches(tmp_path / "mirror", FIELDS, table_format=table_format)
    items.on_error = "park"
    items.alter(FIELDS, relid=7)
    items.run(
        [items.change("r", 10, one, after={"id": one, "name": "a"}) for one in (1, 2, 3)], loading=False
    )
    since = read_mirror(items.target).at
    LEAVES[how](items)
    rows = [] if is_empty else [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    copied = [items.change("r", 30, 1 + row["id"], after=row) for row in rows]
    items.run([items.change("t", 30, 1, snapshot=True), *copied], loading=False)
    found = [tuple(one) for one in changes(spark, str(items.target), "public.items", since).collect()]
    former = [{"id": one, "name": "a", "__special": None} for one in (1, 2, 3)]
    expected: list[tuple[Any, ...]] = [("d", one, None) for one in former]
    if rows:
        expected = [("u", former[1], former[1] | {"name": "b"}), ("d", former[2], None)]
    shown = [(op, *(side and side.asDict() for side in sides)) for op, *sides in found]
    assert sorted(shown, key=lambda one: one[1]["id"]) == expected


def test_a_table_copied_with_another_type_has_no_former_values(spark: SparkSession, tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", FIELDS)
    items.on_error = "park"
    items.run([items.change("c", 10, 1, after={"id": 1, "name": "a"})], loading=False)
    items.alter([FIELDS[0], column("name", "int")])
    items.run([items.change("u", 20, 1, after={"id": 1, "name": 5})], loading=False)
    items.run([items.change("t", 30, 1)], loading=False)
    with pytest.raises(SparkReadError, match="another type of a column"):
        changes(spark, str(items.target), "public.items", 10)


def test_positions_in_the_wrong_order_and_unfinished_tables_are_errors(
    spark: SparkSession, tmp_path: Path
) -> None:
    """None of them is an empty answer, or one in which rows that are not copied yet are deleted."""
    items = Batches(tmp_path / "mirror", FIELDS)
    items.on_error = "park"
    rows = [items.change("c", 10, one, after={"id": one, "name": "a"}) for one in (1, 2)]
    items.run(rows, loading=False)
    found = partial(changes, spark, str(items.target), "public.items")
    items.run([items.change("t", 20, 1, snapshot=True)], loading=True)
    with pytest.raises(ConfigError, match="since is later than until"):
        found(20, 10)
    with pytest.raises(SparkReadError, match="still copies"):
        found(10)
    assert found(10, loading=True).count() == 2
    items.run([items.change("r", 20, 2, after={"id": 1, "name": "a"})], loading=False, end_lsn=21)
    assert [(one["op"], one["before"]["id"]) for one in found(10).collect()] == [("d", 2)]
    items.run([items.change("u", 30, 1, after={"id": 9, "name": None}, unchanged=["name"])], loading=False)
    with pytest.raises(TablesParked, match="not updated any more"):
        found(10)
    assert found(10, parked=True).count() == 1
    with pytest.raises(SparkReadError, match="no such table"):
        changes(spark, str(items.target), "public.item", 10)
