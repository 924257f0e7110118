"""A table that cdcd copies incrementally: changes of rows that the mirror does not have yet.

F46: a row whose values the mirror does not all have is not shown, and becomes complete by a later record.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import GapInTopic, MirrorInconsistent
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.target.commit_log import read_latest
from tests.spark.batches import TOPIC, Batches, Record
from tests.spark.events import column

ID, NAME, BODY, NOTE = (
    column("id", "int", required=True),
    *(column(n, "string") for n in ("name", "body", "note")),
)
COLUMNS = [ID, NAME, BODY, NOTE]
Row = dict[str, Any]


def _row(number: int, name: str | None = None, body: str | None = None, note: str | None = None) -> Row:
    return {"id": number, "name": name, "body": body, "note": note}


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    """Return the mirror of a table."""
    return Batches(tmp_path / "mirror", COLUMNS)


Step = tuple[list[tuple[str, Row]], list[Row]]
"""The changes of one transaction as (op, arguments of an event), and the rows that a reader sees after it."""
OTHER = _row(8, "other", "body 8", "note 8")


def _update(row: Row, *unchanged: str, special: dict[str, str] | None = None) -> tuple[str, Row]:
    return "u", {"after": row, "unchanged": unchanged, "special": special}


def _insert(row: Row, *unchanged: str) -> tuple[str, Row]:
    return "c", {"after": row, "unchanged": unchanged}


def _copied(row: Row, *unchanged: str) -> tuple[str, Row]:
    return "r", {"after": row, "unchanged": unchanged}


def _delete(number: int) -> tuple[str, Row]:
    return "d", {"before": _row(number)}


FULL = _row(1, "new", "long", "note")
CASES: dict[str, list[Step]] = {
    "the copied row comes": [
        ([_update(_row(1, "new"), "body", "note")], []),
        ([_copied(FULL)], [FULL]),
        ([_update(_row(1, "newer"), "body", "note")], [_row(1, "newer", "long", "note")]),
    ],
    "an update sends all columns": [
        ([_update(_row(1, "new"), "body", "note")], []),
        ([_update(FULL)], [FULL]),
    ],
    "updates send the columns one after the other": [
        ([_update(_row(1, "a"), "body", "note")], []),
        ([_update(_row(1, "b", "long"), "note")], []),
        ([_update(_row(1, "c", None, "note"), "body")], [_row(1, "c", "long", "note")]),
    ],
    "an update sends null": [
        ([_update(_row(1, "a"), "body")], []),
        ([_update(_row(1, "b", None, "note"))], [_row(1, "b", None, "note")]),
    ],
    "a second update sends no more": [
        ([_update(_row(1, "a"), "body", "note")], []),
        ([_update(_row(1, "b", "long"), "note"), _update(_row(1, "c"), "body", "note")], []),
        ([_copied(FULL)], [FULL]),
    ],
    "the row is deleted": [
        ([_update(_row(1, "new"), "body", "note")], []),
        ([_delete(1)], []),
    ],
    "the row is deleted and inserted": [
        ([_update(_row(1, "new"), "body", "note")], []),
        ([_delete(1), _insert(FULL)], [FULL]),
    ],
    "the table is truncated": [
        ([_update(_row(1, "new"), "body", "note"), _copied(OTHER)], [OTHER]),
        ([("t", {})], []),
        ([_insert(_row(2, "two"))], [_row(2, "two")]),
    ],
    "a truncate event precedes the copied rows": [
        ([_insert(OTHER)], [OTHER]),
        ([_update(_row(1, "new"), "body", "note")], [OTHER]),
        ([("t", {"snapshot": True}), _copied(FULL)], [FULL]),
    ],
    "the key changes, then the copied row comes": [
        ([_update(_row(1, "new"), "body", "note")], []),
        ([_delete(1), _insert(_row(101, "moved"), "body", "note")], []),
        ([_copied(_row(101, "moved", "long", "note"))], [_row(101, "moved", "long", "note")]),
    ],
    "the key of an unknown row changes": [
        ([_delete(1), _insert(_row(101, "moved"), "body", "note")], []),
        ([_update(_row(101, "full", "long", "note"))], [_row(101, "full", "long", "note")]),
    ],
    "values move with the key": [
        ([_update(_row(1, "new", "long"), "note")], []),
        ([_delete(1), _insert(_row(101, "moved"), "body", "note")], []),
        ([_delete(101), _insert(_row(55, "again"), "body", "note")], []),
        ([_update(_row(55, "full", None, "note"), "body")], [_row(55, "full", "long", "note")]),
    ],
    "a row begins to match the row filter": [
        ([_insert(_row(1, "new"), "body")], []),
        ([_copied(FULL)], [FULL]),
    ],
    "an unknown row is deleted": [
        ([_delete(1), _copied(OTHER)], [OTHER]),
        ([_copied(FULL)], [FULL, OTHER]),
    ],
    "the copied row replaces a complete one": [
        ([_insert(_row(1, "old", "old", "old")), _insert(OTHER)], [_row(1, "old", "old", "old"), OTHER]),
        ([_copied(_row(1, "copied"))], [_row(1, "copied"), OTHER]),
        ([_update(_row(1, "new"), "body")], [_row(1, "new"), OTHER]),
    ],
    "a copied row lacks columns that are not copied": [
        ([_copied(_row(1, "copied"), "body", "note")], [_row(1, "copied")]),
        ([_update(_row(1, "new"), "body", "note")], [_row(1, "new")]),
        ([_update(_row(1, "newer", "long"), "note")], [_row(1, "newer", "long")]),
        ([_copied(_row(1, "again"), "body", "note")], [_row(1, "again", "long")]),
        ([_delete(1), _insert(_row(101, "moved"), "body", "note")], [_row(101, "moved", "long")]),
    ],
    "a copied row lacks a column that an update did not send": [
        ([_update(_row(1, "new", None, "note"), "body")], []),
        ([_copied(_row(1, "copied"), "body", "note")], [_row(1, "copied", None, "note")]),
    ],
    "special texts stay with their column": [
        ([_update(_row(1), "body", "note", special={"after.name": "infinity"})], []),
        (
            [_update(_row(1, None, "long", "note"), "name")],
            [_row(1, None, "long", "note") | {"__special": [("name", "infinity")]}],
        ),
        ([_copied(FULL)], [FULL]),
    ],
}


def _transactions(items: Batches, steps: list[Step]) -> list[list[Record]]:
    return [
        [items.change(op, 10 * number, place, **rest) for place, (op, rest) in enumerate(changes, 1)]
        for number, (changes, _) in enumerate(steps, 1)
    ]


@pytest.mark.parametrize("name", CASES)
def test_an_incomplete_row_is_not_shown_until_its_values_are_known(items: Batches, name: str) -> None:
    for records, (_, expected) in zip(_transactions(items, CASES[name]), CASES[name], strict=True):
        assert items.run(records, loading=True) == expected
    assert items.run([], loading=False) == CASES[name][-1][1]


@pytest.mark.parametrize("name", CASES)
def test_one_batch_gives_the_same_rows(items: Batches, name: str) -> None:
    """The copy may begin and end inside the batch."""
    records = [record for one in _transactions(items, CASES[name]) for record in one]
    assert items.run(records, loading=False) == CASES[name][-1][1]


@pytest.mark.parametrize("name", CASES)
def test_a_repeated_batch_changes_no_incomplete_row(items: Batches, name: str) -> None:
    done: list[Record] = []
    for records, (_, expected) in zip(_transactions(items, CASES[name]), CASES[name], strict=True):
        done += records
        assert items.run(done, loading=True) == expected
        assert items.run(records, loading=True) == expected
    assert items.run(done, loading=False) == CASES[name][-1][1]


def test_a_batch_that_was_not_finished_is_repeated(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the record of the version leaves neither the rows nor the incomplete ones."""
    items.run([items.change("u", 10, 1, after=_row(1, "a"), unchanged=["body", "note"])], loading=True)
    records = [items.change("u", 20, 1, after=_row(1, "b", "long"), unchanged=["note"])]

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("cdcd.spark.mirroring.batches.incomplete_tables", crash)
        with pytest.raises(KeyboardInterrupt):
            items.run(records, loading=True)
    assert (items.rows(), items.incomplete_rows()) == ([], 1)
    items.run(records, loading=True)
    last = items.change("u", 30, 1, after=_row(1, "c", None, "note"), unchanged=["body"])
    assert items.run([last], loading=False) == [_row(1, "c", "long", "note")]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_table_that_is_not_loading_has_no_incomplete_row(items: Batches, is_known: bool) -> None:
    """The batch is refused as a whole, whether it has the update itself or only the end of the copy."""
    items.run([items.change("c", 10, 1, after=OTHER)], loading=True)
    partial = [items.change("u", 0x20, 1, after=_row(1, "secret"), unchanged=["body", "note"])]
    if is_known:
        assert items.run(partial, loading=True) == [OTHER]
    with pytest.raises(MirrorInconsistent) as raised:
        items.run([] if is_known else partial, loading=False)
    text = str(raised.value)
    assert f"topic={TOPIC}" in text
    assert "first_commit_lsn=0/20" in text
    assert "cdcd resnapshot" in text
    assert "secret" not in text
    assert items.rows() == [OTHER]
    copied = [items.change("t", 0x30, 1, snapshot=True), items.change("r", 0x30, 2, after=FULL)]
    assert items.run(partial + copied, loading=False) == [FULL], "as the hint says"


def test_a_delete_and_a_partial_update_are_refused_as_before(items: Batches) -> None:
    items.run([items.change("c", 10, 1, after=FULL)], loading=False)
    records = [
        items.change("d", 20, 1, before=_row(1)),
        items.change("u", 20, 2, after=_row(1, "new"), unchanged=["body"]),
    ]
    with pytest.raises(MirrorInconsistent):
        items.run(records, loading=False)
    assert items.rows() == [FULL]


def test_the_first_change_that_lacked_the_value_is_named(items: Batches) -> None:
    items.run([items.change("u", 0x20, 1, after=_row(1, "a"), unchanged=["body", "note"])], loading=True)
    items.run([items.change("u", 0x30, 1, after=_row(1, "b", "long"), unchanged=["note"])], loading=True)
    items.run([items.change("u", 0x40, 1, after=_row(1, "c"), unchanged=["body", "note"])], loading=True)
    with pytest.raises(MirrorInconsistent, match="first_commit_lsn=0/20"):
        items.run([], loading=False)


def test_the_mirror_says_which_tables_are_loading(items: Batches) -> None:
    items.run([items.change("r", 10, 1, after=OTHER)], loading=True)
    assert read_mirror(items.target).loading == [TOPIC]
    items.run([items.change("u", 20, 1, after=_row(1), unchanged=["body"])], loading=True)
    assert (read_mirror(items.target).loading, items.incomplete_rows()) == ([TOPIC], 1)
    items.run([items.change("r", 30, 1, after=FULL)], loading=False)
    assert (read_mirror(items.target).loading, items.incomplete_rows()) == ([], 0)


def test_a_table_without_records_may_be_loading(items: Batches) -> None:
    assert items.run([], loading=True) == []
    assert read_mirror(items.target).loading == [TOPIC]


def test_copied_rows_come_between_the_transactions_of_the_stream(items: Batches) -> None:
    """Sorted by timeline, commit LSN and number, in whatever order a batch has them."""
    records = [
        items.change("r", 27, 5, after=_row(2, "copied")),
        items.change("u", 28, 1, after=_row(1, "after"), unchanged=["body", "note"]),
        items.change("u", 20, 1, after=_row(1, "before"), unchanged=["body", "note"]),
        items.change("r", 27, 4, after=_row(1, "copied", "long", "note")),
        items.change("u", 20, 2, after=_row(2, "before")),
        items.change("c", 5, 1, after=_row(3, "after a promotion"), timeline=2),
        items.change("r", 27, 6, after=_row(3, "copied")),
    ]
    assert items.run(records, loading=True) == [
        _row(1, "after", "long", "note"),
        _row(2, "copied"),
        _row(3, "after a promotion"),
    ]


def _added(items: Batches) -> None:
    items.alter([*COLUMNS, column("added", "string")])


def _again(items: Batches) -> None:
    items.alter([ID, NAME, NOTE])
    assert items.run([items.change("c", 15, 1, after={"id": 9, "name": "x", "note": None})], loading=True)
    items.alter(COLUMNS)


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (_added, _row(1, "b", "long", "note") | {"added": "value"}),
        (_again, _row(1, "b", "long", "note")),
    ],
)
def test_columns_change_while_a_row_is_incomplete(
    items: Batches, alter: Callable[[Batches], None], expected: Row
) -> None:
    items.run([items.change("u", 10, 1, after=_row(1, "a", None, "note"), unchanged=["body"])], loading=True)
    alter(items)
    full = {**expected, "note": None}
    rows = items.run([items.change("u", 20, 1, after=full, unchanged=["note"])], loading=False)
    assert rows[0] == expected


def test_a_value_of_a_dropped_column_is_not_missing(items: Batches) -> None:
    """The column is added again in the same batch, under the same name."""
    records = [items.change("u", 10, 1, after=_row(1, "a", None, "note"), unchanged=["body"])]
    items.alter([ID, NAME, NOTE])
    records.append(items.change("c", 20, 1, after={"id": 2, "name": "two", "note": None}))
    items.alter(COLUMNS)
    records.append(items.change("c", 30, 1, after=_row(3, "three", "body")))
    expected = [_row(1, "a", None, "note"), _row(2, "two"), _row(3, "three", "body")]
    assert items.run(records, loading=False) == expected


LOST = {"gap.from_lsn": "0/A", "gap.to_lsn": "0/14", "gap.reason": "CDCD-SLOT-LOST", "gap.decided": "2026"}


def test_a_gap_stops_a_loading_table_as_any_other(items: Batches) -> None:
    """Accepted, it changes no incomplete row: the copied row follows."""
    items.run([items.change("u", 10, 1, after=_row(1, "a"), unchanged=["body", "note"])], loading=True)
    gap = [items.change("g", 20, 1, special=LOST)]
    with pytest.raises(GapInTopic):
        items.run(gap, loading=True)
    assert items.run(gap, loading=True, accept_gaps=True) == []
    assert items.incomplete_rows() == 1
    assert items.run([items.change("r", 30, 1, after=FULL)], loading=True) == [FULL]


def test_an_initial_snapshot_is_not_loading(items: Batches) -> None:
    """Its rows come first, under one position; changes of unknown rows are refused from the first batch on."""
    rows = [_row(number, "s", "long", "note") for number in range(1, 9)]
    copied = [items.change("r", 9, number, after=row) for number, row in enumerate(rows, 1)]
    assert items.run(copied[:4], loading=False) == rows[:4]
    assert read_mirror(items.target).loading == []
    update = items.change("u", 10, 1, after=_row(1, "new"), unchanged=["body", "note"])
    assert items.run([*copied[4:], update], loading=False) == [_row(1, "new", "long", "note"), *rows[1:]]
    version = read_latest(items.target)
    assert version is not None
    assert version.tables[TOPIC].incomplete == ()
