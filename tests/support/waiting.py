"""Wait for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.03, 0.1
"""Most conditions query a daemon or a server; while tests run at the same time, frequent queries slow all of them."""


def eventually(
    condition: Callable[[], T], what: str, deadline_s: float = 120, pause_s: float | None = None
) -> T:
    """Return the first true result of `condition`; at the deadline fail the test and name the condition.

    `pause_s`: a constant pause, for a state that may end soon; otherwise the pauses grow.
    """
    deadline = time.monotonic() + deadline_s
    next_pause_s = pause_s or FIRST_PAUSE_S
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {deadline_s:g} s for {what}; the last answer was {answer!r}")
        time.sleep(next_pause_s)
        if pause_s is None:
            next_pause_s = min(LONGEST_PAUSE_S, next_pause_s * 1.25)
    return answer
