"""The state of copies after the markers of a gap: copied rows with the same commit LSN continue their numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.model import CopyState, Gap, TableCopyState
from cdcd.pipeline.table_copies import TableCopies
from cdcd.session.gap import after_markers, gap_of_table

ACCEPTED, ANEW = Gap(500, 600, "CDCD-SLOT-LOST", 3), Gap(500, None, "CDCD-SLOT-LOST", 3)
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


@pytest.mark.parametrize(
    ("gap", "wal_lsn", "is_copied", "to_lsn"),
    [
        (ACCEPTED, 900, False, 600),
        (ANEW, 900, True, None),  # a truncate event and all rows follow
        (ANEW, 900, False, 900),
        (
            ANEW,
            500,
            False,
            501,
        ),  # not after the start, it would mean that the last changes never happened (F58)
        (ANEW, 400, False, 501),  # a standby that was promoted earlier
    ],
)
def test_only_a_table_that_is_copied_has_a_gap_without_an_end(
    gap: Gap, wal_lsn: int, is_copied: bool, to_lsn: int | None
) -> None:
    assert gap_of_table(gap, wal_lsn, is_copied=is_copied) == replace(gap, to_lsn=to_lsn)
