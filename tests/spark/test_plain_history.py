"""SQL views of histories in Spark's dialect: the rows that `history` returns."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

from cdcd.spark import history
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.reading.plain_views import plain_views
from tests.spark.batches import Batches
from tests.spark.events import column
from tests.spark.history_model import FIELDS, Model, batch_of, copy_of, item, versions_of
from tests.spark.test_row_history import TABLE


def rows_of(spark: SparkSession, items: Batches) -> list[str]:
    views = {one.name: one for one in plain_views(read_mirror(items.target), "spark")}
    statement = views["public_items_history"].statement
    assert statement is not None
    spark.sql(statement)
    return sorted(map(repr, spark.table("public_items_history").collect()))


def test_the_versions_are_those_of_history(spark: SparkSession, tmp_path: Path) -> None:
    """With changes of all kinds, types that Spark compares otherwise, and texts of values outside their types."""
    items, model, chosen = Batches(tmp_path / "mirror", FIELDS), Model(), random.Random(3)
    items.scd_type = 2
    for number in range(1, 6):
        make = copy_of if number > 3 else batch_of
        items.run(make(items, model, 100 * number, chosen), loading=False)
    assert versions_of(spark, items.target) == model.versions
    pairs = {"type": "map", "values": ["null", "string"]}
    items.alter([*FIELDS, column("size", "double"), column("pairs", pairs)])
    changes = []
    for lsn, size in ((900, 0.0), (901, -0.0), (902, float("nan")), (903, float("nan"))):
        after = {**item(50, None), "size": size, "pairs": {"a": None}}
        special = {"after.name": "infinity"}
        changes.append(items.change("u", lsn, 1, after=after, special=special, commit_us=lsn))
    items.run(changes, loading=False)
    found = rows_of(spark, items)
    assert found == sorted(map(repr, history(spark, str(items.target), TABLE).collect()))
    assert len(found) == len(model.versions) + 3


def test_times_inside_arrays_and_composites_differ_by_microseconds(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = {"type": "array", "items": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}
    local = {"type": "long", "logicalType": "local-timestamp-micros"}
    parts = [{"name": "seen", "type": ["null", local], "default": None}]
    place = {"type": "record", "name": "Place", "fields": parts}
    items = Batches(tmp_path / "mirror", [FIELDS[0], column("times", times), column("place", place)])
    items.scd_type = 2
    began = 1_700_000_000_123_000
    for lsn, of_times, of_place in ((10, began, None), (20, began + 456, None), (30, began + 456, began)):
        row = {"id": 1, "times": [of_times], "place": {"seen": of_place}}
        items.run([items.change("c" if lsn == 10 else "u", lsn, 1, after=row)], loading=False)
    row = {"id": 1, "times": [began + 456], "place": {"seen": began + 1}}
    items.run([items.change("u", 40, 1, after=row)], loading=False)
    found = rows_of(spark, items)
    assert len(found) == 4
    assert found == sorted(map(repr, history(spark, str(items.target), TABLE).collect()))
