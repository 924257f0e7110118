"""What a mirror makes of its batches, without Spark and Kafka: the rules of `test_mirror`, `test_gaps` and
`test_table_changes` at each change, which have them with real Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import MirrorInconsistent
from tests.spark.batches import Batches, Record
from tests.spark.events import column

ID, NAME = column("id", "int", required=True), column("name", "string")
NUMBER, STATE, STATUS = column("n", "int"), column("state", "string"), column("status", "string")
GAP = {"gap.from_lsn": "0/A", "gap.reason": "CDCD-SLOT-LOST", "gap.decided": "2026"}


def _row(number: int, name: str | None) -> dict[str, Any]:
    return {"id": number, "name": name}


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    """Return the mirror of a table."""
    return Batches(tmp_path / "mirror", [ID, NAME])


def _run(items: Batches, batches: list[list[Record]]) -> list[dict[str, Any]]:
    """Apply the batches; return the rows after the last one."""
    return [items.run(batch, loading=False) for batch in batches][-1]


def _split(records: list[Record], *, in_one_batch: bool) -> list[list[Record]]:
    return [records] if in_one_batch else [[record] for record in records]


IN_ONE_BATCH = pytest.mark.parametrize("in_one_batch", [True, False])


@IN_ONE_BATCH
def test_a_transaction_may_begin_exactly_at_the_snapshots_point(items: Batches, in_one_batch: bool) -> None:
    """F1: its commit LSN equals that of the snapshot's rows, which come before it."""
    copied = [items.change("r", 10, number, after=_row(number, "s")) for number in (1, 2)]
    streamed = items.change("u", 10, 1, after=_row(2, "streamed"))
    found = _run(items, _split([*copied, streamed], in_one_batch=in_one_batch))
    assert found == [_row(1, "s"), _row(2, "streamed")]


@IN_ONE_BATCH
def test_what_was_applied_is_not_applied_again(items: Batches, in_one_batch: bool) -> None:
    """A batch comes again after a crash, and after the loss of the checkpoint all of them."""
    records = [
        items.change("c", 10, 1, after=_row(1, "first")),
        items.change("u", 20, 1, after=_row(1, "second")),
        items.change("d", 30, 1, before=_row(1, None)),
        items.change("c", 40, 1, after=_row(2, "last")),
    ]
    batches = _split(records, in_one_batch=in_one_batch)
    for _ in range(2):
        assert _run(items, batches) == [_row(2, "last")]


@IN_ONE_BATCH
def test_a_gap_that_a_snapshot_follows_is_whole(items: Batches, in_one_batch: bool) -> None:
    old = items.change("c", 10, 1, after=_row(1, "gone in the gap"))
    assert items.run([old], loading=False) == [_row(1, "gone in the gap")]
    records = [
        items.change("g", 20, 1, special=GAP),
        items.change("t", 30, 1, snapshot=True),
        items.change("r", 30, 2, after=_row(2, "copied")),
    ]
    assert _run(items, _split(records, in_one_batch=in_one_batch)) == [_row(2, "copied")]


@IN_ONE_BATCH
def test_a_row_keeps_its_values_under_a_new_key(items: Batches, in_one_batch: bool) -> None:
    """F46, F47: delete under the old key, create under the new key with the unchanged columns."""
    numbers = range(1, 9)
    copied = [items.change("r", 10, number, after=_row(number, f"long {number}")) for number in numbers]
    moves = [
        change
        for number in numbers
        for change in (
            items.change("d", 20, 2 * number, before=_row(number, None)),
            items.change("c", 20, 2 * number + 1, after=_row(number + 100, None), unchanged=["name"]),
        )
    ]
    batches = [[*copied, *moves]] if in_one_batch else [copied, moves]
    assert _run(items, batches) == [_row(number + 100, f"long {number}") for number in numbers]


@IN_ONE_BATCH
def test_truncate_empties_all_buckets(items: Batches, in_one_batch: bool) -> None:
    """F51: the barrier comes once for each partition and counts once; the rows after it stay."""
    records = [items.change("r", 10, number, after=_row(number, "s")) for number in range(20)]
    records += [items.change("c", 20, 1, after=_row(50, "gone")), *[items.change("t", 20, 2)] * 3]
    records.append(items.change("c", 20, 3, after=_row(51, "stays")))
    assert _run(items, _split(records, in_one_batch=in_one_batch)) == [_row(51, "stays")]


@IN_ONE_BATCH
def test_a_column_that_was_dropped_and_added_again_begins_empty(items: Batches, in_one_batch: bool) -> None:
    """The new schema equals the former one, even in its id; only the one in between shows another column."""
    records = [items.change("r", 10, 1, after=_row(1, "old"))]
    items.alter([ID])
    records.append(items.change("c", 20, 1, after={"id": 2}))
    items.alter([ID, NAME])
    records.append(items.change("c", 30, 1, after=_row(3, "new")))
    found = _run(items, _split(records, in_one_batch=in_one_batch))
    assert found == [_row(1, None), _row(2, None), _row(3, "new")]


@pytest.fixture
def log(tmp_path: Path) -> Batches:
    """Return the mirror of a table without a key."""
    return Batches(tmp_path / "log", [NUMBER], has_key=False)


@IN_ONE_BATCH
def test_rows_without_a_key_are_found_when_postgresql_has_filled_a_column(
    log: Batches, in_one_batch: bool
) -> None:
    """ADD COLUMN ... DEFAULT, then RENAME: no row is sent, and the next change's old row has the new values."""
    records = [log.change("r", 10, n, after={"n": n}) for n in range(1, 5)]
    log.alter([NUMBER, STATE])
    records += [
        log.change("u", 20, 1, before={"n": 1, "state": "x"}, after={"n": 1, "state": "x"}),
        log.change("d", 20, 2, before={"n": 2, "state": "x"}),
        log.change("c", 20, 3, after={"n": 5, "state": None}),
    ]
    log.alter([NUMBER, STATUS])
    records += [
        log.change("u", 30, 1, before={"n": 1, "status": "x"}, after={"n": 1, "status": "y"}),
        log.change("d", 30, 2, before={"n": 3, "status": "x"}),
        log.change("d", 30, 3, before={"n": 5, "status": None}),
    ]
    found = _run(log, _split(records, in_one_batch=in_one_batch))
    assert found == [{"n": 1, "status": "y"}, {"n": 4, "status": None}]


@IN_ONE_BATCH
def test_a_row_without_a_key_that_is_nowhere_is_an_error(log: Batches, in_one_batch: bool) -> None:
    """Nothing of its batch is shown."""
    assert log.run([log.change("r", 10, 1, after={"n": 1})], loading=False) == [{"n": 1}]
    records = [log.change("c", 20, 1, after={"n": 2})]
    log.alter([NUMBER, STATE])
    records.append(log.change("d", 20, 2, before={"n": 3, "state": "x"}))
    with pytest.raises(MirrorInconsistent, match="the target does not have the row that a change removes"):
        _run(log, _split(records, in_one_batch=in_one_batch))
    assert log.rows() == [{"n": number} for number in ((1,) if in_one_batch else (1, 2))]
