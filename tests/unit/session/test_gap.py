"""The state of copies after the markers of a gap: copied rows with the same commit LSN continue their numbers."""

from __future__ import annotations

import pytest

from cdcd.model import CopyState, TableCopyState
from cdcd.pipeline.table_copies import TableCopies
from cdcd.session.gap import after_markers

TABLES = {7: TableCopyState("t")}


@pytest.mark.parametrize("before", [None, CopyState(point_lsn=90, tx_seq=5, tables=TABLES)])
def test_rows_that_are_copied_at_the_markers_place_follow_them(before: CopyState | None) -> None:
    state = after_markers(before, 99, 3)
    assert state is not None
    assert state.tables == ({} if before is None else TABLES)
    assert TableCopies(state).next_position(100) == (99, 3)
    assert TableCopies(state).next_position(101) == (100, 0)


@pytest.mark.parametrize(
    "before", [CopyState((7,), point_lsn=50, tx_seq=4), CopyState(point_lsn=200, tx_seq=4, tables=TABLES)]
)
def test_a_snapshot_and_rows_behind_the_markers_remain(before: CopyState) -> None:
    assert after_markers(before, 99, 3) is before
