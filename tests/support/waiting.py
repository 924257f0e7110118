"""Wait for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.03, 0.4
PART_OF_WAIT = 1 / 8
"""A wait is at most an eighth too long. Most conditions query a daemon or a server; while tests run at
the same time, frequent queries slow all of them."""


def next_pause(begun_s: float, first_s: float = FIRST_PAUSE_S) -> float:
    """Return the pause in a wait that began at `begun_s` (monotonic): an eighth of its time, within the limits."""
    return min(LONGEST_PAUSE_S, max(first_s, (time.monotonic() - begun_s) * PART_OF_WAIT))


def eventually(
    condition: Callable[[], T], what: str, deadline_s: float = 120, pause_s: float | None = None
) -> T:
    """Return the first true result of `condition`; at the deadline fail the test and name the condition.

    `pause_s`: a constant pause, for a state that may end soon; otherwise the pauses grow.
    """
    begun_s = time.monotonic()
    while not (answer := condition()):
        if time.monotonic() > begun_s + deadline_s:
            raise AssertionError(f"waited {deadline_s:g} s for {what}; the last answer was {answer!r}")
        time.sleep(pause_s or next_pause(begun_s))
    return answer
