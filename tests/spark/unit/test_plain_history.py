"""SQL views of histories: DuckDB, which knows nothing of the mirror, reads the versions that a model replays."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.reading.plain_views import plain_views, script_of
from cdcd.spark.target.versions import TableFormat
from tests.spark.batches import Batches, Record
from tests.spark.events import column
from tests.spark.history_model import (
    FIELDS,
    Model,
    Version,
    batch_of,
    copy_of,
    item,
    plain_copy_of,
    stopped_copy_of,
)
from tests.spark.unit.test_plain_views import duck
from tests.support.nightly import nightly


def rows_of(opened: Mirror, view: str = "public_items_history") -> list[dict[str, Any]]:
    with duck(*(["delta"] if opened.version.table_format == "delta" else [])) as connection:
        connection.execute("\n".join(script_of(opened, plain_views(opened), time.time())))
        return connection.execute(f"SELECT * FROM {view}").to_arrow_table().to_pylist()


def versions(opened: Mirror) -> list[Version]:
    found = [
        (one["id"], one["name"], one["note"], _place(one["__start_at"]), _place(one["__end_at"]))
        for one in rows_of(opened)
    ]
    return sorted(found, key=lambda one: (one[0], one[3]))


def _place(at: Any) -> Any:
    return None if at is None else (at["commit_lsn"], at["tx_seq"])


def history_of(folder: Path, fields: list[dict[str, Any]] = FIELDS, **options: Any) -> Batches:
    items = Batches(folder / "mirror", fields, **options)
    items.scd_type = 2
    return items


@pytest.mark.parametrize(
    ("seed", "table_format"),
    [(1, "parquet"), *(nightly(seed, "parquet") for seed in range(2, 8)), nightly(1, "delta")],
)
def test_a_view_has_the_versions_of_each_row(tmp_path: Path, seed: int, table_format: TableFormat) -> None:
    """Updates without TOASTed values, TRUNCATE, copies, merged files, an earlier version of the mirror."""
    items, model, chosen = history_of(tmp_path, table_format=table_format), Model(), random.Random(seed)
    for number in range(1, 13):
        make = copy_of if number % 4 == 0 or number == 5 else plain_copy_of if number == 7 else batch_of
        if number in (4, 8):
            for lsn in (100 * number - 60, 100 * number - 50)[: number // 4]:
                items.run(stopped_copy_of(items, model, lsn, chosen), loading=True)
        items.run(make(items, model, 100 * number, chosen), loading=False)
        with items.mirror() as batches:
            batches.compact()
        if number == 6:
            earlier, at = model.versions, read_mirror(items.target).at
    assert versions(read_mirror(items.target)) == model.versions
    assert versions(read_mirror(items.target, at=at)) == earlier


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_rows_at_each_commit_are_those_of_the_table(tmp_path: Path, name: str) -> None:
    """A copy does not find a row, and a later one finds it again, the same or another one."""
    items = history_of(tmp_path)
    tables: dict[int, list[dict[str, Any]]] = {}
    for lsn, records in {
        100: [items.change("c", 100, 1, after=item(1, "a")), items.change("c", 100, 2, after=item(2, "x"))],
        200: [items.change("t", 200, 1, snapshot=True), items.change("r", 200, 2, after=item(2, "x"))],
        300: [items.change("c", 300, 1, after=item(3, "y"))],
        400: [
            items.change("t", 400, 1, snapshot=True),
            *(items.change("r", 400, 1 + row["id"], after=row) for row in (item(1, name), item(2, "x"))),
        ],
    }.items():
        tables[lsn] = items.run(records, loading=False)
    found = versions(read_mirror(items.target))
    valid = {
        lsn: [item(*one[:3]) for one in found if one[3][0] <= lsn and (one[4] is None or one[4][0] > lsn)]
        for lsn in tables
    }
    assert valid == tables
    assert [one for one in found if one[0] == 2] == [(2, "x", "n", (100, 2), None)], "each copy has found it"


@pytest.mark.parametrize("is_one_batch", [False, True])
@pytest.mark.parametrize("stopped", [1, 2])
def test_a_copy_that_begins_again_before_it_is_complete_ends_no_row(
    tmp_path: Path, stopped: int, is_one_batch: bool
) -> None:
    """Only the copy that becomes complete shows which rows are not there; its TRUNCATE ends row 4."""
    items = history_of(tmp_path)
    items.run([items.change("c", 100, one, after=item(one, "a")) for one in (1, 2, 3, 4)], loading=False)
    copied = [
        [items.change("t", lsn, 1, snapshot=True), items.change("r", lsn, 2, after=item(1, "a"))]
        for lsn in (200, 300)[:stopped]
    ]
    copied.append([items.change("t", 900, 1, snapshot=True)])
    copied[-1] += [items.change("r", 900, 1 + one, after=item(one, "a")) for one in (1, 2, 3)]
    if is_one_batch:
        copied = [[record for records in copied for record in records]]
    for place, records in enumerate(copied, 1):
        items.run(records, loading=place < len(copied))
    expected = [(one, "a", "n", (100, one), None) for one in (1, 2, 3)]
    expected.append((4, "a", "n", (100, 4), (900, 1)))
    assert versions(read_mirror(items.target)) == expected


def test_a_copy_that_was_complete_counts_although_the_next_one_waits_before_it_begins(tmp_path: Path) -> None:
    """A table whose copy waits is loading, too: that says nothing about the copy before."""
    items = history_of(tmp_path)
    rows = [item(1, "a"), item(2, "b")]
    items.run([items.change("c", 100, one["id"], after=one) for one in rows], loading=False)
    copied = [items.change("t", 200, 1, snapshot=True), items.change("r", 200, 2, after=rows[1])]
    items.run(copied[:1], loading=True)
    items.run(copied[1:], loading=True)
    items.run([], loading=False)
    items.run([], loading=True)
    again = [items.change("r", 300, 1 + one["id"], after=one) for one in rows]
    items.run([items.change("t", 300, 1, snapshot=True), *again], loading=False)
    assert versions(read_mirror(items.target)) == [
        (1, "a", "n", (100, 1), (200, 1)),
        (1, "a", "n", (300, 2), None),
        (2, "b", "n", (100, 2), None),
    ]


@pytest.mark.parametrize("is_one_batch", [False, True])
@pytest.mark.parametrize("begins_with", ["c", "t"])
def test_a_row_that_is_copied_without_a_column_has_the_value_of_the_table(
    tmp_path: Path, begins_with: str, is_one_batch: bool
) -> None:
    """`columns` of `snapshot.overrides`: the mirror retains the value that it has; after a TRUNCATE it has none."""
    items = history_of(tmp_path)
    first = [items.change("c", 100, 1, after=item(1, "a", "photo"))]
    if begins_with == "t":
        first.append(items.change("t", 150, 1, snapshot=True))
    copied = [items.change("r", 199, 1, after=item(1, "a", None), unchanged=["note"])]
    changed = [items.change("u", 300, 1, after=item(1, "b", None), unchanged=["note"])]
    batches = [first + copied + changed] if is_one_batch else [first, copied, changed]
    rows = [items.run(one, loading=False) for one in batches]
    note = "photo" if begins_with == "c" else None
    assert rows[-1] == [item(1, "b", note)]
    former = [(1, "a", "photo", (100, 1), (300, 1) if note else (199, 1))]
    former += [] if note else [(1, "a", None, (199, 1), (300, 1))]
    assert versions(read_mirror(items.target)) == [*former, (1, "b", note, (300, 1), None)]


def test_columns_come_and_texts_of_values_outside_their_types_are_filled(tmp_path: Path) -> None:
    odd = [FIELDS[0], column("name", "string"), column("note", "string", **{"pg.name": 'it\'s "it"'})]
    items = history_of(tmp_path, odd)
    sent = {"after": {"id": 1, "name": "a", "note": None}, "special": {"after.note": "infinity"}}
    items.run([items.change("c", 10, 1, commit_us=5_000_000, **sent)], loading=False)
    after = {"id": 1, "name": "b", "note": None}
    items.run([items.change("u", 20, 1, after=after, unchanged=["note"])], loading=False)
    items.alter([*odd, column("size", "double")])
    items.run(
        [items.change("u", 30, 1, after={"id": 1, "name": "b", "note": "n", "size": 0.5})], loading=False
    )
    first, second, third = sorted(
        rows_of(read_mirror(items.target)), key=lambda one: one["__start_at"]["commit_lsn"]
    )
    assert [one['it\'s "it"'] for one in (first, second, third)] == [None, None, "n"]
    assert [dict(one["__special"] or ()) for one in (first, second, third)] == [
        {'it\'s "it"': "infinity"},
        {'it\'s "it"': "infinity"},
        {},
    ]
    assert [one["size"] for one in (first, second, third)] == [None, None, 0.5]
    assert first["__start_time"].timestamp() == 5.0
    assert first["__end_time"] is None
    assert second["__end_at"] == {"timeline": 1, "commit_lsn": 30, "tx_seq": 1}


def test_a_table_without_a_key_or_a_line_and_a_taken_name(tmp_path: Path) -> None:
    bag = history_of(tmp_path, has_key=False)
    bag.run([bag.change("c", 10, 1, after=item(1, "a"))], loading=False)
    assert [one.name for one in plain_views(read_mirror(bag.target))] == ["public_items"]

    (tmp_path / "other").mkdir()
    taken = history_of(tmp_path / "other", [FIELDS[0], column("__end_at", "string")])
    taken.run([taken.change("c", 10, 1, after={"id": 1, "__end_at": "x"})], loading=False)
    _, view = plain_views(read_mirror(taken.target))
    assert view.statement is None
    assert "__end_at" in view.notes[-1]


@pytest.mark.parametrize("is_one_batch", [False, True])
def test_versions_of_a_table_that_is_copied_anew_end_at_the_last_known_commit(
    tmp_path: Path, is_one_batch: bool
) -> None:
    """The table was valid until then, also if its own last change is older; a query of that time finds its rows."""
    items = history_of(tmp_path)
    items.on_error = "park"
    items.run(
        [_at(items, "c", 10, 1), _at(items, "c", 11, 2)], loading=False, end_lsn=12, commit_us=12_000_000
    )
    items.run([], loading=False, end_lsn=19, commit_us=19_000_000)
    trouble: list[Record] = [(None, _at(items, "u", 20, 9)[1])]
    if not is_one_batch:
        items.run(trouble, loading=False, end_lsn=21, commit_us=21_000_000)
        assert read_mirror(items.target).parked
        items.run([], loading=False, end_lsn=30, commit_us=30_000_000)
        trouble = []
    copied = [items.change("t", 40, 1, snapshot=True, commit_us=40_000_000), _at(items, "r", 40, 1)]
    items.run([*trouble, *copied], loading=False, end_lsn=41, commit_us=41_000_000)
    found = sorted(
        (one["id"], one["__start_time"].timestamp(), one["__end_time"] and one["__end_time"].timestamp())
        for one in rows_of(read_mirror(items.target))
    )
    assert found == [(1, 10.0, 19.0), (1, 40.0, None), (2, 11.0, 19.0)]


def _at(items: Batches, op: str, lsn: int, number: int, **rest: Any) -> Record:
    return items.change(op, lsn, 1 + number, after=item(number, "a"), commit_us=lsn * 1_000_000, **rest)


@pytest.mark.parametrize("is_one_batch", [False, True])
def test_a_new_history_begins_with_the_rows_of_the_copy(tmp_path: Path, is_one_batch: bool) -> None:
    """Not with a part of the changes before: those of the batch in which the copy begins."""
    items = history_of(tmp_path)
    items.on_error = "park"
    items.run([items.change("c", 10, one, after=item(one, "a")) for one in (1, 2, 3)], loading=False)
    items.alter([FIELDS[0], column("name", "int"), FIELDS[2]])
    rows = [{"id": one, "name": 5, "note": "n"} for one in (1, 2)]
    trouble = [items.change("u", 20, 1, after=rows[0])]
    if not is_one_batch:
        items.run(trouble, loading=False)
        trouble = []
    changed = [items.change("u", 30, 1, after=rows[1]), items.change("d", 30, 2, before=item(3, None))]
    copied = [items.change("r", 40, 2, after=rows[0])]
    items.run([*trouble, *changed, items.change("t", 40, 1, snapshot=True), *copied], loading=False)
    opened = read_mirror(items.target)
    assert not opened.parked
    assert versions(opened) == [(1, 5, "n", (40, 2), None)]


@pytest.mark.parametrize("is_one_batch", [False, True])
def test_a_type_that_changes_and_changes_back_ends_no_history(tmp_path: Path, is_one_batch: bool) -> None:
    """The history cannot have the value in between; the versions before it remain, whatever a batch holds."""
    items = history_of(tmp_path)
    items.on_error = "park"
    items.run([items.change("c", 10, 1, after=item(1, "a"))], loading=False)
    items.run([items.change("u", 15, 1, after=item(1, "b"))], loading=False)
    items.alter([FIELDS[0], column("name", "int"), FIELDS[2]])
    changed = [items.change("u", 20, 1, after={"id": 1, "name": 5, "note": "n"})]
    if not is_one_batch:
        items.run(changed, loading=False)
        changed = []
    items.alter(FIELDS)
    emptied = [items.change("t", 30, 1), items.change("c", 30, 2, after=item(1, "c"))]
    items.run([*changed, *emptied], loading=False)
    opened = read_mirror(items.target)
    assert not opened.parked
    former = [(1, "a", "n", (10, 1), (15, 1)), (1, "b", "n", (15, 1), (15, 2))]
    assert versions(opened) == [*former, (1, "c", "n", (30, 2), None)]


@pytest.mark.parametrize("is_one_batch", [False, True])
def test_a_history_has_no_line_with_a_value_of_another_type(tmp_path: Path, is_one_batch: bool) -> None:
    """Such a value of the first batch, in which the table is copied again, would be null."""
    items = history_of(tmp_path)
    items.alter([FIELDS[0], column("name", "int"), FIELDS[2]])
    changed = [items.change("c", 10, 1, after={"id": 1, "name": 5, "note": "n"})]
    if not is_one_batch:
        items.run(changed, loading=False)
        changed = []
    items.alter(FIELDS)
    copied = [items.change("t", 20, 1, snapshot=True), items.change("r", 20, 2, after=item(1, "5"))]
    items.run([*changed, *copied], loading=False)
    items.run([items.change("u", 30, 1, after=item(1, "b"))], loading=False)
    found = [(1, "5", "n", (20, 2), (30, 1)), (1, "b", "n", (30, 1), None)]
    assert versions(read_mirror(items.target)) == found


def test_the_history_of_a_table_that_was_dropped_begins_with_its_copy(tmp_path: Path) -> None:
    items = history_of(tmp_path)
    items.run([items.change("c", 10, 1, after=item(1, "a"))], loading=False)
    drop_table(items.target, "public.items")
    changed = [items.change("u", 20, 1, after=item(1, "b"))]
    copied = [items.change("t", 30, 1, snapshot=True), items.change("r", 30, 2, after=item(2, "c"))]
    items.run([*changed, *copied], loading=False)
    assert versions(read_mirror(items.target)) == [(2, "c", "n", (30, 2), None)]
