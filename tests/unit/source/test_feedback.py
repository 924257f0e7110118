"""Positions and timing of status updates."""

from __future__ import annotations

from cdcd.source.feedback import Feedback, Positions


def test_only_confirm_moves_flush_and_apply() -> None:
    """F71: a received position is not durable."""
    feedback = Feedback(1_000_000, start_lsn=100)
    feedback.received(5_000)
    assert feedback.positions() == Positions(5_000, 100, 100)
    feedback.advance_flush_lsn(300)
    assert feedback.positions() == Positions(5_000, 300, 300)


def test_confirm_never_moves_back() -> None:
    """F7."""
    feedback = Feedback(1_000_000)
    assert feedback.advance_flush_lsn(300)
    assert not feedback.advance_flush_lsn(200)
    assert not feedback.advance_flush_lsn(300)
    assert feedback.positions() == Positions(300, 300, 300)


def test_a_relation_message_at_lsn_zero_does_not_move_the_received_position_back() -> None:
    """F5: a Relation message has the LSN 0/0."""
    feedback = Feedback(1_000_000)
    feedback.received(500)
    feedback.received(0)
    assert feedback.positions().write_lsn == 500


def test_an_update_is_due_at_first_then_after_the_interval_then_when_asked_for() -> None:
    """F14."""
    feedback = Feedback(1_000)
    assert feedback.is_due(0)
    feedback.sent(0)
    assert not feedback.is_due(999)
    assert feedback.wait_us(400) == 600
    assert feedback.is_due(1_000)
    feedback.sent(1_000)
    feedback.hurry()
    assert feedback.is_due(1_001)
    feedback.sent(1_001)
    assert not feedback.is_due(1_002)
