"""Counting the rows of a batch by relation and kind, without reading past its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from cdcd.errors import MessageTruncated
from cdcd.model import RowBatch
from cdcd.pgoutput import messages as m
from cdcd.txn.frames import count_operations, count_operations_in_python
from tests.support.pgoutput_encode import row_batch_of

Count = Callable[[RowBatch], Mapping[tuple[int, int], int]]

ROW = m.TupleData((m.text(b"x" * 300), m.NULL))
OLD = m.OldTuple(b"K", ROW)


BOTH = pytest.mark.parametrize("count", [count_operations, count_operations_in_python])


@BOTH
@pytest.mark.parametrize("xid", [None, 7])
def test_operations_are_counted_by_relation_and_kind(count: Count, xid: int | None) -> None:
    rows = [
        m.Insert(1, ROW, xid=xid),
        m.Insert(1, ROW, xid=xid),
        m.Update(2, None, ROW, xid=xid),
        m.Update(1, OLD, ROW, xid=xid),
        m.Delete(2, OLD, xid=xid),
    ]
    batch = row_batch_of([(50, row) for row in rows], xid=xid)
    assert count(batch) == {
        (1, ord("I")): 2,
        (2, ord("U")): 1,
        (1, ord("U")): 1,
        (2, ord("D")): 1,
    }


@BOTH
def test_an_empty_run_has_no_operations(count: Count) -> None:
    assert count(RowBatch(b"", 0)) == {}


@BOTH
@pytest.mark.parametrize("size", range(1, 17))
def test_a_run_that_ends_inside_a_header_is_an_error(count: Count, size: int) -> None:
    whole = row_batch_of([(50, m.Insert(1, ROW))])
    with pytest.raises(MessageTruncated):
        count(RowBatch(whole.frames[:size], 1))
