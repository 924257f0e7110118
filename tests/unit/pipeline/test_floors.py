"""The changes that are dropped because a later copy of their table contains them."""

from __future__ import annotations

import pytest

from cdcd.model import CopyState, RowBatch
from cdcd.pgoutput import messages as m
from cdcd.pipeline.floors import Floors, without
from tests.support.pgoutput_encode import row_batch_of
from tests.support.source import row_payloads

COPY = CopyState(pending=(), floors={1: 500, 2: 600}, point_lsn=600)


def batch_of(relids: list[int], xid: int | None = None) -> RowBatch:
    """Return a batch of one row for each of these relids, with different lengths."""
    rows = [
        (50, m.Insert(relid, m.TupleData((m.text(b"x" * at),)), xid=xid)) for at, relid in enumerate(relids)
    ]
    return row_batch_of(rows, xid=xid)


@pytest.mark.parametrize(
    ("commit_lsn", "dropped"),
    [(0, {1, 2}), (499, {1, 2}), (500, {2}), (599, {2}), (600, set()), (900, set())],
)
def test_a_change_below_its_tables_floor_is_dropped(commit_lsn: int, dropped: set[int]) -> None:
    floors = Floors(COPY)
    assert floors.dropped([1, 2, 3], commit_lsn) == dropped
    assert floors.concern(commit_lsn) is bool(dropped)


def test_without_floors_nothing_is_dropped() -> None:
    assert not Floors().concern(0)


@pytest.mark.parametrize("xid", [None, 7])
def test_the_other_rows_of_a_batch_stay_in_their_order(xid: int | None) -> None:
    relids = [1, 3, 1, 2, 3, 2, 2]
    batch = batch_of(relids, xid)
    rest = without(batch, {1, 2})
    assert rest is not None
    assert (rest.count, rest.xid) == (2, xid)
    payloads = row_payloads([batch])
    assert row_payloads([rest]) == [payloads[1], payloads[4]]
    assert without(batch, set()) == batch
    assert without(batch, {1, 2, 3}) is None
