"""A mirror with policies for dropped columns and incompatible types: what other readers find in its tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import MirrorInconsistent
from cdcd.spark.commands import mirror as command
from cdcd.spark.commands.arguments import parse
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.tables.retained_columns import DEFAULT_POLICIES, ColumnPolicies
from cdcd.spark.target.versions import SCD_TYPES, TABLE_FORMATS, ScdType, TableFormat
from tests.spark.batches import TOPIC, Batches, Record
from tests.spark.events import column, key_schema
from tests.spark.foreign_readers import READERS
from tests.spark.unit.test_plain_history import rows_of as history_rows
from tests.spark.unit.test_plain_views import shown
from tests.support.nightly import nightly

RELID = 16_400
KEEP = ColumnPolicies(dropped="keep")
NEW_COLUMN = ColumnPolicies(changed_types="new_column")
Row = dict[str, Any]
Field = dict[str, Any]
ID = column("id", "int", required=True, **{"pg.attnum": 1})


def of(name: str, attnum: int | None, avro: Any = "string") -> Field:
    return column(name, avro, **({} if attnum is None else {"pg.attnum": attnum}))


class Mirrored:
    """A mirror of one table, and the changes that it has not read yet."""

    def __init__(
        self,
        target: Path,
        *fields: Field,
        policies: ColumnPolicies = KEEP,
        has_key: bool = True,
        in_one_batch: bool = True,
        table_format: TableFormat = "parquet",
        scd_type: ScdType = 1,
    ) -> None:
        self.batches = Batches(target, [ID, *fields], has_key=has_key, table_format=table_format)
        self.batches.policies, self.batches.scd_type = policies, scd_type
        self.batches.alter([ID, *fields], RELID)
        self._in_one_batch, self._lsn = in_one_batch, 0
        self._waiting: list[Record] = []

    def alter(self, *fields: Field, relid: int = RELID, key: Field = ID) -> None:
        if not self._in_one_batch:
            self.apply()
        self.batches.alter([key, *fields], relid)
        if key is not ID:
            self.batches._table._key = (1, key_schema(TOPIC, [key]))

    def change(self, op: str, **rest: Any) -> None:
        self._lsn += 10
        self._waiting.append(self.batches.change(op, self._lsn, 1, commit_us=self._lsn * 1000, **rest))

    def insert(self, number: int, **values: Any) -> None:
        self.change("c", after={"id": number, **values})

    def update(self, before: Row, **values: Any) -> None:
        self.change("u", before=before, after={**before, **values})

    def apply(self, *, loading: bool = False) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.batches.run(waiting, loading=loading)

    def rows(self, *, loading: bool = False) -> list[Row]:
        """Return what another reader finds: of a Delta or Iceberg table its own library, of Parquet files DuckDB."""
        self.apply(loading=loading)
        opened, table_format = read_mirror(self.batches.target), self.batches.table_format
        if table_format == "parquet":
            return in_order(shown(opened))
        return in_order(READERS[table_format].newest(self.batches.target).to_pylist())

    def restart(self, policies: ColumnPolicies) -> None:
        self.apply()
        self.batches.policies = policies


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the columns of cdcd; one that is not empty stays."""
    found = [
        {name: value for name, value in one.items() if name != "__key" and (name != "__special" or value)}
        for one in rows
    ]
    return sorted(found, key=lambda one: (one["id"], repr(one)))


Begin = Callable[..., Mirrored]


@pytest.fixture(params=[True, False], ids=["key", "no key"])
def has_key(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[True, False], ids=["one batch", "batches"])
def in_one_batch(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=TABLE_FORMATS)
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def begin(tmp_path: Path, has_key: bool, in_one_batch: bool, table_format: TableFormat) -> Begin:
    def begun(*fields: Field, **options: Any) -> Mirrored:
        given = {"has_key": has_key, "in_one_batch": in_one_batch, "table_format": table_format}
        return Mirrored(tmp_path / "t", *fields, **{**given, **options})

    return begun


# --- dropped columns -----------------------------------------------------------------------------------------


def test_a_dropped_column_has_the_values_of_its_rows_and_is_null_in_later_ones(begin: Begin) -> None:
    items = begin(of("a", 2), of("b", 3))
    for number in (1, 2, 3):
        items.insert(number, a=f"a{number}", b="old")
    items.alter(of("b", 3))
    items.insert(4, b="new")
    items.update({"id": 2, "b": "old"}, b="new")
    items.change("d", before={"id": 3, "b": "old"})
    assert items.rows() == [
        {"id": 1, "b": "old", "a": "a1"},
        {"id": 2, "b": "new", "a": None},
        {"id": 4, "b": "new", "a": None},
    ]


def test_without_the_policy_it_disappears(begin: Begin) -> None:
    items = begin(of("a", 2), of("b", 3), policies=DEFAULT_POLICIES)
    items.insert(1, a="a1", b="old")
    items.alter(of("b", 3))
    items.insert(2, b="new")
    assert items.rows() == [{"id": 1, "b": "old"}, {"id": 2, "b": "new"}]


def test_a_later_column_of_the_same_name_is_another_one(begin: Begin) -> None:
    """Without a row in between, and with one; the former one has its attnum in its name then."""
    items = begin(of("a", 2))
    items.insert(1, a="second")
    items.alter(of("a", 3))
    items.insert(2, a="third")
    items.alter()
    items.insert(3)
    assert items.rows() == [
        {"id": 1, "a__2": "second", "a": None},
        {"id": 2, "a__2": None, "a": "third"},
        {"id": 3, "a__2": None, "a": None},
    ]
    items.alter(of("a", 4))
    items.insert(4, a="fourth")
    assert items.rows() == [
        {"id": 1, "a": None, "a__2": "second", "a__3": None},
        {"id": 2, "a": None, "a__2": None, "a__3": "third"},
        {"id": 3, "a": None, "a__2": None, "a__3": None},
        {"id": 4, "a": "fourth", "a__2": None, "a__3": None},
    ]


@pytest.mark.parametrize(
    ("dropped", "later", "named"),
    [
        (of("Name", 2), of("name", 3), "Name__2"),
        (of("a__9", 2), of("A__9", 3), "a__9__2"),
        (
            of("p.x", 2),
            of("p", 3, {"type": "record", "name": "P", "fields": [column("x", "string")]}),
            "p.x__2",
        ),
    ],
    ids=["case", "a suffix of its own", "a field inside"],
)
def test_a_name_that_differs_only_in_case_is_taken_too(
    begin: Begin, dropped: Field, later: Field, named: str
) -> None:
    """A Delta or Iceberg table cannot have both, nor Iceberg a column named as a field inside another."""
    if "." in dropped["name"]:
        dropped = {**dropped, "name": "p_x"}  # Avro's name; "pg.name" has the dot
    items = begin(dropped)
    items.insert(1, **{dropped["name"]: "old"})
    items.alter(later)
    value = {"x": "new"} if later["name"] == "p" else "new"
    items.insert(2, **{later["name"]: value})
    assert items.rows() == [
        {"id": 1, later["name"]: None, named: "old"},
        {"id": 2, later["name"]: value, named: None},
    ]


def test_a_name_with_an_attnum_may_be_taken(begin: Begin) -> None:
    items = begin(of("a", 2), of("a__2", 3))
    items.insert(1, a="second", a__2="x")
    items.alter(of("a", 4), of("a__2", 3))
    items.insert(2, a="fourth", a__2="y")
    assert items.rows() == [
        {"id": 1, "a": None, "a__2": "x", "a__2_2": "second"},
        {"id": 2, "a": "fourth", "a__2": "y", "a__2_2": None},
    ]


def test_a_renamed_column_is_not_dropped(begin: Begin) -> None:
    items = begin(of("a", 2), of("b", 3))
    items.insert(1, a="second", b="third")
    items.alter(of("b", 2), of("c", 3))
    items.insert(2, b="second", c="third")
    assert items.rows() == [{"id": number, "b": "second", "c": "third"} for number in (1, 2)]


def test_a_name_that_another_column_takes_over_by_a_rename(begin: Begin) -> None:
    items = begin(of("a", 2), of("b", 3))
    items.insert(1, a="second", b="third")
    items.alter(of("a", 3))
    items.insert(2, a="third")
    assert items.rows() == [
        {"id": 1, "a": "third", "a__2": "second"},
        {"id": 2, "a": "third", "a__2": None},
    ]


def test_a_column_that_comes_back_by_its_attnum_is_the_same(begin: Begin) -> None:
    """A publication has left it out for some time."""
    items = begin(of("a", 2), of("b", 3))
    items.insert(1, a="x", b="1")
    items.insert(2, a="y", b="1")
    items.alter(of("b", 3))
    items.change("u", before={"id": 2, "b": "1"}, after={"id": 2, "b": "2"})
    items.alter(of("a", 2), of("b", 3))
    items.insert(3, a="z", b="3")
    assert items.rows() == [
        {"id": 1, "a": "x", "b": "1"},
        {"id": 2, "a": None, "b": "2"},
        {"id": 3, "a": "z", "b": "3"},
    ]


def test_without_attnums_a_column_never_comes_back(tmp_path: Path, table_format: TableFormat) -> None:
    items = Mirrored(tmp_path / "t", of("a", None), in_one_batch=False, table_format=table_format)
    items.batches.alter([column("id", "int", required=True), of("a", None)])
    items.insert(1, a="old")
    items.apply()
    items.batches.alter([column("id", "int", required=True)])
    items.insert(2)
    items.apply()
    items.batches.alter([column("id", "int", required=True), of("a", None)])
    items.insert(3, a="new")
    assert items.rows() == [
        {"id": 1, "a": None, "a__dropped": "old"},
        {"id": 2, "a": None, "a__dropped": None},
        {"id": 3, "a": "new", "a__dropped": None},
    ]


def test_a_text_outside_the_type_goes_with_its_column(begin: Begin) -> None:
    items = begin(of("a", 2))
    items.change("c", after={"id": 1, "a": None}, special={"after.a": "infinity"})
    items.alter(of("a", 3))
    items.change("c", after={"id": 2, "a": None}, special={"after.a": "-infinity"})
    rows = items.rows()
    assert [dict(one["__special"]) for one in rows] == [{"a__2": "infinity"}, {"a": "-infinity"}]


@pytest.mark.parametrize("has_key", [True], ids=["key"])  # without one PostgreSQL sends all values
def test_a_value_that_was_not_sent_before_the_drop_is_that_of_the_row(begin: Begin) -> None:
    items = begin(of("a", 2), of("b", 3))
    items.insert(1, a="long", b="1")
    items.change("u", after={"id": 1, "a": None, "b": "2"}, unchanged=["a"])
    items.insert(2, a="long", b="long")
    items.alter(of("b", 3))
    items.change("u", after={"id": 2, "b": None}, unchanged=["b"])
    assert items.rows() == [{"id": 1, "a": "long", "b": "2"}, {"id": 2, "a": None, "b": "long"}]


@pytest.mark.parametrize("has_key", [True], ids=["key"])
def test_a_row_that_gets_another_key_is_a_later_one(begin: Begin) -> None:
    items = begin(of("a", 2), of("b", 3))
    items.insert(1, a="x", b="long")
    items.alter(of("b", 3))
    items.change("d", before={"id": 1, "b": None})
    items._waiting.append(
        items.batches.change("c", items._lsn, 2, after={"id": 9, "b": None}, unchanged=["b"])
    )
    assert items.rows() == [{"id": 9, "a": None, "b": "long"}]


def test_rows_without_a_key_that_differ_only_in_dropped_columns(
    tmp_path: Path, in_one_batch: bool, table_format: TableFormat
) -> None:
    """Which of them PostgreSQL removes is not known; their number is. One that was written later goes first."""
    items = Mirrored(
        tmp_path / "t", of("a", 2), has_key=False, in_one_batch=in_one_batch, table_format=table_format
    )
    for value in ("x", "x", "y"):
        items.insert(1, a=value)
    items.alter()
    items.insert(1)
    items.change("d", before={"id": 1})
    if not in_one_batch:
        assert [one["a"] for one in items.rows()] == ["x", "x", "y"]
    items.change("d", before={"id": 1})
    found = [one["a"] for one in items.rows()]
    assert len(found) == 2
    assert set(found) <= {"x", "y"}
    for _ in found:
        items.change("d", before={"id": 1})
    assert items.rows() == []


def test_rows_without_a_key_are_found_while_columns_are_dropped_one_after_another(
    tmp_path: Path, in_one_batch: bool, table_format: TableFormat
) -> None:
    """A row is found by all values that PostgreSQL sent at that time."""
    items = Mirrored(
        *(tmp_path / "t", of("a", 2), of("b", 3)),
        has_key=False,
        in_one_batch=in_one_batch,
        table_format=table_format,
    )
    for value in ("x", "y", "z"):
        items.insert(1, a=f"a{value}", b=value)
    items.alter(of("b", 3))
    items.change("d", before={"id": 1, "b": "y"})
    items.alter()
    items.insert(2)
    assert items.rows() == [
        {"id": 1, "a": "ax", "b": "x"},
        {"id": 1, "a": "az", "b": "z"},
        {"id": 2, "a": None, "b": None},
    ]


def test_a_row_is_found_by_a_value_of_a_default_that_was_not_sent(begin: Begin) -> None:
    """The column is dropped again, so that in one batch the schema of the rows from before is the newest."""
    items = begin(of("a", 2))
    items.insert(1, a="x")
    items.insert(2, a="x")
    items.alter(of("a", 2), of("c", 3))
    items.insert(3, a="x", c="own")
    items.change("d", before={"id": 1, "a": "x", "c": "default"})
    items.alter(of("a", 2))
    items.insert(4, a="x")
    assert items.rows() == [
        {"id": 2, "a": "x", "c": None},
        {"id": 3, "a": "x", "c": "own"},
        {"id": 4, "a": "x", "c": None},
    ]


def test_a_table_that_is_created_again_has_its_columns_only(begin: Begin) -> None:
    items = begin(of("a", 2))
    items.insert(1, a="former")
    items.alter()
    items.insert(2)
    items.alter(of("b", 2), relid=RELID + 1)
    items.insert(3, b="new")
    assert items.rows() == [{"id": 3, "b": "new"}]


def test_a_truncate_removes_the_rows_and_no_column(begin: Begin) -> None:
    items = begin(of("a", 2))
    items.insert(1, a="x")
    items.alter()
    items.insert(2)
    items.change("t")
    items.insert(3)
    assert items.rows() == [{"id": 3, "a": None}]


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_another_policy_after_a_restart(tmp_path: Path, has_key: bool, table_format: TableFormat) -> None:
    """What was dropped before stays away; what is retained goes with the next change of the table."""
    items = Mirrored(
        *(tmp_path / "t", of("a", 2), of("b", 3), of("c", 4)),
        policies=DEFAULT_POLICIES,
        has_key=has_key,
        table_format=table_format,
    )
    items.insert(1, a="a", b="b", c="c")
    items.apply()
    items.alter(of("b", 3), of("c", 4))
    items.insert(2, b="b", c="c")
    items.restart(KEEP)
    items.alter(of("c", 4))
    items.insert(3, c="c")
    retained = [
        {"id": 1, "b": "b", "c": "c"},
        {"id": 2, "b": "b", "c": "c"},
        {"id": 3, "b": None, "c": "c"},
    ]
    assert items.rows() == retained
    items.restart(DEFAULT_POLICIES)
    assert items.rows() == retained, "nothing has changed yet"
    items.change("d", before={"id": 2, "c": "c"})
    assert items.rows() == [{"id": 1, "c": "c"}, {"id": 3, "c": "c"}]
    items.restart(KEEP)
    items.insert(4, c="c")
    assert items.rows() == [{"id": number, "c": "c"} for number in (1, 3, 4)]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_history_has_the_values_until_the_rows_change(
    tmp_path: Path, in_one_batch: bool, table_format: TableFormat
) -> None:
    items = Mirrored(
        *(tmp_path / "t", of("a", 2), of("b", 3)),
        in_one_batch=in_one_batch,
        table_format=table_format,
        scd_type=2,
    )
    items.insert(1, a="x", b="1")
    items.insert(2, a="y", b="1")
    items.alter(of("b", 3))
    items.update({"id": 1, "b": "1"}, b="2")
    items.alter(of("a", 4), of("b", 3))
    items.insert(3, a="new", b="1")
    items.apply()
    found = [
        (one["id"], one["b"], one["a__2"], one["a"], one["__end_at"] is None)
        for one in history_rows(read_mirror(items.batches.target))
    ]
    assert sorted(found, key=repr) == [
        (1, "1", "x", None, False),
        (1, "2", None, None, True),
        (2, "1", "y", None, True),
        (3, "1", None, "new", True),
    ]


@pytest.mark.parametrize("scd_type", SCD_TYPES)
def test_files_are_merged_with_all_columns(
    tmp_path: Path, table_format: TableFormat, scd_type: ScdType
) -> None:
    items = Mirrored(tmp_path / "t", of("a", 2), table_format=table_format, scd_type=scd_type)
    for number in range(12):
        items.insert(number, a=f"a{number}")
        items.apply()
    items.alter()
    for number in range(12, 24):
        items.insert(number)
        items.apply()
    with items.batches.mirror() as batches:
        batches.compact()
    expected = [{"id": n, "a": f"a{n}" if n < 12 else None} for n in range(24)]
    assert items.rows() == expected


def test_an_incomplete_row_of_a_copy_becomes_complete(tmp_path: Path, table_format: TableFormat) -> None:
    """The value that it lacks is of a column that was dropped before the row was copied."""
    items = Mirrored(tmp_path / "t", of("a", 2), of("b", 3), table_format=table_format)
    items.change("u", after={"id": 1, "a": None, "b": "1"}, unchanged=["a"])
    items.apply(loading=True)
    items.alter(of("b", 3))
    items.change("r", after={"id": 1, "b": "2"})
    assert items.rows() == [{"id": 1, "a": None, "b": "2"}]


# --- incompatible types --------------------------------------------------------------------------------------


def test_the_values_of_a_former_type_are_in_a_column_of_their_own(begin: Begin) -> None:
    """Rows that were not sent since have no value of the new type."""
    items = begin(of("n", 2, "int"), of("b", 3), policies=NEW_COLUMN)
    for number in (1, 2, 3):
        items.insert(number, n=number, b="old")
    items.alter(of("n", 2), of("b", 3))
    items.insert(4, n="four", b="new")
    items.change("u", before={"id": 2, "n": "2", "b": "old"}, after={"id": 2, "n": "two", "b": "old"})
    items.change("d", before={"id": 3, "n": "3", "b": "old"})
    assert items.rows() == [
        {"id": 1, "n": None, "b": "old", "n__2": 1},
        {"id": 2, "n": "two", "b": "old", "n__2": None},
        {"id": 4, "n": "four", "b": "new", "n__2": None},
    ]


def test_a_type_may_change_twice_and_a_column_that_is_dropped_disappears(begin: Begin) -> None:
    items = begin(of("n", 2, "int"), policies=NEW_COLUMN)
    items.insert(1, n=1)
    items.alter(of("n", 2))
    items.insert(2, n="two")
    items.alter(of("n", 2, "double"))
    items.insert(3, n=3.5)
    assert items.rows() == [
        {"id": 1, "n": None, "n__2": 1, "n__2_2": None},
        {"id": 2, "n": None, "n__2": None, "n__2_2": "two"},
        {"id": 3, "n": 3.5, "n__2": None, "n__2_2": None},
    ]
    items.alter(of("m", 3))
    items.insert(4, m="x")
    assert [sorted(one) for one in items.rows()] == [["id", "m", "n__2", "n__2_2"]] * 4


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("long", "int", (2**40, 7)),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long", (None, 7)),
        (
            {"type": "array", "items": ["null", "int"]},
            {"type": "array", "items": ["null", "string"]},
            ([1], ["a"]),
        ),
        ({"type": "record", "name": "P", "fields": [column("x", "int")]}, "string", ({"x": 1}, "a")),
    ],
    ids=["narrowed", "no time any more", "another element", "no composite any more"],
)
def test_each_incompatible_type_is_another_column(begin: Begin, old: Any, new: Any, values: Any) -> None:
    items = begin(of("n", 2, old), policies=NEW_COLUMN)
    items.insert(1, n=values[0])
    items.alter(of("n", 2, new))
    items.insert(2, n=values[1])
    assert items.rows() == [{"id": 1, "n": None, "n__2": values[0]}, {"id": 2, "n": values[1], "n__2": None}]


def test_a_type_that_is_widened_is_the_same_column(begin: Begin) -> None:
    items = begin(of("n", 2, "int"), policies=NEW_COLUMN)
    items.insert(1, n=1)
    items.alter(of("n", 2, "long"))
    items.insert(2, n=2**40)
    assert items.rows() == [{"id": 1, "n": 1}, {"id": 2, "n": 2**40}]


def test_a_history_has_the_values_of_both_types(tmp_path: Path, in_one_batch: bool) -> None:
    items = Mirrored(
        tmp_path / "t", of("n", 2, "int"), policies=NEW_COLUMN, in_one_batch=in_one_batch, scd_type=2
    )
    items.insert(1, n=1)
    items.alter(of("n", 2))
    items.change("u", after={"id": 1, "n": "one"})
    items.apply()
    found = [(one["n__2"], one["n"]) for one in history_rows(read_mirror(items.batches.target))]
    assert sorted(found, key=repr) == [(1, None), (None, "one")]


PARKED = [
    (ID, column("id", "string", required=True, **{"pg.attnum": 1}), "a column of the key"),
    (
        column("id", "int", **{"pg.attnum": 1}),
        column("id", "string", **{"pg.attnum": 1}),
        "a key added later",
    ),
]


@pytest.mark.parametrize(("old", "new"), [one[:2] for one in PARKED], ids=[one[2] for one in PARKED])
@pytest.mark.parametrize("policies", [DEFAULT_POLICIES, NEW_COLUMN])
def test_a_column_that_may_be_in_the_key_parks_the_table(
    tmp_path: Path, in_one_batch: bool, old: Field, new: Field, policies: ColumnPolicies
) -> None:
    items = Mirrored(tmp_path / "t", policies=policies, in_one_batch=in_one_batch)
    items.batches.on_error = "park"
    items.batches.alter([old], RELID)
    items.insert(1)
    items.apply()
    items.alter(key=new)
    items.change("c", after={"id": "1"})
    items.apply()
    (parked,) = read_mirror(items.batches.target).parked.values()
    assert "type has changed" in parked.reason


def test_the_policy_fail_ends_the_mirror_before_the_record(tmp_path: Path, table_format: TableFormat) -> None:
    """Also one that parks tables for other errors; with another policy it continues there."""
    items = Mirrored(
        tmp_path / "t",
        of("n", 2, "int"),
        policies=ColumnPolicies(changed_types="fail"),
        table_format=table_format,
    )
    items.batches.on_error = "park"
    items.insert(1, n=1)
    before = items.rows()
    items.alter(of("n", 2))
    items.insert(2, n="two")
    waiting = list(items._waiting)
    with pytest.raises(MirrorInconsistent, match="type has changed"):
        items.apply()
    assert items.rows() == before == [{"id": 1, "n": 1}]
    assert read_mirror(items.batches.target).parked == {}
    items.restart(NEW_COLUMN)
    items._waiting = waiting
    assert items.rows() == [{"id": 1, "n": None, "n__2": 1}, {"id": 2, "n": "two", "n__2": None}]


@pytest.mark.parametrize("policies", [DEFAULT_POLICIES, ColumnPolicies(changed_types="fail")])
def test_a_type_of_which_all_former_rows_are_gone_changes_nothing_else(
    begin: Begin, policies: ColumnPolicies
) -> None:
    items = begin(of("n", 2, "int"), policies=policies)
    items.insert(1, n=1)
    items.apply()
    items.alter(of("n", 2))
    items.change("t")
    items.insert(2, n="two")
    assert items.rows() == [{"id": 2, "n": "two"}]


def test_a_table_that_is_parked_and_copied_again_has_a_version_with_the_former_type(
    tmp_path: Path, table_format: TableFormat
) -> None:
    """The rows of the former type are those of the table's earlier version."""
    items = Mirrored(tmp_path / "t", of("n", 2, "int"), policies=DEFAULT_POLICIES, table_format=table_format)
    items.batches.on_error = "park"
    items.insert(1, n=1)
    items.apply()
    earlier = read_mirror(items.batches.target)
    items.alter(of("n", 2))
    items.insert(2, n="two")
    assert items.rows() == [{"id": 1, "n": 1}]
    assert set(read_mirror(items.batches.target).parked) == {TOPIC}
    items.change("t", snapshot=True)
    for number, value in ((1, "one"), (2, "two")):
        items.change("r", after={"id": number, "n": value})
    assert items.rows() == [{"id": 1, "n": "one"}, {"id": 2, "n": "two"}]
    assert read_mirror(items.batches.target).parked == {}
    again = read_mirror(items.batches.target, at=f"v{earlier.version.number}")
    if table_format == "parquet":
        assert in_order(shown(again)) == [{"id": 1, "n": 1}]
    else:
        assert in_order(READERS[table_format].recorded(again).to_pylist()) == [{"id": 1, "n": 1}]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("drop", "park")),
        (["--dropped-columns", "keep", "--changed-types", "new_column"], ("keep", "new_column")),
        (["--changed-types", "fail"], ("drop", "fail")),
    ],
)
def test_the_command_passes_the_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[str, str]
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(command, "mirror", lambda *_, **options: given.update(options))
    monkeypatch.setattr(command, "lasting", lambda spark, _: spark)
    target = ["--brokers", "127.0.0.1:1", "--prefix", "shop", "--registry", "none", "--target", str(tmp_path)]
    command._prepared(parse(["mirror", *target, *words]))(cast(SparkSession, object()))
    assert (given["dropped_columns"], given["changed_types"]) == expected


# --- any order -----------------------------------------------------------------------------------------------


class Model:
    """A table, its columns and DDL: what PostgreSQL would have sent, and what the mirror's table has to have.

    A column is known by its attnum and the number of its type. Only the schema of a row is visible.
    """

    TYPES: tuple[tuple[str, Callable[[random.Random], Any]], ...] = (
        ("string", lambda chosen: chosen.choice(["x", "y", ""])),
        ("int", lambda chosen: chosen.randrange(3)),
        ("boolean", lambda chosen: chosen.random() < 0.5),
    )
    NAMES = ("a", "b", "c")

    def __init__(self, chosen: random.Random, policies: ColumnPolicies) -> None:
        self.chosen, self.policies = chosen, policies
        self.live: dict[tuple[int, int], str] = {(2, 0): "a", (3, 0): "b"}
        self.seen: dict[tuple[int, int], str] = {}
        self.retained: dict[tuple[int, int], str] = {}
        self.rows: dict[int, dict[tuple[int, int], Any]] = {}
        self.attnum = 3

    def fields(self) -> list[Field]:
        return [of(name, attnum, self.TYPES[number][0]) for (attnum, number), name in self.live.items()]

    def _free_name(self) -> str | None:
        taken = {one.lower() for one in self.live.values()}
        free = [one for one in self.NAMES if one not in taken]
        return self.chosen.choice([str.lower, str.upper])(self.chosen.choice(free)) if free else None

    def alter(self) -> None:
        kinds = ["drop", "add", "rename"] + ["type"] * (self.policies.changed_types == "new_column")
        kind, name = self.chosen.choice(kinds), self._free_name()
        one = self.chosen.choice([*self.live]) if self.live else None
        if kind == "add" and name:
            self.attnum += 1
            self.live[(self.attnum, 0)] = name
        elif kind == "drop" and one:
            del self.live[one]
        elif kind == "rename" and one and name:
            self.live[one] = name
        elif kind == "type" and one and one[1] + 1 < len(self.TYPES):
            renamed = {(one[0], one[1] + 1) if it == one else it: name for it, name in self.live.items()}
            self.live = renamed

    def sent(self, row: dict[tuple[int, int], Any]) -> Row:
        """Return what PostgreSQL sends of a row; values that it has made, by a default or another type, are any."""
        return {
            name: row[one] if one in row else self.TYPES[one[1]][1](self.chosen)
            for one, name in self.live.items()
        }

    def see(self) -> None:
        """Take the schema of a row that is sent."""
        for one, name in self.seen.items():
            has_other_type = any(it[0] == one[0] for it in self.live)
            if one not in self.live and (has_other_type or self.policies.dropped == "keep"):
                self.retained[one] = name
        taken = {one.lower() for one in self.live.values()}
        for one, name in self.retained.items():
            numbers = iter(range(2, 99))
            found = name
            while found.lower() in taken:
                found = f"{name}__{one[0]}" if found == name else f"{name}__{one[0]}_{next(numbers)}"
            self.retained[one] = found
            taken.add(found.lower())
        self.seen = dict(self.live)

    def new_row(self) -> dict[tuple[int, int], Any]:
        return {one: self.TYPES[one[1]][1](self.chosen) for one in self.live}

    def expected(self) -> list[Row]:
        names = {**self.seen, **self.retained}
        return [
            {"id": number, **{name: row.get(one) for one, name in names.items()}}
            for number, row in sorted(self.rows.items())
        ]


BOTH = ColumnPolicies("keep", "new_column")


@pytest.mark.parametrize("policies", [KEEP, NEW_COLUMN, BOTH], ids=["dropped", "types", "both"])
@pytest.mark.parametrize("seed", [1, 2, *map(nightly, range(3, 40))])
def test_random_ddl_gives_the_same_table_in_any_batches(
    tmp_path: Path, has_key: bool, table_format: TableFormat, policies: ColumnPolicies, seed: int
) -> None:
    found = []
    for place, chance in enumerate((0.0, 0.3)):  # of the end of a batch
        chosen, model = random.Random(f"{seed} {policies}"), Model(random.Random(seed), policies)
        items = Mirrored(
            *(tmp_path / f"t{place}", *model.fields()),
            policies=policies,
            has_key=has_key,
            table_format=table_format,
        )
        for _ in range(60):
            if model.chosen.random() < 0.3:
                model.alter()
                items.alter(*model.fields())
            write(items, model)
            if chosen.random() < chance:
                items.apply()
        found.append(items.rows())
        assert found[-1] == model.expected()
    assert found[0] == found[1]


def write(items: Mirrored, model: Model) -> None:
    """Insert, update or delete a row; the row before is sent whole, as of a table without a key."""
    model.see()
    number = model.chosen.randrange(12)
    before = model.rows.get(number)
    if before is not None and model.chosen.random() < 0.3:
        items.change("d", before={"id": number, **model.sent(before)})
        del model.rows[number]
        return
    row = model.rows[number] = model.new_row()
    sent = {"id": number, **model.sent(row)}
    if before is None:
        items.change("c", after=sent)
    else:
        items.change("u", before={"id": number, **model.sent(before)}, after=sent)
