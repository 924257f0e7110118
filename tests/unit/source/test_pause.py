"""The reading pause: only at a high rate, within the server's buffer, and never while more data is available."""

from __future__ import annotations

import pytest

from cdcd.source.pause import BUSY_PAUSE_US, FILL_BYTES, LONGEST_US, Pause

STEP_US = 1_000
ROW_BYTES = 230
LONG_US = FILL_BYTES * 1_000_000 // (200 * 1_000 * ROW_BYTES)
"""The pause of a backlog of 200 rows a millisecond."""


def run(pause: Pause, messages: int, steps: int, message_bytes: int = ROW_BYTES) -> tuple[int, int]:
    """Drain `messages` each millisecond; return the last pause and the time."""
    answer = now_us = 0
    for _ in range(steps):
        now_us += STEP_US
        answer = pause.after_drain(messages, messages * message_bytes, False, now_us)
    return answer, now_us


@pytest.mark.parametrize(
    ("messages_per_ms", "pause_us"),
    [(5, 0), (9, 0), (10, BUSY_PAUSE_US), (39, BUSY_PAUSE_US), (40, LONGEST_US), (200, LONG_US)],
)
def test_the_rate_determines_the_pause_and_a_trickle_is_never_delayed(
    messages_per_ms: int, pause_us: int
) -> None:
    assert run(Pause(0), messages_per_ms, 500)[0] == pause_us
    assert LONGEST_US > LONG_US > BUSY_PAUSE_US > 0


@pytest.mark.parametrize(("messages", "message_bytes"), [(1_000, 60), (300, 230), (150, 1_000), (50, 10_000)])
def test_a_backlogs_pause_lasts_as_the_server_has_room_whatever_its_messages_are(
    messages: int, message_bytes: int
) -> None:
    """The server buffers 4 MiB and the reader's socket some more; a reader may be late by twice its pause."""
    pause_us, _ = run(Pause(0), messages, 500, message_bytes)
    came = pause_us * messages * message_bytes // STEP_US
    assert FILL_BYTES // 2 < came <= FILL_BYTES < (4 << 20) // 4


def test_a_drain_that_stopped_at_its_limit_is_followed_at_once_by_the_next() -> None:
    """The limit of a read, 262,144 bytes, is about 1,200 rows of usual size; more arrive during a pause."""
    pause = Pause(0)
    _, now_us = run(pause, 200, 200)
    assert pause.after_drain(1_140, 262_200, True, now_us + STEP_US) == 0
    assert pause.after_drain(100, 23_000, False, now_us + 2 * STEP_US) == LONG_US


def test_after_an_idle_time_the_first_message_is_not_delayed() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 200)
    assert pause.after_drain(1, ROW_BYTES, False, now_us + 1_000_000) == 0


def test_a_moment_without_messages_is_no_idleness() -> None:
    pause = Pause(0)
    _, now_us = run(pause, 200, 200)
    assert pause.after_drain(1, ROW_BYTES, False, now_us + 30_000) == LONG_US


def test_the_pauses_themselves_do_not_end_the_pausing() -> None:
    """A burst as read with pauses: two drains in quick succession every few milliseconds."""
    pause = Pause(0)
    answer, now_us = run(pause, 200, 200)
    for _ in range(50):
        rows = 200 * (answer + 100) // STEP_US
        assert rows > 1_140
        now_us += answer
        assert pause.after_drain(1_140, 262_200, True, now_us) == 0
        answer = pause.after_drain(rows - 1_140, (rows - 1_140) * ROW_BYTES, False, now_us + 100)
        assert answer == pytest.approx(LONG_US, rel=0.1)
        now_us += 100


def test_data_at_the_highest_rate_is_a_backlog() -> None:
    for messages, is_backlog in ((39, False), (40, True), (200, True)):
        pause = Pause(0)
        run(pause, messages, 500)
        assert pause.is_at_backlog_rate is is_backlog
