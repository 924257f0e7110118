"""The position to confirm only advances, and not past an undecided PREPARE; a replay is still recognized."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.ack.group import CommitPosition
from cdcd.ack.position_tracker import PositionTracker
from cdcd.model import PartPosition, PreparedBefore

NOTHING_BEFORE = PreparedBefore()


def position(tracker: PositionTracker, prepared_lsn: int | None = None) -> CommitPosition:
    return tracker.position(
        transactions=1, prepared_lsn=prepared_lsn, prepared_before=NOTHING_BEFORE, part=None
    )


def test_a_session_begins_at_what_is_durable() -> None:
    assert position(PositionTracker(108, 100, 7)) == CommitPosition(100, 108, 7, 1, covered_lsn=108)


@pytest.mark.parametrize(("commit_lsn", "is_covered"), [(99, True), (100, True), (101, False)])
def test_what_commits_up_to_the_written_position_is_a_replay(commit_lsn: int, is_covered: bool) -> None:
    """F4"""
    assert PositionTracker(108, 100).covers(commit_lsn) is is_covered


def test_a_commit_moves_all_of_the_position() -> None:
    tracker = PositionTracker(0)
    tracker.committed(200, 208, 5)
    assert position(tracker) == CommitPosition(200, 208, 5, 1, covered_lsn=208)


def test_a_message_is_its_own_commit_one_byte_before_its_end() -> None:
    """F1: the next commit may begin where it ends."""
    tracker = PositionTracker(0)
    tracker.message(300)
    assert (position(tracker).commit_lsn, position(tracker).end_lsn) == (299, 300)
    assert not tracker.covers(300)


def test_an_idle_stream_moves_what_is_confirmed_and_not_the_commit() -> None:
    """F11"""
    tracker = PositionTracker(108, 100)
    tracker.idle(500)
    assert (position(tracker).commit_lsn, position(tracker).end_lsn) == (100, 500)


def test_a_keepalive_from_before_the_start_moves_nothing() -> None:
    tracker = PositionTracker(108, 100)
    tracker.idle(90)
    assert position(tracker).end_lsn == 108


def test_an_undecided_prepare_holds_back_only_the_confirmed_position() -> None:
    """F33"""
    tracker = PositionTracker(0)
    tracker.committed(200, 208, 5)
    held = position(tracker, prepared_lsn=150)
    assert (held.commit_lsn, held.end_lsn, held.covered_lsn) == (200, 150, 208)
    assert position(tracker).end_lsn == 208, "without an undecided PREPARE"


def test_a_prepare_from_before_two_phase_does_not_move_it_back() -> None:
    """F34"""
    tracker = PositionTracker(108, 100)
    assert position(tracker, prepared_lsn=50).end_lsn == 108


def test_what_was_prepared_before_the_slot_is_forgotten_beyond_its_end() -> None:
    tracker = PositionTracker(0)
    before = PreparedBefore(until_lsn=300, undecided=frozenset({(7, "gid")}))
    tracker.committed(200, 208, 5)
    made = tracker.position(
        transactions=1, prepared_lsn=None, prepared_before=before, part=PartPosition(400, 2)
    )
    assert (made.prepared_before, made.part) == (before, PartPosition(400, 2))
    tracker.committed(300, 308, 6)
    made = tracker.position(transactions=1, prepared_lsn=None, prepared_before=before, part=None)
    assert made.prepared_before == PreparedBefore(0, before.undecided)


LSN = st.integers(1, 1000)
STEP = st.tuples(st.sampled_from(["idle", "message"]), LSN, st.none() | LSN)


@given(LSN, st.lists(STEP))
def test_what_may_be_confirmed_never_goes_back(
    start_lsn: int, steps: list[tuple[str, int, int | None]]
) -> None:
    tracker = PositionTracker(start_lsn)
    seen = [position(tracker).end_lsn]
    for what, lsn, prepared_lsn in steps:
        getattr(tracker, what)(lsn)
        seen.append(position(tracker, prepared_lsn).end_lsn)
    assert seen == sorted(seen)
    assert seen[-1] <= tracker.end_lsn
