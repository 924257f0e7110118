"""Which COMMIT PREPARED without rows is a loss."""

from __future__ import annotations

import pytest

from cdcd.source.prepared import PreparedBefore

EARLIER, LATER, UNDECIDED = 80, 100, 101


@pytest.mark.parametrize(
    ("xid", "own", "foreign"), [(EARLIER, False, True), (LATER, False, False), (UNDECIDED, False, True)]
)
def test_a_loss_is_what_had_rows_before_the_position(xid: int, own: bool, foreign: bool) -> None:
    """F33: before cdcd's own position nothing undecided was confirmed; before a position of others maybe."""
    for is_own_position, expected in ((True, own), (False, foreign)):
        assert PreparedBefore(100, frozenset({UNDECIDED}), is_own_position).may_have_rows(xid) == expected


def test_what_is_undecided_at_a_position_of_others_is_told() -> None:
    assert PreparedBefore(100, frozenset({1, 2}), is_own_position=False).may_be_lost == 2
    assert PreparedBefore(100, frozenset({1, 2}), is_own_position=True).may_be_lost == 0


def test_xids_wrap_around() -> None:
    before = PreparedBefore((1 << 32) - 10, frozenset(), is_own_position=False)
    assert not before.may_have_rows(5)
    assert before.may_have_rows((1 << 32) - 20)
