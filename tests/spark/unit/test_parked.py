"""A table whose records are no consistent history is parked: its rows remain, and a TRUNCATE or a copy resumes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import TablesParked
from cdcd.spark.mirroring.records import RecordsOnDriver, looks_of
from cdcd.spark.reading.chosen_table import refuse_unfinished
from cdcd.spark.reading.mirror import read_mirror, wait
from cdcd.spark.reading.mirrored_table import mirrored_table
from cdcd.spark.reading.row_history import history
from cdcd.spark.reading.target_changes import changes
from cdcd.spark.reading.views import consistent_view
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.tables.plan import Look
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.versions import Parked
from tests.spark.batches import TOPIC, Batches, Record, records_table
from tests.spark.events import column, key_schema

FIELDS = [column("id", "int", required=True), column("name", "string"), column("body", "string")]
Row = dict[str, Any]


def _row(number: int, name: str | None = None, body: str | None = None) -> Row:
    return {"id": number, "name": name, "body": body}


def _gap(items: Batches) -> list[Record]:
    special = {"gap.from_lsn": "0/A", "gap.to_lsn": "0/14", "gap.reason": "CDCD-SLOT-LOST"}
    (_, marker) = items.change("g", 20, 1, special=special)
    return [(None, marker)]


def _change_without_key(items: Batches) -> list[Record]:
    _, value = items.change("u", 20, 1, after=_row(1, "b"))
    return [(None, value)]


def _value_never_sent(items: Batches) -> list[Record]:
    return [items.change("u", 20, 1, after=_row(7, "b"), unchanged=["body"])]


def _other_type(items: Batches) -> list[Record]:
    items.alter([FIELDS[0], column("name", "int"), FIELDS[2]])
    return [items.change("u", 20, 1, after={"id": 1, "name": 5, "body": None})]


def _two_columns_of_one_name(items: Batches) -> list[Record]:
    items.alter([*FIELDS, column("other", "string", **{"pg.name": "name"})])
    return [items.change("u", 20, 1, after=_row(1) | {"other": "x"})]


CASES: dict[str, tuple[Callable[[Batches], list[Record]], str, str]] = {
    "a gap": (_gap, "CDCD-GAP", "missing"),
    "a change without a key": (_change_without_key, "CDCD-MIRROR-INCONSISTENT", "without a key"),
    "a value never sent": (_value_never_sent, "CDCD-MIRROR-INCONSISTENT", "did not send all columns"),
    "another type": (_other_type, "CDCD-MIRROR-INCONSISTENT", "type has changed"),
    "two columns of one name": (_two_columns_of_one_name, "CDCD-MIRROR-INCONSISTENT", "same name"),
}


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    """Return a table with a row, whose mirror parks."""
    batches = Batches(tmp_path / "mirror", FIELDS)
    batches.on_error = "park"
    batches.run([batches.change("r", 10, 1, after=_row(1, "a", "long"))], loading=False)
    return batches


def _parked(items: Batches) -> Parked | None:
    version = read_latest(items.target)
    assert version is not None
    return version.parked.get(TOPIC)


@pytest.mark.parametrize("name", CASES)
def test_a_table_in_trouble_keeps_its_rows_until_it_is_copied_again(items: Batches, name: str) -> None:
    trouble, code, text = CASES[name]
    rows = [_row(1, "a", "long")]
    files = sorted(path for path in items.target.rglob("*.parquet"))
    assert items.run(trouble(items), loading=False) == rows
    found = _parked(items)
    assert found is not None
    assert (found.code, text in found.reason) == (code, True), found.reason
    assert sorted(path for path in items.target.rglob("*.parquet")) == files, "no file of the batch is left"

    items.alter(FIELDS)
    assert items.run([items.change("u", 30, 1, after=_row(1, "later"))], loading=False) == rows
    assert _parked(items) == found

    copied = [
        items.change("u", 39, 1, after=_row(1, "before the copy")),
        items.change("t", 40, 1, snapshot=True),
        items.change("r", 40, 2, after=_row(2, "copied")),
        items.change("c", 41, 1, after=_row(3, "c")),
    ]
    assert items.run(copied, loading=False) == [_row(2, "copied"), _row(3, "c")]
    assert _parked(items) is None
    changed = items.change("u", 50, 1, after=_row(2, "new"))
    assert items.run([changed], loading=False) == [_row(2, "new"), _row(3, "c")]


@pytest.mark.parametrize("name", CASES)
def test_trouble_before_a_truncate_of_the_same_batch_is_none(items: Batches, name: str) -> None:
    """Else the table would be parked after its recovery, which no later batch has."""
    trouble = CASES[name][0](items)
    if name == "two columns of one name":
        items.alter(FIELDS)
    row = {"id": 2, "name": 5 if name == "another type" else "b", "body": None}
    again = [items.change("t", 30, 1), items.change("c", 30, 2, after=row)]
    assert items.run([*trouble, *again], loading=False) == [row]
    assert _parked(items) is None


POINT = {"type": "record", "name": "point", "fields": [column("x", "int", required=True)]}
POINT_OF_LONG = {**POINT, "fields": [column("x", "long", required=True)]}
POINT_OF_DOUBLE = {**POINT, "fields": [column("x", "double", required=True)]}
KEY_TYPES: dict[str, tuple[Any, Any, Any, bool]] = {
    "int4 to int8": ("int", "long", 1, False),
    "int4 to float8": ("int", "double", 1, True),
    "int8 to float4": ("long", "float", 1, True),
    "float4 to float8": ("float", "double", 1.5, True),
    "a larger composite": (POINT, POINT_OF_LONG, {"x": 1}, False),
    "another composite": (POINT, POINT_OF_DOUBLE, {"x": 1}, True),
}


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("is_required", [True, False], ids=["never null", "may be null"])
@pytest.mark.parametrize("name", KEY_TYPES)
def test_a_key_that_gets_other_bytes_parks_the_table(
    tmp_path: Path, name: str, is_required: bool, in_one_batch: bool
) -> None:
    """Its rows would be there twice, and no delete would find them; after a copy all keys have the same form."""
    old, new, key, is_other = KEY_TYPES[name]
    fields = [[column("k", one, required=is_required), column("v", "string")] for one in (old, new)]
    items = Batches(tmp_path / "t", fields[0])
    items.on_error = "park"

    def changed(op: str, lsn: int, value: str) -> Record:
        return items.change(op, lsn, 1, after={"k": key, "v": value})

    records = [changed("c", 10, "old")]
    if not in_one_batch:
        items.run(records, loading=False)
        records = []
    items.alter(fields[1])
    items._table._key = (99, key_schema(TOPIC, fields[1][:1]))
    rows = items.run([*records, changed("u", 20, "new")], loading=False)
    parked = _parked(items)
    assert (parked is not None) == is_other
    if parked is None:
        assert rows == [{"k": key, "v": "new"}]
        return
    assert "same key has other bytes" in parked.reason
    copy = [
        items.change("t", 30, 1, snapshot=True),
        items.change("r", 30, 2, after={"k": key, "v": "copied"}),
    ]
    assert items.run(copy, loading=False) == [{"k": key, "v": "copied"}]
    assert items.run([changed("u", 40, "later")], loading=False) == [{"k": key, "v": "later"}]
    assert _parked(items) is None


def test_a_copy_in_the_batch_of_another_key_type_does_not_park(items: Batches) -> None:
    items.alter([column("id", "double", required=True), *FIELDS[1:]])
    items._table._key = (99, key_schema(TOPIC, [column("id", "double", required=True)]))
    copy = [
        items.change("u", 20, 1, after=_row(1, "b")),
        items.change("t", 30, 1, snapshot=True),
        items.change("r", 30, 2, after=_row(1, "copied")),
    ]
    assert items.run(copy, loading=False) == [_row(1, "copied")]
    assert _parked(items) is None


def test_a_column_outside_the_key_may_get_another_type(items: Batches) -> None:
    fields = [[FIELDS[0], column("n", one)] for one in ("float", "double")]
    items.alter(fields[0])
    items.run([items.change("u", 20, 1, after={"id": 1, "n": 1.5})], loading=False)
    items.alter(fields[1])
    changed = items.change("u", 30, 1, after={"id": 1, "n": 2.5})
    assert items.run([changed], loading=False) == [{"id": 1, "n": 2.5}]


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("begun", ["copy", "truncate", "new"])
@pytest.mark.parametrize("has_key", [True, False], ids=["key", "no key"])
def test_values_of_another_type_after_the_truncate_are_not_lost(
    tmp_path: Path, begun: str, has_key: bool, in_one_batch: bool
) -> None:
    """The columns cannot hold them under the newest type, in whatever batches they arrive."""
    name = FIELDS[1] | {"pg.attnum": 2}
    items = Batches(tmp_path / "mirror", FIELDS, has_key=has_key)
    items.on_error = "park"
    items.alter([FIELDS[0], name | {"type": ["null", "int"]}, FIELDS[2]], 16_400)
    rows = [{"id": 1, "name": 5, "body": None}]
    if begun != "new":
        items.run([items.change("c", 10, 1, after=rows[0])], loading=False)
    is_copy = begun == "copy"
    emptied = [] if begun == "new" else [items.change("t", 20, 1, snapshot=is_copy)]
    batch = [*emptied, items.change("r" if is_copy else "c", 20, 2, after=rows[0] | {"name": 6})]
    if not in_one_batch:
        rows = items.run(batch, loading=False)
        batch = []
    items.alter([FIELDS[0], name, FIELDS[2]], 16_400)
    after = items.run([*batch, items.change("c", 30, 1, after=_row(3, "x"))], loading=False)
    assert after == ([] if begun == "new" and in_one_batch else rows)
    found = _parked(items)
    assert found is not None
    assert "type has changed" in found.reason
    again = [items.change("t", 40, 1, snapshot=True), items.change("r", 40, 2, after=_row(3, "x"))]
    assert items.run(again, loading=False) == [_row(3, "x")]
    assert _parked(items) is None


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("is_copy", [True, False], ids=["copy", "truncate"])
@pytest.mark.parametrize("has_key", [True, False], ids=["key", "no key"])
def test_a_type_that_changes_before_the_truncate_parks_no_table(
    tmp_path: Path, has_key: bool, is_copy: bool, in_one_batch: bool
) -> None:
    """All values that remain are of the newest type, whether the mirror has begun before or with this batch."""
    items = Batches(tmp_path / "mirror", FIELDS, has_key=has_key)
    items.on_error = "park"
    name = FIELDS[1] | {"pg.attnum": 2}
    items.alter([FIELDS[0], name | {"type": ["null", "int"]}, FIELDS[2]], 16_400)
    batch = [items.change("c", 10, 1, after={"id": 1, "name": 5, "body": None})]
    if not in_one_batch:
        items.run(batch, loading=False)
        batch = []
    if is_copy:
        items.alter([FIELDS[0], name, FIELDS[2]], 16_400)
    batch.append(items.change("t", 20, 1, snapshot=is_copy))
    items.alter([FIELDS[0], name, FIELDS[2]], 16_400)
    batch.append(items.change("r" if is_copy else "c", 20, 2, after=_row(1, "5")))
    batch.append(items.change("c", 30, 1, after=_row(2, "x")))
    rows = [_row(1, "5"), _row(2, "x")]
    assert items.run(batch, loading=False) == rows
    assert _parked(items) is None
    later = items.change("c", 40, 1, after=_row(3, "y"))
    assert items.run([later], loading=False) == [*rows, _row(3, "y")]


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_type_that_changes_and_changes_back_loses_no_value(items: Batches, in_one_batch: bool) -> None:
    batch = _other_type(items)
    if not in_one_batch:
        items.run(batch, loading=False)
        batch = []
    items.alter(FIELDS)
    changed = items.change("u", 30, 1, after=_row(2, "b"))
    assert items.run([*batch, changed], loading=False) == [_row(1, "a", "long")]
    assert _parked(items) is not None


def test_trouble_again_after_the_truncate_parks_again(items: Batches) -> None:
    items.run(_gap(items), loading=False)
    assert items.run([items.change("t", 30, 1)], loading=False) == []
    assert _parked(items) is None
    items.run([items.change("u", 40, 1, after=_row(9), unchanged=["name"])], loading=False)
    again = _parked(items)
    assert again is not None
    assert "did not send all columns" in again.reason


def test_a_table_that_gets_a_key_is_mirrored_anew_by_a_copy(tmp_path: Path) -> None:
    log = Batches(tmp_path / "mirror", FIELDS, has_key=False)
    log.on_error = "park"
    log.run([log.change("r", 10, 1, after=_row(1, "a"))], loading=False)
    keyed = Batches(tmp_path / "other", FIELDS)
    log.run([keyed.change("c", 20, 1, after=_row(2, "b"))], loading=False)
    found = _parked(log)
    assert found is not None
    assert "now has one" in found.reason
    copied = [keyed.change("t", 30, 1, snapshot=True), keyed.change("r", 30, 2, after=_row(2, "b"))]
    assert log.run(copied, loading=False) == [_row(2, "b")]
    assert _parked(log) is None


def test_a_table_gets_a_key_and_is_copied_in_one_batch(tmp_path: Path) -> None:
    log = Batches(tmp_path / "mirror", FIELDS, has_key=False)
    log.on_error = "park"
    log.run([log.change("r", 10, 1, after=_row(1, "a"))], loading=False)
    keyed = Batches(tmp_path / "other", FIELDS)
    copied = [keyed.change("t", 30, 1, snapshot=True), keyed.change("r", 30, 2, after=_row(2, "b"))]
    earlier = keyed.change("c", 20, 1, after=_row(2, "b"))
    assert log.run([earlier, *copied], loading=False) == [_row(2, "b")]
    assert _parked(log) is None


def test_a_parked_table_without_a_key_costs_no_more_memory_than_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its records, which are all without a key, a batch has those that may resume it."""
    log = Batches(tmp_path / "mirror", FIELDS, has_key=False)
    log.on_error = "park"
    log.run([log.change("r", 10, 1, after=_row(1, "a"))], loading=False)
    log.run([log.change("u", 20, 1, after=_row(1, "b"))], loading=False)
    assert _parked(log) is not None
    retained: list[int] = []

    def looks(*given: Any) -> list[Look]:
        found = looks_of(*given)
        retained.extend(len(one.keyless_values) for one in found)
        return found

    monkeypatch.setattr("cdcd.spark.mirroring.batches.looks_of", looks)
    rows = [log.change("c", 30, n, after=_row(n)) for n in range(200)]
    assert log.run(rows, loading=False) == [_row(1, "a")]
    again = [*rows[:70], log.change("t", 40, 1), log.change("c", 40, 2, after=_row(5)), *rows[70:]]
    assert log.run(again, loading=False) == [_row(5)]
    assert retained == [1, 2]


def test_a_truncate_alone_does_not_show_whether_a_table_has_a_key(tmp_path: Path) -> None:
    """It is the first record that a mirror reads of a topic, or of a copy."""
    items = Batches(tmp_path / "mirror", FIELDS)
    assert items.run([items.change("t", 10, 1)], loading=False) == []
    assert items.run([items.change("c", 20, 1, after=_row(1, "a"))], loading=False) == [_row(1, "a")]
    assert items.run([items.change("u", 30, 1, after=_row(1, "b"))], loading=False) == [_row(1, "b")]


def test_a_run_to_an_end_is_no_success_with_a_parked_table(items: Batches) -> None:
    with items.mirror() as batches:
        batches.refuse_parked()
    items.run(_gap(items), loading=False)
    with items.mirror() as batches, pytest.raises(TablesParked, match=TOPIC):
        batches.refuse_parked()


def _apply(items: Batches, records: list[Record], end_lsn: int, *, loading: bool = False) -> None:
    """Apply a batch that ends at a position in the source."""
    copied = frozenset({TOPIC}) if loading else frozenset[str]()
    with items.mirror() as batches:
        batches.apply(
            RecordsOnDriver(records_table(records)), with_loading({}, copied), SourcePosition(end_lsn)
        )


def test_a_parked_table_has_the_position_of_its_last_good_rows(items: Batches) -> None:
    _apply(items, [items.change("u", 15, 1, after=_row(1, "good"))], 16)
    _apply(items, _gap(items), 25)
    found = _parked(items)
    assert found is not None
    assert found.end_lsn == 16
    _apply(items, [items.change("u", 30, 1, after=_row(1, "later"))], 35)
    assert _parked(items) == found, "the mirror goes on, the table does not"

    # A TRUNCATE resumes it, and the same batch has a second failure: nothing of the batch is visible.
    again = [items.change("t", 40, 1), items.change("u", 41, 1, after=_row(9), unchanged=["name"])]
    _apply(items, again, 45)
    second = _parked(items)
    assert second is not None
    assert (second.code, second.end_lsn) == ("CDCD-MIRROR-INCONSISTENT", 16)
    assert items.rows() == [_row(1, "good")]

    _apply(items, [items.change("t", 50, 1), items.change("c", 51, 1, after=_row(2))], 55)
    assert _parked(items) is None
    _apply(items, [items.change("u", 60, 1, after=_row(9), unchanged=["name"])], 65)
    third = _parked(items)
    assert third is not None
    assert third.end_lsn == 55


def test_a_table_that_is_parked_while_it_is_copied_is_of_no_position(tmp_path: Path) -> None:
    """Its rows are of several commits."""
    items = Batches(tmp_path / "mirror", FIELDS)
    items.on_error = "park"
    _apply(items, [items.change("r", 10, 1, after=_row(1, "a"))], 11, loading=True)
    _apply(items, _gap(items), 25, loading=True)
    for _ in range(2):
        found = _parked(items)
        assert found is not None
        assert found.end_lsn == 0
        again = [items.change("t", 40, 1), items.change("u", 41, 1, after=_row(9), unchanged=["name"])]
        _apply(items, again, 45)
    assert items.rows() == [_row(1, "a")]


def test_each_reader_refuses_a_table_that_was_parked_while_it_was_copied(tmp_path: Path) -> None:
    """It has the rows of no one commit: `parked` accepts an earlier commit, and `loading` that rows are missing."""
    items = Batches(tmp_path / "mirror", FIELDS)
    items.on_error, items.scd_type = "park", 2
    for at, is_copied in enumerate((True, True, False), 1):
        name: Any = "a" if at == 1 else 5
        if at == 2:
            items.alter([FIELDS[0], column("name", "int"), FIELDS[2]])
        records = [items.change("r" if at == 1 else "u", 10 * at, 1, after=_row(1, name))]
        offsets = with_loading({}, frozenset({TOPIC}) if is_copied else frozenset())
        with items.mirror() as batches:
            batches.apply(RecordsOnDriver(records_table(records)), offsets, SourcePosition(10 * at, 0))
    target, table = str(items.target), "public.items"
    opened = read_mirror(target)
    assert (opened.parked[TOPIC].end_lsn, opened.loading) == (0, [])
    spark = cast("SparkSession", None)
    options = {"target": target, "table": table}
    readers: dict[str, Callable[..., object]] = {
        "consistent_view": lambda **given: consistent_view(spark, target, **given),
        "history": lambda **given: history(spark, target, table, **given),
        "changes": lambda **given: changes(spark, target, table, opened.at, **given),
        "wait": lambda **given: wait(target, 1, timeout_s=0, **given),
        "format": lambda **given: mirrored_table(options | dict.fromkeys(given, "true")).entry(),
    }
    for name, read in readers.items():
        for given in ({}, {"parked": True}, {"loading": True}):
            with pytest.raises(TablesParked):
                pytest.fail(f"{name} {given}: {read(**given)}")
    assert wait(target, 1, timeout_s=0, parked=True, loading=True).at == opened.at
    assert mirrored_table(options | {"parked": "true", "loading": "true"}).entry().files
    refuse_unfinished(opened, TOPIC, loading=True, parked=True)
