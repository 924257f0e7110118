"""The reading pause: only at a high rate, longer at a higher one, and never while there is more."""

from __future__ import annotations

import pytest

from cdcd.source.pause import PAUSES_US, Pause

STEP_US = 1_000
(_, LONG_US), (_, SHORT_US) = PAUSES_US


def run(pause: Pause, messages: int, steps: int) -> tuple[int, int]:
    """Drain so many messages each millisecond; the last pause and the time."""
    answer = now_us = 0
    for _ in range(steps):
        now_us += STEP_US
        answer = pause.after_drain(messages, False, now_us)
    return answer, now_us


@pytest.mark.parametrize(
    ("messages_per_ms", "pause_us"),
    [(5, 0), (9, 0), (10, SHORT_US), (39, SHORT_US), (40, LONG_US), (200, LONG_US)],
)
def test_the_rate_decides_on_the_pause_and_a_trickle_is_never_held_up(
    messages_per_ms: int, pause_us: int
) -> None:
    assert run(Pause(0), messages_per_ms, 500)[0] == pause_us
    assert LONG_US > SHORT_US > 0


def test_a_drain_that_stopped_at_its_limit_is_followed_at_once_by_the_next() -> None:
    """A read's limit of 262,144 bytes is some 1,200 rows of usual size, and a pause brings more."""
    pause = Pause(0)
    _, now_us = run(pause, 200, 200)
    assert pause.after_drain(1_165, True, now_us + STEP_US) == 0
    assert pause.after_drain(100, False, now_us + 2 * STEP_US) == LONG_US


def test_after_an_idle_time_the_first_message_is_not_held_up() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 200)
    assert pause.after_drain(1, False, now_us + 1_000_000) == 0


def test_a_moment_without_messages_is_no_idleness() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 200)
    assert pause.after_drain(1, False, now_us + 30_000) == LONG_US


def test_the_pauses_themselves_do_not_end_the_pausing() -> None:
    """A burst as it comes with pauses: all in one drain every twenty milliseconds, and more at once behind it."""
    pause, now_us = Pause(0), 0
    run(pause, 200, 200)
    now_us = 200 * STEP_US
    for _ in range(50):
        now_us += LONG_US
        assert pause.after_drain(1_165, True, now_us) == 0
        now_us += 100
        assert pause.after_drain(835, False, now_us) == LONG_US


def test_what_comes_in_at_the_highest_rate_is_a_backlog() -> None:
    for messages, is_backlog in ((39, False), (40, True), (200, True)):
        pause = Pause(0)
        run(pause, messages, 500)
        assert pause.is_at_backlog_rate is is_backlog
