"""The reading pause: only after small drains, only at a high rate."""

from __future__ import annotations

from cdcd.source.pause import PAUSE_US, Pause

STEP_US = 1_000


def run(pause: Pause, messages: int, steps: int, now_us: int = 0) -> tuple[int, int]:
    """Drain so many messages each millisecond; the last pause and the time."""
    answer = 0
    for _ in range(steps):
        now_us += STEP_US
        answer = pause.after_drain(messages, now_us)
    return answer, now_us


def test_a_trickle_is_never_held_up() -> None:
    """5,000 messages a second: latency is what matters."""
    pause = Pause(0)
    assert run(pause, 5, 500)[0] == 0


def test_small_drains_at_a_high_rate_pause() -> None:
    assert run(Pause(0), 200, 50)[0] == PAUSE_US


def test_a_large_drain_is_followed_at_once_by_the_next() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 50)
    assert pause.after_drain(2_000, now_us + STEP_US) == 0


def test_after_an_idle_time_the_first_message_is_not_held_up() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 50)
    assert pause.after_drain(1, now_us + 1_000_000) == 0
