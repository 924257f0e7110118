"""The order in which a mirror folds changes: a later timeline wins over an earlier one, whatever their LSNs (F58)."""

from __future__ import annotations

import pytest

from cdcd.spark.decoding.events import BEGINNING, STREAM, Event, Sequence, sequence_of
from cdcd.spark.tables.fold import fold_keyed, order_events
from cdcd.spark.target.shape import Field, TableShape, arrow_schema, as_complete

SHAPE = TableShape("t", keyed=True, fields=(Field(1, "id", "id", "int"),))


def _event(timeline: int, commit_lsn: int, number: int, op: str = "u") -> Event:
    sequence = Sequence(timeline, commit_lsn, STREAM, 1)
    return Event(sequence, op, b"k", None, None if op == "d" else {"id": number}, (), {}, 1)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([_event(1, 90, 1), _event(2, 10, 2)], [2]),
        ([_event(2, 10, 2), _event(1, 90, 1)], [2]),
        ([_event(2, 10, 2), _event(1, 90, 1), _event(2, 10, 2)], [2]),
        ([_event(2, 10, 2), _event(2, 11, 3), _event(1, 90, 1)], [3]),
        ([_event(2, 10, 2, "d"), _event(1, 90, 1)], []),
        ([_event(1, 10, 1), _event(2, 10, 2)], [2]),  # one LSN, two transactions
        ([_event(0, 90, 1), _event(1, 10, 2)], [2]),  # written before records had a timeline
    ],
)
def test_a_low_lsn_of_a_later_timeline_wins(events: list[Event], expected: list[int]) -> None:
    nothing = as_complete(arrow_schema(SHAPE.fields).empty_table())
    rows, _ = fold_keyed(order_events(events, SHAPE), SHAPE, nothing, whole=True)
    assert rows.column("id").to_pylist() == expected


def test_a_record_without_a_timeline_comes_before_all_that_have_one() -> None:
    source = {"snapshot": "false", "commit_lsn": 90, "tx_seq": 1}
    assert BEGINNING < sequence_of("c", source) < sequence_of("c", {**source, "timeline": 1, "commit_lsn": 1})
