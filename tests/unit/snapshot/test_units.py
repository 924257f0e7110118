"""The division of tables into units: the ranges cover everything once."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from cdcd.snapshot.key_sql import key_columns
from cdcd.snapshot.units import CopiedTable, KeyBounds, KeyRange, TableFile, units_of

TABLE = CopiedTable(7, "shop", "orders", ("id",), None, is_partitioned=False)
_FROM = re.compile(r"ctid >= '\((\d+),0\)'::pg_catalog\.tid")
_TO = re.compile(r"ctid < '\((\d+),0\)'::pg_catalog\.tid")


@pytest.mark.parametrize("pages", [0, 1, 9, 10, 11, 15, 16, 20, 24, 25, 26, 1000, 100_003])
def test_block_ranges_follow_each_other_and_the_last_one_is_open(pages: int) -> None:
    units = units_of(TABLE, [TableFile(pages)], has_block_ranges=True, unit_pages=10)
    assert [unit.number for unit in units] == list(range(len(units)))
    assert {unit.leaf for unit in units} == {None}
    if len(units) == 1:
        assert units[0].condition is None
        assert pages <= 15
        return
    assert abs(len(units) - pages / 10) <= 1
    at = 0
    for unit in units:
        assert unit.condition is not None
        ((start,), ends) = _FROM.findall(unit.condition), _TO.findall(unit.condition)
        assert int(start) == at
        at = int(ends[0]) if ends else -1
    assert at == -1


def test_the_partitions_of_a_table_are_divided_one_by_one() -> None:
    files = [TableFile(25, 11), TableFile(0, 12), TableFile(3, 13)]
    units = units_of(TABLE, files, has_block_ranges=True, unit_pages=10)
    assert [unit.leaf for unit in units] == [11, 11, 12, 13]
    assert [unit.condition is None for unit in units] == [False, False, True, True]


OPERATORS = [("pg_catalog", name) for name in ("<", "<=", "=", ">=", ">")]
(COLUMN,) = key_columns([("id", "pg_catalog", "int8", None, None, OPERATORS)])
BOUNDS = KeyBounds(COLUMN, tuple(str(n) for n in range(0, 1010, 10)), ("id",))


@pytest.mark.parametrize(
    ("pages", "count"), [(0, 1), (19, 1), (20, 2), (35, 3), (1000, 100), (10**6, len(BOUNDS.values) + 1)]
)
def test_key_ranges_follow_each_other_and_both_ends_are_open(pages: int, count: int) -> None:
    units = units_of(TABLE, [TableFile(pages)], has_block_ranges=False, bounds=BOUNDS, unit_pages=10)
    assert len(units) == count
    if count == 1:
        assert units[0].condition is None
        return
    ranges = [unit.range for unit in units if isinstance(unit.range, KeyRange)]
    assert (ranges[0].after, ranges[-1].upto) == (None, None)
    assert [one.upto for one in ranges[:-1]] == [one.after for one in ranges[1:]]
    chosen = [BOUNDS.values.index(str(one.upto)) for one in ranges[:-1]]
    assert chosen == sorted(set(chosen))
    assert {one.order for one in ranges} == {("id",)}


def test_a_range_of_keys_has_its_upper_bound_by_the_operators_of_the_index() -> None:
    column, upto = '"id" OPERATOR("pg_catalog".{}) ', '\'7\'::"pg_catalog"."int8"'
    first, second = (KeyRange(COLUMN, *bounds) for bounds in pairwise([None, "7", "9"]))
    assert first.condition == column.format("<=") + upto
    assert second.condition.startswith(column.format(">") + upto + " AND " + column.format("<="))


def test_without_bounds_or_with_partitions_the_server_reads_whole_tables() -> None:
    assert [unit.condition for unit in units_of(TABLE, [TableFile(100)], has_block_ranges=False)] == [None]
    files = [TableFile(9999, 11), TableFile(9999, 12)]
    units = units_of(TABLE, files, has_block_ranges=False, bounds=BOUNDS)
    assert [(unit.leaf, unit.condition) for unit in units] == [(11, None), (12, None)]


def test_a_table_whose_files_are_unknown_is_one_unit() -> None:
    (unit,) = units_of(TABLE, [], has_block_ranges=True)
    assert (unit.table, unit.number, unit.leaf, unit.condition) == (TABLE, 0, None, None)
