"""A mirror follows a column by its attnum and a table by its oid, and by their names where a schema has neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.versions import (
    TABLE_FORMATS,
    TableEntry,
    TableFormat,
    TargetVersion,
    record_of,
    version_after,
)
from tests.spark.batches import TOPIC, Batches, Record
from tests.spark.events import column

RELID = 16_400


def numbered(name: str, attnum: int | None, avro: str = "string") -> dict[str, Any]:
    properties = {} if attnum is None else {"pg.attnum": attnum}
    return column(name, avro, required=name == "id", **properties)


def table(**attnums: int | None) -> list[dict[str, Any]]:
    """Return the columns with these attnums; None: the schema does not have it."""
    return [numbered("id", 1 if any(attnums.values()) else None, "int")] + [
        numbered(name, attnum) for name, attnum in attnums.items()
    ]


class History:
    """A mirror, and the changes that it has not read yet."""

    def __init__(
        self,
        target: Path,
        *,
        has_key: bool,
        in_one_batch: bool,
        table_format: TableFormat = "parquet",
        **attnums: int | None,
    ) -> None:
        self.mirror = Batches(target, table(**attnums), has_key=has_key, table_format=table_format)
        self.mirror.alter(table(**attnums), RELID)
        self._in_one_batch = in_one_batch
        self._waiting: list[Record] = []
        self._lsn = 0

    def alter(self, *, relid: int = RELID, **attnums: int | None) -> None:
        if not self._in_one_batch:
            self.rows()
        self.mirror.alter(table(**attnums), relid)

    def change(self, op: str, *, lsn: int | None = None, **rest: Any) -> None:
        self._lsn += 10
        self._waiting.append(self.mirror.change(op, lsn or self._lsn, 1, **rest))

    def insert(self, number: int, **values: str | None) -> None:
        self.change("c", after={"id": number, **values})

    def rows(self) -> list[dict[str, Any]]:
        waiting, self._waiting = self._waiting, []
        return self.mirror.run(waiting, loading=False)


@pytest.fixture(params=[True, False], ids=["key", "no key"])
def has_key(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[True, False], ids=["one batch", "batches"])
def in_one_batch(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def begin(tmp_path: Path, has_key: bool, in_one_batch: bool) -> Any:
    def begun(**attnums: int | None) -> History:
        return History(tmp_path / "t", has_key=has_key, in_one_batch=in_one_batch, **attnums)

    return begun


def test_a_renamed_column_retains_its_values(begin: Any) -> None:
    history = begin(a=2)
    history.insert(1, a="old")
    history.change("c", after={"id": 2, "a": None}, special={"after.a": "infinity"})
    history.alter(b=2)
    history.insert(3, b="new")
    assert history.rows() == [
        {"id": 1, "b": "old"},
        {"id": 2, "b": None, "__special": [("b", "infinity")]},
        {"id": 3, "b": "new"},
    ]


def test_two_columns_may_swap_their_names(begin: Any) -> None:
    history = begin(a=2, b=3)
    history.insert(1, a="second", b="third")
    history.alter(b=2, a=3)
    history.insert(2, b="second", a="third")
    assert history.rows() == [{"id": number, "b": "second", "a": "third"} for number in (1, 2)]


def test_a_column_that_was_dropped_and_added_without_a_row_in_between_begins_empty(begin: Any) -> None:
    history = begin(a=2)
    history.insert(1, a="old")
    history.change("c", after={"id": 2, "a": None}, special={"after.a": "infinity"})
    history.alter(a=3)
    history.insert(3, a="new")
    assert history.rows() == [{"id": 1, "a": None}, {"id": 2, "a": None}, {"id": 3, "a": "new"}]


def test_a_name_that_another_column_takes_over_has_that_columns_values(begin: Any) -> None:
    history = begin(a=2, b=3)
    history.insert(1, a="dropped", b="third")
    history.alter(a=3)
    history.insert(2, a="third")
    assert history.rows() == [{"id": 1, "a": "third"}, {"id": 2, "a": "third"}]


def test_rows_without_a_key_are_found_after_a_rename(tmp_path: Path, in_one_batch: bool) -> None:
    history = History(tmp_path / "t", has_key=False, in_one_batch=in_one_batch, a=2)
    for number in (1, 2, 3):
        history.insert(number, a="old")
    history.alter(b=2)
    history.change("u", before={"id": 1, "b": "old"}, after={"id": 1, "b": "new"})
    history.change("d", before={"id": 2, "b": "old"})
    assert history.rows() == [{"id": 1, "b": "new"}, {"id": 3, "b": "old"}]


def test_a_value_that_was_not_sent_is_that_of_the_column_under_its_former_name(
    tmp_path: Path, in_one_batch: bool
) -> None:
    """Before the rename `unchanged` names the column as it was called, afterwards as it is called now."""
    history = History(tmp_path / "t", has_key=True, in_one_batch=in_one_batch, a=2, b=3)
    history.insert(1, a="long", b="1")
    history.insert(2, a="long", b="1")
    history.change("u", after={"id": 1, "a": None, "b": "2"}, unchanged=["a"])
    history.alter(b=2, c=3)
    history.change("u", after={"id": 2, "b": None, "c": "3"}, unchanged=["b"])
    assert history.rows() == [{"id": 1, "b": "long", "c": "2"}, {"id": 2, "b": "long", "c": "3"}]


@pytest.mark.parametrize("was", [2, None])
@pytest.mark.parametrize("now", [2, None])
def test_where_a_schema_has_no_attnums_the_names_decide(begin: Any, was: int | None, now: int | None) -> None:
    history = begin(a=was)
    history.insert(1, a="old")
    history.alter(a=now)
    history.insert(2, a="new")
    assert history.rows() == [{"id": 1, "a": "old"}, {"id": 2, "a": "new"}]
    history.alter(b=now and 5)
    history.insert(3, b="other")
    assert history.rows() == [*({"id": number, "b": None} for number in (1, 2)), {"id": 3, "b": "other"}]


def test_an_attnum_is_remembered_while_a_schema_does_not_have_it(begin: Any) -> None:
    history = begin(a=2)
    history.insert(1, a="old")
    history.alter(a=None)
    history.insert(2, a="old")
    history.alter(b=2)
    history.insert(3, b="new")
    assert [row["b"] for row in history.rows()] == ["old", "old", "new"]


def test_an_attnum_that_was_remembered_does_not_contradict_the_name(begin: Any) -> None:
    """The column may have been dropped and added before the schema that does not have the attnums."""
    history = begin(a=2)
    history.insert(1, a="old")
    history.alter(a=None)
    history.change("u", after={"id": 1, "a": "written again"}, before={"id": 1, "a": "old"})
    history.alter(a=4, b=5)
    history.insert(2, a="new", b="x")
    assert [row["a"] for row in history.rows()] == ["written again", "new"]


def test_a_rename_through_a_schema_without_attnums_is_a_new_column(begin: Any) -> None:
    """The result does not depend on the batches."""
    history = begin(a=2)
    history.insert(1, a="old")
    history.alter(b=None)
    history.insert(2, b="new")
    history.alter(b=2, c=3)
    history.insert(3, b="new", c="x")
    assert [row["b"] for row in history.rows()] == [None, "new", "new"]


def test_a_record_that_comes_again_under_a_former_schema_changes_no_column(tmp_path: Path) -> None:
    history = History(tmp_path / "t", has_key=True, in_one_batch=False, a=2)
    history.insert(1, a="old")
    again = list(history._waiting)
    history.alter(b=2)
    history.insert(2, b="new")
    rows = history.rows()
    assert history.mirror.run(again, loading=False) == rows == [{"id": 1, "b": "old"}, {"id": 2, "b": "new"}]


# --- a table created again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_the_rows_of_a_table_that_was_dropped_and_created_again_go(
    tmp_path: Path, has_key: bool, in_one_batch: bool, table_format: TableFormat
) -> None:
    history = History(
        tmp_path / "t", has_key=has_key, in_one_batch=in_one_batch, table_format=table_format, a=2
    )
    history.insert(1, a="former")
    history.insert(2, a="former")
    history.alter(relid=RELID + 1, a=2)
    history.insert(2, a="new")
    history.insert(3, a="new")
    assert history.rows() == [{"id": 2, "a": "new"}, {"id": 3, "a": "new"}]
    history.insert(4, a="new")
    assert [row["id"] for row in history.rows()] == [2, 3, 4]


def test_its_attnums_say_nothing_of_the_former_tables(begin: Any) -> None:
    history = begin(a=2, b=3)
    history.insert(1, a="former", b="former")
    history.alter(relid=RELID + 1, b=2, a=3)
    history.insert(2, a="new", b="second")
    assert history.rows() == [{"id": 2, "b": "second", "a": "new"}]


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_table_that_comes_back_empties_nothing(tmp_path: Path, in_one_batch: bool) -> None:
    """Then the rows of several tables are in the topic."""
    history = History(tmp_path / "t", has_key=True, in_one_batch=in_one_batch, a=2)
    history.insert(1, a="first")
    history.alter(relid=RELID + 1, a=2)
    history.insert(2, a="second")
    history.rows()
    for number, relid in ((3, RELID), (4, RELID + 1), (5, RELID), (6, RELID + 1)):
        history.alter(relid=relid, a=2)
        history.insert(number, a="x")
    assert [row["id"] for row in history.rows()] == [2, 3, 4, 5, 6]


def test_an_oid_that_comes_first_in_the_middle_of_a_batch_empties_nothing_later(tmp_path: Path) -> None:
    """The batch ends with the table that the mirror has; then rows of several tables are in the topic, too."""
    history = History(tmp_path / "t", has_key=True, in_one_batch=True, a=2)
    history.insert(1, a="first")
    history.rows()
    history.alter(relid=RELID + 1, a=2)
    history.insert(2, a="second")
    history.alter(relid=RELID, a=2)
    history.insert(3, a="first")
    assert [row["id"] for row in history.rows()] == [1, 2, 3]
    history.alter(relid=RELID + 1, a=2)
    history.insert(4, a="second")
    assert [row["id"] for row in history.rows()] == [1, 2, 3, 4]


def test_a_table_that_is_created_again_twice_has_rows_of_the_last_one_only(begin: Any) -> None:
    """A change of a former table that comes again, as after a restart of the mirror, brings no row back."""
    history = begin(a=2)
    history.insert(1, a="first")
    again = list(history._waiting)
    history.alter(relid=RELID + 1, b=2)
    history.insert(1, b="second")
    history.insert(2, b="second")
    history.alter(relid=RELID + 2, a=2, b=3)
    history.insert(2, a="third", b="x")
    expected = [{"id": 2, "a": "third", "b": "x"}]
    assert history.rows() == expected
    assert history.mirror.run(again, loading=False) == expected
    history.insert(3, a="third", b="y")
    assert history.rows() == [*expected, {"id": 3, "a": "third", "b": "y"}]


def test_a_table_whose_oid_was_not_known_before_is_not_emptied(begin: Any) -> None:
    history = begin(a=None)
    history.mirror.alter(table(a=None))
    history.insert(1, a="old")
    history.alter(a=2)
    history.insert(2, a="new")
    assert [row["id"] for row in history.rows()] == [1, 2]


# --- the target's records ------------------------------------------------------------------------------------


def test_a_record_from_before_has_no_attnums_and_no_oid(tmp_path: Path) -> None:
    history = History(tmp_path / "t", has_key=True, in_one_batch=False, a=2)
    history.insert(1, a="old")
    history.rows()
    version = read_latest(open_storage(str(history.mirror.target)))
    assert version is not None
    record = json.loads(record_of(version, None))
    entry = record["tables"][TOPIC]
    assert [one.pop("attnum") for one in entry["fields"]] == [1, 2]
    assert [one.pop("is_carried") for one in entry["fields"]] == [False, False]
    assert (entry.pop("relid"), entry.pop("former")) == (RELID, [])
    found = version_after(None, json.dumps(record).encode(), file="x")
    assert [one.attnum for one in found.tables[TOPIC].fields] == [0, 0]
    assert (found.tables[TOPIC].relid, found.tables[TOPIC].former) == (0, ())


def test_a_record_has_the_former_tables() -> None:
    version = TargetVersion("shop", 4, tables={TOPIC: replace(TableEntry(TOPIC), relid=2, former=(1,))})
    assert version_after(None, record_of(version, None), file="x").tables == version.tables
