"""When a COMMIT PREPARED without rows is a loss, and how long this is stored; the timeline of a commit."""

from __future__ import annotations

import pytest

from cdcd.model import PreparedBefore, Timelines, began_at

BEFORE = PreparedBefore(500, frozenset({(7, "a"), (8, "b")}))


@pytest.mark.parametrize(
    ("xid", "gid", "commit_lsn", "expected"),
    [
        (7, "a", 9000, True),  # undecided when cdcd first used the slot
        (9, "c", 500, False),  # prepared later, so it is sent completely, or is empty
        (9, "c", 499, True),  # decided before that
        (7, "b", 9000, False),  # another transaction, after an xid wraparound
        (8, "a", 9000, False),
    ],
)
def test_a_loss_is_what_was_prepared_before_somebody_elses_position(
    xid: int, gid: str, commit_lsn: int, expected: bool
) -> None:
    """F33."""
    assert BEFORE.may_have_rows(xid, gid, commit_lsn) == expected


def test_without_a_foreign_position_nothing_is_a_loss() -> None:
    assert not PreparedBefore().may_have_rows(7, "a", 0)


def test_what_is_decided_is_forgotten() -> None:
    assert BEFORE.without(7, "a") == PreparedBefore(500, frozenset({(8, "b")}))
    assert BEFORE.without(7, "b") == BEFORE


def test_earlier_decisions_are_known_until_they_are_passed() -> None:
    assert BEFORE.left_at(499) == BEFORE
    assert BEFORE.left_at(500) == PreparedBefore(0, BEFORE.undecided)


@pytest.mark.parametrize(("lsn", "expected"), [(0, 1), (499, 1), (500, 3), (699, 3), (700, 4), (2**63, 4)])
def test_a_commit_keeps_its_timeline_whichever_server_sends_it(lsn: int, expected: int) -> None:
    """F58: the WAL of a timeline up to its switch point belongs to all timelines that descend from it."""
    assert Timelines(4, {1: 500, 3: 700}).at(lsn) == expected
    assert Timelines(4, {3: 700, 1: 500}).at(lsn) == expected
    assert Timelines(4, {}).at(lsn) == 4, "without a history the current timeline counts"
    assert Timelines(1, {}).at(lsn) == 1


def test_a_timeline_began_where_the_one_before_it_was_left() -> None:
    assert Timelines(4, {1: 500, 3: 700}).now_lsn == 700
    assert Timelines(4, {3: 700, 1: 500}).now_lsn == 700
    assert began_at(3, {1: 500, 3: 700}) == 500
    assert (Timelines(1, {}).now_lsn, began_at(4, {}), began_at(1, {1: 500})) == (0, 0, 0)
