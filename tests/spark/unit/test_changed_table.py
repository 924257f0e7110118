"""The table of `apply_changes` on a real storage: what plain readers see, crashes, two writers, columns, files."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, transaction
from deltalake.table import TableAlterer

from cdcd.errors import ChangesInvalid, ConfigError, StorageConflict, StorageError
from cdcd.spark.applying import changed_table, keyed_table
from cdcd.spark.applying.changed_table import STATE, ChangedTable, TableRule
from cdcd.spark.applying.keyed_table import KeyedTable
from cdcd.spark.applying.scd import END, OP, SEQUENCE, START, UNSENT, Outcome, Rule
from cdcd.spark.applying.wide_types import wide
from cdcd.spark.storage.uri import open_storage
from tests.support.nightly import nightly

TYPE_1, TYPE_2 = TableRule(("id",)), TableRule(("id",), scd_type=2)
Row = dict[str, Any]
Change = tuple[int | None, str | None, int | None, str]
"""The key, the value, the sequence, the op."""


def changes(*rows: Change, **more: Any) -> pa.Table:
    columns = dict(zip(("id", "name", SEQUENCE, OP), map(list, zip(*rows, strict=True)), strict=True))
    types = {"id": pa.int64(), "name": pa.string(), SEQUENCE: pa.int64(), OP: pa.string()}
    return pa.table({name: pa.array(columns[name], type_) for name, type_ in types.items()} | more)


def rows_of(target: Path) -> list[Row]:
    """Return what a reader sees that knows nothing of cdcd."""
    return sorted(DeltaTable(str(target)).to_pyarrow_table().to_pylist(), key=repr)


def table(target: Path, rule: TableRule = TYPE_1) -> ChangedTable:
    return ChangedTable(open_storage(target), rule)


def test_a_reader_sees_the_columns_of_the_changes_only(tmp_path: Path) -> None:
    done = table(tmp_path)
    assert done.apply(changes((1, "a", 1, "u"), (2, "b", 2, "u")))
    assert done.apply(changes((1, "c", 5, "u"), (2, None, 6, "d")))
    assert rows_of(tmp_path) == [{"id": 1, "name": "c"}]
    assert not done.apply(changes((2, "late", 3, "u"))), "the sequence of a deleted key is remembered"
    assert rows_of(tmp_path) == [{"id": 1, "name": "c"}]
    assert done.apply(changes((2, "back", 7, "u")))
    assert rows_of(tmp_path) == [{"id": 1, "name": "c"}, {"id": 2, "name": "back"}]
    assert DeltaTable(str(tmp_path)).version() == 2, "one commit for each batch that changes something"


def test_a_history_has_its_versions_where_they_belong(tmp_path: Path) -> None:
    done = table(tmp_path, TYPE_2)
    done.apply(changes((1, "a", 10, "u")))
    done.apply(changes((1, "c", 30, "u"), (1, None, 40, "d")))
    done.apply(changes((1, "b", 20, "u")))
    assert [(one["name"], one[START], one[END]) for one in rows_of(tmp_path)] == [
        ("a", 10, 20),
        ("b", 20, 30),
        ("c", 30, 40),
    ]


def test_a_truncate_deletes_what_is_older_also_what_arrives_later(tmp_path: Path) -> None:
    done = table(tmp_path)
    done.apply(changes(*((number, "a", number, "u") for number in range(1, 10))))
    done.apply(changes((None, None, 5, "t"), (3, "late", 4, "u"), (4, "new", 50, "u")))
    assert [one["id"] for one in rows_of(tmp_path)] == [4, 6, 7, 8, 9]
    assert not done.apply(changes((2, "late", 3, "u"))), "earlier than the TRUNCATE"
    assert done.apply(changes((2, "new", 6, "u")))
    assert [one["id"] for one in rows_of(tmp_path)] == [2, 4, 6, 7, 8, 9]


def test_a_batch_is_known_by_its_changes_and_not_by_its_number(tmp_path: Path) -> None:
    """A checkpoint that is older than the table gives a number again, to other changes."""
    done = table(tmp_path)
    assert done.apply(changes((1, "a", 1, "u")), ("query", 0))
    assert done.apply(changes((1, "b", 2, "u")), ("query", 1))
    assert not table(tmp_path).apply(changes((1, "b", 2, "u")), ("query", 1)), "repeated"
    assert table(tmp_path).apply(changes((1, "b", 2, "u"), (2, "more", 3, "u")), ("query", 1))
    assert not table(tmp_path).apply(changes((1, "a", 1, "u")), ("query", 0))
    assert rows_of(tmp_path) == [{"id": 1, "name": "b"}, {"id": 2, "name": "more"}]


@pytest.mark.parametrize("rule", [TYPE_1, TYPE_2], ids=["type 1", "type 2"])
def test_a_table_without_the_earlier_batches_of_a_query_is_an_error(tmp_path: Path, rule: TableRule) -> None:
    """The first batch makes a version, also if it changes nothing; otherwise the table could not be told apart."""
    target, first = tmp_path / "t", changes((1, "a", 1, "u"))
    assert table(target, rule).apply(first.slice(0, 0), ("empty", 0))
    assert table(target, rule).apply(first, ("empty", 1))
    assert table(target, rule).apply(first, ("other", 0))
    assert not table(target, rule).apply(first, ("other", 1))
    assert [one["name"] for one in rows_of(target)] == ["a"]
    shutil.rmtree(target)
    later = changes((1, "b", 2, "u"))
    with pytest.raises(ConfigError, match="does not have the earlier batches of this query"):
        table(target, rule).apply(later, ("empty", 2))
    assert not target.exists()
    table(target, rule).apply(first)
    with pytest.raises(ConfigError, match="does not have the earlier batches of this query"):
        table(target, rule).apply(later, ("empty", 2))


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize("rule", [TYPE_1, TYPE_2], ids=["type 1", "type 2"])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
@pytest.mark.parametrize("lost", ["create or replace the rows", "write the rows"])
def test_a_crash_between_the_two_commits_leaves_the_table_and_is_repeated(
    tmp_path: Path, rule: TableRule, first: bool, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are committed, the rows are not: another batch than the lost one comes next."""
    if not first:
        table(tmp_path, rule).apply(changes((1, "a", 1, "u"), (2, "b", 2, "u")))
    before = None if first else rows_of(tmp_path)
    whole = {name: getattr(KeyedTable, name) for name in ("create", "replace", "_write")}

    def of_rows(name: str) -> Callable[..., Any]:
        def crash(self: KeyedTable, *given: Any, **options: Any) -> Any:
            if not self._folder:
                raise Crash
            return whole[name](self, *given, **options)

        return crash

    with monkeypatch.context() as broken:
        for name in ("_write",) if lost == "write the rows" else ("create", "replace"):
            broken.setattr(KeyedTable, name, of_rows(name))
        with pytest.raises(Crash):
            table(tmp_path, rule).apply(changes((1, "never", 5, "u"), (7, "never", 6, "u")))
    assert DeltaTable(str(tmp_path / STATE)).version() == (0 if first else 1)
    if before is not None:
        assert rows_of(tmp_path) == before
    table(tmp_path, rule).apply(changes((1, "c", 4, "u")))
    shown = {(one["id"], one["name"]) for one in rows_of(tmp_path) if one.get(END) is None}
    assert shown == ({(1, "c")} if first else {(1, "c"), (2, "b")}), "the lost events do not count"
    table(tmp_path, rule).apply(changes((1, "now", 5, "u"), (7, "now", 6, "u")))
    assert {(1, "now"), (7, "now")} <= {(one["id"], one["name"]) for one in rows_of(tmp_path)}


@pytest.mark.parametrize("exists", [True, False])
def test_of_two_writers_one_wins_and_the_other_gets_an_error(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        table(tmp_path).apply(changes((1, "a", 1, "u")))
    name = "replace" if exists else "create"
    whole = getattr(KeyedTable, name)

    def after_another(self: KeyedTable, *given: Any, **options: Any) -> None:
        if not self._folder:
            monkeypatch.setattr(KeyedTable, name, whole)
            assert table(tmp_path).apply(changes((2, "winner", 2, "u"), (3, "winner", 3, "u")))
        whole(self, *given, **options)

    monkeypatch.setattr(KeyedTable, name, after_another)
    with pytest.raises(StorageConflict, match="another writer has changed the table meanwhile"):
        table(tmp_path).apply(changes((2, "loser", 5, "u")))
    winners = [{"id": 2, "name": "winner"}, {"id": 3, "name": "winner"}]
    assert rows_of(tmp_path) == ([{"id": 1, "name": "a"}] if exists else []) + winners
    assert table(tmp_path).apply(changes((2, "again", 4, "u"))), "no event of the loser is left"
    assert {"id": 2, "name": "again"} in rows_of(tmp_path)


COMMITS = ("add columns", "restore", "replace", "create again")


@pytest.mark.parametrize("commit", COMMITS)
def test_a_version_that_is_open_after_a_commit_is_this_commit(
    tmp_path: Path, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits just after, or just before: it is never this writer's version, nor below it."""
    given = changes((1, "own", 1, "u")).select(["id", "name"])
    rows = given.cast(wide(given.schema))

    def of(name: str) -> KeyedTable:
        made = KeyedTable(open_storage(tmp_path / name), "", ["id"])
        made.create(rows, {}, "")
        made.replace(rows.select(["id"]), rows, {})
        return made

    def other(name: str) -> None:
        second = KeyedTable(open_storage(tmp_path / name), "", ["id"])
        second.open()
        row = {"id": 2, "name": "other", "more": "x"}
        theirs = pa.Table.from_pylist([row], schema=second.schema)
        second.replace(theirs.select(["id"]), theirs, {})

    def act(opened: KeyedTable) -> None:
        more = rows.append_column("more", pa.array(["x"]))
        {
            "add columns": lambda: opened.add_columns(more.schema),
            "restore": lambda: opened.restore(0),
            "replace": lambda: opened.replace(rows.select(["id"]), rows, {}),
            "create again": lambda: opened.create(rows, {}, "", replace=True),
        }[commit]()

    owner, name = {
        "add columns": (TableAlterer, "add_columns"),
        "restore": (DeltaTable, "restore"),
        "replace": (DeltaTable, "create_write_transaction"),
        "create again": (transaction, "create_table_with_add_actions"),
    }[commit]
    whole = getattr(owner, name)

    def raced(target: str, *, before: bool) -> KeyedTable:
        def commit_with_another(*given: Any, **options: Any) -> None:
            monkeypatch.setattr(owner, name, whole)
            if before:
                other(target)
            whole(*given, **options)
            if not before:
                other(target)

        opened = of(target)
        monkeypatch.setattr(owner, name, commit_with_another)
        act(opened)
        return opened

    with pytest.raises(StorageConflict):
        raced("before", before=True)
    if commit == "create again":  # the library opens the newest version itself
        with pytest.raises(StorageConflict):
            raced("after", before=False)
        return
    own = raced("after", before=False)
    assert (own.version, DeltaTable(str(tmp_path / "after")).version()) == (2, 3)
    assert {one["name"] for one in own.rows_of(None).to_pylist()} == {"own"}


@pytest.mark.parametrize("exists", [True, False])
def test_no_writer_names_the_events_of_another(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits its events just after those of this one, and never its rows."""
    if exists:
        table(tmp_path).apply(changes((1, "a", 1, "u"), (2, "b", 1, "u")))
    own, others = changes((1, "A", 5, "u")), changes((2, "B", 5, "u"))
    owner, name = (
        (DeltaTable, "create_write_transaction") if exists else (transaction, "create_table_with_add_actions")
    )
    whole, of_rows = getattr(owner, name), "replace" if exists else "create"
    write = getattr(KeyedTable, of_rows)

    def crash(self: KeyedTable, *given: Any, **options: Any) -> None:
        if not self._folder:
            raise Crash
        write(self, *given, **options)

    def then_another(*given: Any, **options: Any) -> None:
        monkeypatch.setattr(owner, name, whole)
        whole(*given, **options)
        with monkeypatch.context() as broken:
            broken.setattr(KeyedTable, of_rows, crash)
            with pytest.raises(Crash):
                table(tmp_path).apply(others)

    monkeypatch.setattr(owner, name, then_another)
    if exists:
        assert table(tmp_path).apply(own)
    else:  # its version is not known
        with pytest.raises(StorageConflict):
            table(tmp_path).apply(own)
        assert table(tmp_path).apply(own)
    assert table(tmp_path).apply(others), "its events are not in the table"
    assert not table(tmp_path).apply(own)
    assert [one["name"] for one in rows_of(tmp_path)] == ["A", "B"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(None, "a", 1, "u")], "no value in a column of the key.*id"),
        ([(1, "a", None, "u")], "no value in sequence_by"),
        ([(None, None, None, "t")], "no value in sequence_by"),
        (
            [(1, "secret", 1, "u"), (1, "other", 1, "u")],
            "two different changes of one key have the same sequence.*keys=id",
        ),
    ],
)
def test_changes_without_an_order_or_a_key_are_an_error_without_values(
    tmp_path: Path, rows: Sequence[Change], expected: str
) -> None:
    done = table(tmp_path)
    done.apply(changes((9, "a", 1, "u")))
    with pytest.raises(ChangesInvalid, match=expected) as caught:
        done.apply(changes((8, "b", 2, "u"), *rows))
    assert "secret" not in str(caught.value)
    assert rows_of(tmp_path) == [{"id": 9, "name": "a"}]


@pytest.mark.parametrize("rule", [TYPE_1, TYPE_2], ids=["type 1", "type 2"])
def test_a_change_that_a_batch_has_twice_is_one(tmp_path: Path, rule: TableRule) -> None:
    """As a source with at_least_once has it. Only the columns of the table count, and NaN equals NaN."""
    done = table(tmp_path, rule)
    twice = changes(
        (1, "a", 1, "u"), (1, "a", 1, "u"), (2, "b", 1, "u"), (1, None, 2, "d"), (1, None, 2, "d")
    )
    done.apply(twice.append_column("n", pa.array([float("nan")] * 2 + [1.0] + [None] * 2, pa.float64())))
    done.apply(
        changes((2, "b", 1, "u"), (2, "b", 1, "u"), (1, "c", 3, "u"), (1, "c", 3, "u"), (1, "c", 3, "u"))
    )
    found = [(one["id"], one["name"]) for one in rows_of(tmp_path) if one.get(END) is None]
    assert found == [(1, "c"), (2, "b")]
    assert len(rows_of(tmp_path)) == (2 if rule == TYPE_1 else 3)
    for other in (changes((2, None, 2, "d")), changes((2, "x", 2, "u"), n=pa.array([0.5]))):
        whole = pa.concat_tables([changes((2, "x", 2, "u")), other], promote_options="default")
        with pytest.raises(ChangesInvalid, match="two different changes of one key have the same sequence"):
            done.apply(whole)


def test_new_columns_are_added_and_another_type_is_an_error(tmp_path: Path) -> None:
    for rule, target in ((TYPE_1, tmp_path / "1"), (TYPE_2, tmp_path / "2")):
        done = table(target, rule)
        done.apply(changes((1, "a", 1, "u")))
        at = pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin"))
        local = pa.array([datetime(2026, 1, 2, 3)], pa.timestamp("us"))
        done.apply(changes((2, "b", 2, "u"), at=at, local=local))
        found = [one for one in rows_of(target) if one["id"] == 2]
        assert found[0]["at"] == datetime(2026, 1, 2, 3, tzinfo=UTC)
        assert found[0]["local"] == datetime(2026, 1, 2, 3)
        assert rows_of(target)[0]["at"] is None
        done.apply(changes((3, "c", 3, "u")))
        assert [one["at"] for one in rows_of(target) if one["id"] == 3] == [None]
        with pytest.raises(ChangesInvalid, match=r"another type.*column=at"):
            done.apply(changes((4, "d", 4, "u"), at=pa.array(["text"])))
        with pytest.raises(ChangesInvalid, match=r"another type.*column=sequence_by"):
            done.apply(changes((4, "d", 4, "u")).set_column(2, SEQUENCE, pa.array(["4"])))
        with pytest.raises(ChangesInvalid, match=r"cannot have.*column=day"):
            done.apply(changes((4, "d", 4, "u"), day=pa.array([1], pa.time64("us"))))
        with pytest.raises(ChangesInvalid, match=r"differ only in case.*NAME, name"):
            done.apply(changes((4, "d", 4, "u"), NAME=pa.array(["x"])))


def test_columns_that_a_change_does_not_have_keep_their_values(tmp_path: Path) -> None:
    of_changes = TableRule(("id",), is_partial=True)
    done = table(tmp_path, of_changes)
    done.apply(changes((1, "a", 1, "u"), n=pa.array([7])))
    done.apply(changes((1, None, 5, "u"), n=pa.array([8]), **{UNSENT: pa.array([["name"]])}))
    assert rows_of(tmp_path) == [{"id": 1, "name": "a", "n": 8}]
    done.apply(changes((1, "b", 3, "u"), n=pa.array([9]), **{UNSENT: pa.array([[]], pa.list_(pa.string()))}))
    assert rows_of(tmp_path) == [{"id": 1, "name": "b", "n": 8}], (
        "a late change has the value that was not sent"
    )


def test_a_late_change_before_a_delete_supplies_no_value(tmp_path: Path) -> None:
    done = table(tmp_path, TableRule(("id",), is_partial=True))
    done.apply(changes((1, "a", 1, "u"), (1, None, 5, "d")))
    done.apply(changes((1, None, 10, "u"), **{UNSENT: pa.array([["name"]])}))
    assert rows_of(tmp_path) == [{"id": 1, "name": None}]
    assert not done.apply(changes((1, "late", 3, "u")))
    assert done.apply(changes((1, "sent", 7, "u")))
    assert rows_of(tmp_path) == [{"id": 1, "name": "sent"}]


@pytest.mark.parametrize(("ignored", "expected"), [(None, ("a", 1)), (("n",), (None, 1)), ((), (None, None))])
def test_a_null_leaves_the_values_of_these_columns(
    tmp_path: Path, ignored: tuple[str, ...] | None, expected: tuple[str | None, int | None]
) -> None:
    done = table(tmp_path, TableRule(("id",), ignored_nulls=ignored))
    done.apply(changes((1, "a", 1, "u"), n=pa.array([1])))
    done.apply(changes((1, None, 2, "u"), n=pa.array([None], pa.int64())))
    assert rows_of(tmp_path) == [{"id": 1, "name": expected[0], "n": expected[1]}]


@pytest.mark.parametrize("rule", [TYPE_1, TYPE_2], ids=["type 1", "type 2"])
def test_a_null_and_a_new_column_leave_the_values_whatever_the_order_of_arrival(
    tmp_path: Path, rule: TableRule
) -> None:
    """The later change comes from a frame that did not have the column yet."""
    later, earlier = changes((1, None, 3, "u")), changes((1, "b", 2, "u"), n=pa.array([7]))
    found = []
    for target, batches in ((tmp_path / "1", (earlier, later)), (tmp_path / "2", (later, earlier))):
        done = table(target, replace(rule, ignored_nulls=None))
        done.apply(changes((9, "other", 1, "u")))
        for one in (*batches, *batches):
            done.apply(one)
        found.append([(one["name"], one["n"]) for one in rows_of(target) if one["id"] == 1])
        stored = DeltaTable(str(target / STATE)).to_pyarrow_table().to_pylist()
        assert all(len(one[UNSENT]) == len(set(one[UNSENT])) for one in stored)
    assert found == [[("b", 7)] * len(found[0])] * 2


def test_other_parameters_and_other_tables_are_refused(tmp_path: Path) -> None:
    table(tmp_path / "t").apply(changes((1, "a", 1, "u")))
    with pytest.raises(ConfigError, match="created with other parameters: scd_type"):
        table(tmp_path / "t", TYPE_2).apply(changes((1, "a", 2, "u")))
    with pytest.raises(ConfigError, match="created with other parameters: keys"):
        table(tmp_path / "t", TableRule(("name",))).apply(changes((1, "a", 2, "u")))
    with pytest.raises(ConfigError, match="created without ignore_null_updates and unchanged_column"):
        table(tmp_path / "t", TableRule(("id",), is_partial=True)).apply(changes((1, "a", 2, "u")))
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "other"), pa.table({"id": [1]}))
    with pytest.raises(ConfigError, match="did not create"):
        table(tmp_path / "other").apply(changes((1, "a", 2, "u")))


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([f"k{number:04}" for number in range(300)]),
        nightly(pa.array([Decimal(number) for number in range(300)], pa.decimal128(9, 2)), id="decimal"),
        nightly(
            pa.array(
                [datetime(2026, 1, 1 + number % 28, number // 28) for number in range(300)],
                pa.timestamp("us"),
            ),
            id="timestamp",
        ),
    ],
    ids=["text", None, None],
)
def test_many_files_and_composite_keys(
    tmp_path: Path, keys: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of ten rows: rows are found in the right ones, and small files are merged."""
    monkeypatch.setattr(keyed_table, "FILE_ROWS", 10)
    monkeypatch.setattr(keyed_table, "SMALL_ROWS", 5)
    done = table(tmp_path, TableRule(("k", "m")))

    def batch(first: int, last: int, value: int) -> pa.Table:
        rows = last - first
        return pa.table(
            {
                "k": keys[first:last],
                "m": pa.array([number % 2 for number in range(rows)], pa.int32()),
                "v": pa.array([value] * rows),
                SEQUENCE: pa.array([value] * rows),
                OP: ["u"] * rows,
            }
        )

    done.apply(batch(0, 200, 1))
    expected = dict.fromkeys(keys[:200].to_pylist(), 1)
    for number in range(12):
        first = 200 + number * 3
        done.apply(batch(first, first + 3, 1))
        done.apply(batch(number * 10, number * 10 + 4, number + 2))
        expected |= dict.fromkeys(keys[first : first + 3].to_pylist(), 1)
        expected |= dict.fromkeys(keys[number * 10 : number * 10 + 4].to_pylist(), number + 2)
    assert {one["k"]: one["v"] for one in rows_of(tmp_path)} == expected
    assert len(rows_of(tmp_path)) == 236
    assert len(DeltaTable(str(tmp_path)).file_uris()) < 50


def test_only_files_that_may_have_a_key_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_table, "FILE_ROWS", 10)
    done = table(tmp_path)
    done.apply(changes(*((number, "a", 1, "u") for number in range(100))))
    read: list[str] = []
    whole = KeyedTable._read

    def noted(self: KeyedTable, file: Any) -> pa.Table:
        read.append(self._folder)
        return whole(self, file)

    monkeypatch.setattr(KeyedTable, "_read", noted)
    done.apply(changes((55, "b", 2, "u")))
    assert read.count("") == 1
    assert read.count(STATE) == 2, "once for the events, once to replace the file"


def test_files_of_another_writer_are_read_by_bounds_that_hold(tmp_path: Path) -> None:
    """The statistics of OPTIMIZE round times to milliseconds, so that a key may be outside them."""
    at = pa.array([datetime(2026, 1, 1, 0, 0, 0, 999_999)], pa.timestamp("us"))
    rule = TableRule(("at",))
    for number in (1, 2):
        row = changes((number, "a", number, "u")).append_column("at", at)
        assert table(tmp_path, rule).apply(row)
        for folder in (tmp_path, tmp_path / STATE):
            DeltaTable(str(folder)).optimize.z_order(["id"] if folder == tmp_path else ["at"])
    assert [one["id"] for one in rows_of(tmp_path)] == [2]


def test_a_table_with_features_that_change_the_meaning_of_files_is_refused(tmp_path: Path) -> None:
    table(tmp_path).apply(changes((1, "a", 1, "u")))
    changed = DeltaTable(str(tmp_path))
    changed.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(StorageError, match=r"features that apply_changes does not read.*[dD]eletionVectors"):
        table(tmp_path).apply(changes((1, "b", 2, "u")))


def test_a_table_with_constraints_is_refused(tmp_path: Path) -> None:
    for name, change in (
        ("delta.appendOnly", lambda one: one.alter.set_table_properties({"delta.appendOnly": "true"})),
        ("delta.constraints.c", lambda one: one.alter.add_constraint({"c": "id > 0"})),
    ):
        table(tmp_path / name).apply(changes((1, "a", 1, "u")))
        change(DeltaTable(str(tmp_path / name)))
        with pytest.raises(StorageError, match=f"does not check.*{name}"):
            table(tmp_path / name).apply(changes((-1, "b", 2, "u")))


def test_the_change_data_feed_has_the_changes(tmp_path: Path) -> None:
    table(tmp_path).apply(changes((1, "a", 1, "u")))
    DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    table(tmp_path).apply(changes((1, "b", 2, "u")))
    found = pa.table(DeltaTable(str(tmp_path)).load_cdf(starting_version=1)).to_pylist()
    assert sorted((one["_change_type"], one["name"]) for one in found) == [("delete", "a"), ("insert", "b")]


def test_a_file_that_is_broken_is_an_error_with_its_name(tmp_path: Path) -> None:
    table(tmp_path).apply(changes((1, "a", 1, "u")))
    (path,) = tmp_path.glob("*.parquet")
    path.write_bytes(b"PAR1secretPAR1")
    with pytest.raises(StorageError, match=f"cannot be decoded.*file={path.name}") as caught:
        table(tmp_path).apply(changes((1, "b", 2, "u")))
    assert "secret" not in str(caught.value)


def optimised(target: Path, rows: pa.Table) -> None:
    """Replace the file of the table as the JVM's OPTIMIZE does: with other rows, and times of 96 bits."""
    held = DeltaTable(str(target))
    (path,) = target.glob("*.parquet")
    new, now_ms = target / f"optimised-{path.name}", int(time.time() * 1000)
    pq.write_table(rows, new, use_deprecated_int96_timestamps=True)
    held.create_write_transaction(
        [
            transaction.AddAction(new.name, new.stat().st_size, {}, now_ms, False, '{"numRecords": 2}'),
            transaction.RemoveAction(path.name, False, now_ms, path.stat().st_size, {}),
        ],
        "append",
        held.schema(),
    )
    path.unlink()


def test_the_times_of_an_optimised_file_are_those_that_were_written(tmp_path: Path) -> None:
    """Spark writes 96 bits by default; as nanoseconds they end in the year 2262."""
    far = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 999_999, UTC)]
    at = pa.array(far, pa.timestamp("us", "UTC"))
    table(tmp_path).apply(changes((1, "a", 1, "u"), (2, "b", 1, "u"), at=at))
    optimised(tmp_path, pq.read_table(next(tmp_path.glob("*.parquet"))))
    table(tmp_path).apply(changes((1, "c", 2, "u"), at=at[:1]))
    assert [one["at"] for one in rows_of(tmp_path)] == far


def test_a_file_with_values_of_another_type_is_an_error_without_them(tmp_path: Path) -> None:
    table(tmp_path).apply(changes((1, "a", 1, "u"), n=pa.array([1])))
    optimised(tmp_path, pa.table({"id": [1], "name": ["a"], "n": ["secret"]}))
    with pytest.raises(StorageError, match=r"cannot be decoded.*file=optimised-") as caught:
        table(tmp_path).apply(changes((1, "b", 2, "u"), n=pa.array([1])))
    assert "secret" not in str(caught.value)


def narrow(type_: pa.DataType) -> bool:
    """Return whether a type has texts or bytes whose sum in a column is at most 2 GiB."""
    inside = [type_.field(place).type for place in range(type_.num_fields)]
    return pa.types.is_string(type_) or pa.types.is_binary(type_) or any(map(narrow, inside))


def test_no_column_of_a_batch_is_limited_to_2_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the types, with which a later test has 2.4 GB: the limit would be an error of Arrow, with no name."""
    seen: list[pa.Table] = []

    def spy(stored: pa.Table, events: pa.Table, rule: Rule) -> Outcome:
        done = apply(stored, events, rule)
        seen.extend([stored, events, done.keys, done.rows, done.events])
        return done

    apply = changed_table.apply
    monkeypatch.setattr(changed_table, "apply", spy)
    text, data = pa.string(), pa.binary()
    values = {
        "t": pa.array(["x"]), "b": pa.array([b"x"]), "s": pa.array([{"a": "x"}]),
        "l": pa.array([[b"x"]], pa.list_(data)),
        "m": pa.array([[("k", ["x"])]], pa.map_(text, pa.list_(text))),
    }  # fmt: skip
    done = table(tmp_path, TableRule(("id", "t"), 2, is_partial=True))
    for number in (1, 2):
        done.apply(changes((1, "a", number, "u"), **values, **{UNSENT: pa.array([["name"]])}))
    assert len(seen) == 10
    assert not {field for one in seen for field in one.schema if narrow(field.type)}
    (version, *_) = rows_of(tmp_path)
    assert version["m"] == [("k", ["x"])]
    for path in (*tmp_path.glob("*.parquet"), *(tmp_path / STATE).glob("*.parquet")):
        found = pq.read_schema(path)
        assert {field.name for field in found if not narrow(field.type)} <= {"id", START, END, SEQUENCE}, (
            found
        )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_nested", [False, True], ids=["flat", "nested"])
def test_a_batch_and_a_file_with_more_than_2_gib(tmp_path: Path, is_nested: bool) -> None:
    """Four texts of 600 MB are written, then read to replace one of them. It needs 14 GB of memory."""
    size, count = 600 << 20, 4
    offsets = pa.array([0, size], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"x" * size)])
    one = pa.StructArray.from_arrays([text], ["a"]) if is_nested else text
    rows = [(number, "a", 1, "u") for number in range(count)]
    assert table(tmp_path).apply(changes(*rows, t=pa.chunked_array([one] * count)))
    assert table(tmp_path).apply(changes((0, "b", 2, "u"), t=pa.nulls(1, one.type)))
    (path,) = DeltaTable(str(tmp_path)).file_uris()
    found = pq.ParquetFile(path, binary_type=pa.large_binary()).read()
    assert found["name"].to_pylist() == ["b", "a", "a", "a"]
    texts = found["t"].combine_chunks().field("a") if is_nested else found["t"]
    assert pc.binary_length(texts).to_pylist() == [None, *[size] * (count - 1)]


def test_a_table_without_its_events_is_an_error(tmp_path: Path) -> None:
    table(tmp_path).apply(changes((1, "a", 1, "u")))
    shutil.rmtree(tmp_path / STATE)
    with pytest.raises(ConfigError, match=f"lacks the folder {STATE}"):
        table(tmp_path).apply(changes((1, "b", 2, "u")))
    assert rows_of(tmp_path) == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize(
    "keys",
    [
        nightly(pa.array([True, False])),
        pa.array([b"a", b"\xff"]),
        pa.array([0.5, float("nan")]),
        nightly(pa.array([1, 2], pa.date32())),
        pa.array([-800_000, 10_000_000], pa.date32()),
        pa.array([-719_162, 2_932_896], pa.date32()),
        nightly(pa.array([1, 2], pa.int8())),
        pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]),
        pa.array(
            ["\U00020000", "\U00020001"]
        ),  # some readers of JSON decode their escapes as U+10000 and U+10001
    ],
    ids=[
        "boolean",
        "binary",
        "double",
        "date",
        "far dates",
        "first and last date",
        "tinyint",
        "struct",
        "plane 2",
    ],
)
def test_keys_of_each_type_and_a_truncate_of_an_empty_table(tmp_path: Path, keys: pa.Array) -> None:
    def batch(sequence: int, op: str) -> pa.Table:
        of_rows = keys if op == "u" else pa.nulls(1, keys.type)
        rows = len(of_rows)
        columns = {"k": of_rows, "v": pa.array([sequence] * rows), OP: [op] * rows}
        return pa.table(columns | {SEQUENCE: pa.array(range(sequence, sequence + rows))})

    done = table(tmp_path, TableRule(("k",)))

    def values() -> list[int]:
        found: list[int] = DeltaTable(str(tmp_path)).to_pyarrow_table()["v"].to_pylist()
        return found

    for sequence, op, expected in ((0, "t", 0), (10, "u", 2), (20, "u", 2), (30, "t", 0), (40, "u", 2)):
        done.apply(batch(sequence, op))
        assert len(values()) == expected
    for folder in (tmp_path, tmp_path / STATE):
        DeltaTable(str(folder)).optimize.compact()
    done.apply(batch(50, "u"))
    assert values() == [50, 50]


SMILE = "\U0001f600"
OF_OTHERS = {
    "escaped, which delta-rs decodes as others": (["\U00020000", "\U00020001"], "\U00010000", "\U00010001"),
    "the largest by UTF-16": (["a", "\ufffd", SMILE], "a", "\ufffd"),
    "the smallest by UTF-16": ([SMILE, "\uffee", "\ue000"], SMILE, "\uffee"),
    "shortened inside a pair of UTF-16": (["x", "x" * 31 + SMILE + "z"], "x", "x" * 31 + "?\ufffd"),
    "shortened before a pair of UTF-16": (["x", "x" * 32 + SMILE + "z"], "x", "x" * 32 + "\ufffd"),
}


@pytest.mark.parametrize("case", OF_OTHERS)
def test_a_key_is_found_whatever_bounds_another_writer_has_written(tmp_path: Path, case: str) -> None:
    """Some order texts by UTF-16, or shorten them, or write escapes, which delta-rs decodes as other characters."""
    keys, smallest, largest = OF_OTHERS[case]

    def batch(keys: Sequence[str], sequence: int) -> pa.Table:
        rows = {"k": keys, "v": [sequence] * len(keys), OP: ["u"] * len(keys)}
        return pa.table(rows | {SEQUENCE: pa.array(range(sequence, sequence + len(keys)))})

    rule = TableRule(("k",))
    table(tmp_path, rule).apply(batch(keys, 10))
    for folder in (tmp_path, tmp_path / STATE):
        with_bounds(folder, "k", smallest, largest)
    table(tmp_path, rule).apply(batch(keys[-1:], 20))
    expected = [{"k": key, "v": 10} for key in keys[:-1]] + [{"k": keys[-1], "v": 20}]
    assert rows_of(tmp_path) == sorted(expected, key=repr)


def with_bounds(folder: Path, key: str, smallest: str, largest: str) -> None:
    """Give the file of a table with one version these bounds."""
    (commit,) = (folder / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    (added,) = (one["add"] for one in actions if "add" in one)
    added["stats"] = json.dumps(
        {"numRecords": json.loads(added["stats"])["numRecords"]}
        | {"minValues": {key: smallest}, "maxValues": {key: largest}, "nullCount": {key: 0}},
        ensure_ascii=False,
    )
    commit.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in actions))


def test_only_files_that_may_have_a_text_key_are_read(tmp_path: Path) -> None:
    keyed = KeyedTable(open_storage(tmp_path), "", ["k"])
    for place, keys in enumerate((["a", "m"], ["\ud7ff", "ä"], ["x", "\ue000"])):
        rows = pa.table({"k": keys})
        keyed.replace(rows, rows, {}) if place else keyed.create(rows, {}, "")
    found = [{*keyed._read(one)["k"].to_pylist()} for one in keyed._files_with(pa.table({"k": ["m"]}))]
    assert sorted(map(sorted, found)) == [["a", "m"], ["x", "\ue000"]]


@pytest.mark.parametrize(("type_", "bits"), [(pa.float64(), np.uint64), (pa.float32(), np.uint32)])
def test_a_key_that_is_not_a_number_is_one_key_whatever_its_bits(
    tmp_path: Path, type_: pa.DataType, bits: Any
) -> None:
    """Spark and PostgreSQL take them for equal, and Java makes others than C."""
    sign = bits(1) << bits(type_.bit_width - 1)
    usual = np.array([np.nan], type_.to_pandas_dtype()).view(bits)
    done = table(tmp_path, TableRule(("k",)))
    for number, key in enumerate((usual, usual | sign, usual | bits(1))):
        values = pa.array(key.view(type_.to_pandas_dtype()), type_)
        done.apply(changes((number, "a", number, "u")).append_column("k", values))
    assert [one["id"] for one in rows_of(tmp_path)] == [2]


def test_a_key_that_is_not_utf_8_is_an_error_without_its_value(tmp_path: Path) -> None:
    data = [pa.py_buffer(one) for one in (b"\0\0\0\0\x07\0\0\0", b"secret\xff")]
    bad = pa.StringArray.from_buffers(1, *data)
    for given in (bad, pa.StructArray.from_arrays([bad], ["part"])):
        rows = changes((1, "a", 1, "u")).append_column("k", given)
        with pytest.raises(ChangesInvalid, match=r"a text that is not UTF-8.*column=k") as caught:
            table(tmp_path, TableRule(("k",))).apply(rows)
        assert "secret" not in str(caught.value)


def test_a_key_without_an_order_is_an_error(tmp_path: Path) -> None:
    for given in (pa.array([[1]]), pa.array([{"a": [1]}])):
        rows = changes((1, "a", 1, "u")).append_column("k", given)
        with pytest.raises(ChangesInvalid, match="a key has a type without an order"):
            table(tmp_path, TableRule(("k",))).apply(rows)
        with pytest.raises(ChangesInvalid, match="sequence_by has a type without an order"):
            table(tmp_path).apply(changes((1, "a", 1, "u")).set_column(2, SEQUENCE, given))


def test_old_files_of_the_events_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs writes what it removes into the log, so the events have versions that the table does not name."""
    monkeypatch.setattr(keyed_table, "VACUUM_EVERY", 1)
    done = table(tmp_path, TYPE_2)
    week_ago_s = time.time() - 8 * 86_400
    (tmp_path / STATE).mkdir()
    lost = tmp_path / STATE / "part-of-a-crash.parquet"
    lost.write_bytes(b"")
    os.utime(lost, (week_ago_s, week_ago_s))
    for number in range(1, 5):
        assert done.apply(changes((1, str(number), number, "u")))
    assert not lost.exists()
    assert [(one["name"], one[END]) for one in rows_of(tmp_path)] == [
        ("1", 2),
        ("2", 3),
        ("3", 4),
        ("4", None),
    ]


def test_old_files_that_cannot_be_removed_stop_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even if delta-rs has noted in the log that it begins to remove files."""
    monkeypatch.setattr(keyed_table, "VACUUM_EVERY", 3)
    monkeypatch.setattr(keyed_table, "VACUUM_AGAIN", 1)
    vacuum, tries = DeltaTable.vacuum, list[int]()

    def refuse(self: DeltaTable, **rest: Any) -> list[str]:
        tries.append(self.version())
        if len(tries) > 3:
            return vacuum(self, **rest)
        DeltaTable(self.table_uri).alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 9 days"}
        )
        raise OSError("the storage refuses to delete")

    monkeypatch.setattr(DeltaTable, "vacuum", refuse)
    done = table(tmp_path)
    for number in range(1, 13):
        assert done.apply(changes((1, str(number), number, "u")))
    assert rows_of(tmp_path) == [{"id": 1, "name": "12"}]
    assert caplog.text.count("old files could not be removed; the removal is tried again") == 3
    assert len(tries) > 4, "as often as before, once it has succeeded"
    assert len(tries) < 9


def test_a_checkpoint_of_the_log_has_what_a_restart_needs(tmp_path: Path) -> None:
    table(tmp_path).apply(changes((1, "a", 1, "u"), (2, None, 9, "d")), ("query", 0))
    table(tmp_path).apply(changes((3, "other", 10, "u")))
    for folder in (tmp_path, tmp_path / STATE):
        DeltaTable(str(folder)).create_checkpoint()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    again = table(tmp_path)
    assert not again.apply(changes((1, "a", 1, "u")), ("query", 0))
    assert again.apply(changes((1, "b", 2, "u"), (2, "late", 8, "u")), ("query", 1))
    assert rows_of(tmp_path) == [{"id": 1, "name": "b"}, {"id": 3, "name": "other"}]
    DeltaTable(str(tmp_path)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert table(tmp_path).apply(changes((1, "c", 4, "u"))), "VACUUM of the table leaves the events"
