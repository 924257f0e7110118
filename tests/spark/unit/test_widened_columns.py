"""A column whose integers become floating-point numbers, as by `ALTER COLUMN ... TYPE float8`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cdcd.spark.decoding.columns import arrow_array
from tests.spark.batches import Batches
from tests.spark.events import column


@pytest.mark.parametrize(
    ("old", "new", "value", "rounded"),
    [("long", "double", 2**53 + 1, 2.0**53), ("int", "float", 2**24 + 1, 2.0**24), ("int", "double", 5, 5.0)],
)
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_an_integer_becomes_the_nearest_floating_point_number(
    tmp_path: Path, old: str, new: str, value: int, rounded: float, in_one_batch: bool
) -> None:
    """In a table without a key, whose rows are folded one by one, and then found by all of their values."""
    fields = [[column("id", "int", required=True), column("n", one)] for one in (old, new)]
    items = Batches(tmp_path / "t", fields[0], has_key=False)
    records = [items.change("c", 10, number, after={"id": number, "n": value}) for number in (1, 2)]
    if not in_one_batch:
        items.run(records, loading=False)
        records = []
    items.alter(fields[1])
    records.append(items.change("c", 20, 1, after={"id": 3, "n": None}))
    records.append(items.change("d", 30, 1, before={"id": 1, "n": rounded}))
    assert items.run(records, loading=False) == [{"id": 2, "n": rounded}, {"id": 3, "n": None}]


def test_an_integer_is_rounded_once() -> None:
    """As by PostgreSQL; by way of a double it would become 2**62."""
    value = 2**62 + 2**38 + 1
    assert arrow_array([value, 1.5, None, math.nan], "float").to_pylist()[:3] == [
        2.0**62 + 2.0**39,
        1.5,
        None,
    ]
