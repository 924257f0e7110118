"""Which COMMIT PREPARED without rows is a loss."""

from __future__ import annotations

import pytest

from cdcd.source.prepared import PreparedBefore

WROTE, GONE, LATER, WRAPPED = 90, 80, 100, 5


@pytest.mark.parametrize(
    ("xid", "own", "foreign"),
    [(WROTE, True, True), (GONE, False, True), (LATER, False, False)],
)
def test_a_loss_is_what_had_rows_before_the_position(xid: int, own: bool, foreign: bool) -> None:
    """F33: before cdcd's own position nothing undecided was confirmed; before a position of others maybe."""
    for is_own_position, expected in ((True, own), (False, foreign)):
        before = PreparedBefore(frozenset({WROTE}), 100, is_own_position)
        assert before.may_have_rows(xid) == expected


def test_xids_wrap_around() -> None:
    before = PreparedBefore(frozenset(), (1 << 32) - 10, is_own_position=False)
    assert not before.may_have_rows(WRAPPED)
    assert before.may_have_rows((1 << 32) - 20)
