"""The reading pause: only after small drains, only at a high rate, longer where messages are tiny."""

from __future__ import annotations

from cdcd.source.pause import LARGE_DRAIN_MESSAGES, PAUSE_US, TINY_PAUSE_US, Pause

STEP_US = 1_000
ROW_BYTES = 225


def run(pause: Pause, messages: int, steps: int, each_bytes: int = ROW_BYTES) -> tuple[int, int]:
    """Drain so many messages each millisecond; the last pause and the time."""
    answer = now_us = 0
    for _ in range(steps):
        now_us += STEP_US
        answer = pause.after_drain(messages, messages * each_bytes, False, now_us)
    return answer, now_us


def test_a_trickle_is_never_held_up() -> None:
    """5,000 messages a second: latency is what matters."""
    pause = Pause(0)
    assert run(pause, 5, 500)[0] == 0


def test_small_drains_at_a_high_rate_pause() -> None:
    assert run(Pause(0), 200, 50)[0] == PAUSE_US


def test_tiny_messages_need_longer_to_fill_the_socket() -> None:
    """Begin, one row and Commit: 46, 225 and 51 bytes."""
    assert run(Pause(0), 200, 50, each_bytes=(46 + 225 + 51) // 3)[0] == TINY_PAUSE_US
    assert TINY_PAUSE_US > PAUSE_US


def test_a_large_drain_is_followed_at_once_by_the_next() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 50)
    assert pause.after_drain(LARGE_DRAIN_MESSAGES, LARGE_DRAIN_MESSAGES * 50, False, now_us + STEP_US) == 0


def test_a_drain_that_stopped_at_its_limit_is_followed_at_once_by_the_next() -> None:
    """A read's limit of 262,144 bytes is 1,165 rows: fewer than a large drain has, and there are more."""
    pause = Pause(0)
    _, now_us = run(pause, 200, 50)
    assert pause.after_drain(1_165, 1_165 * ROW_BYTES, True, now_us + STEP_US) == 0
    assert pause.after_drain(100, 100 * ROW_BYTES, False, now_us + 2 * STEP_US) == PAUSE_US


def test_after_an_idle_time_the_first_message_is_not_held_up() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 50)
    assert pause.after_drain(1, ROW_BYTES, False, now_us + 1_000_000) == 0
