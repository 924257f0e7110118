"""Wait for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], what: str, deadline_s: float = 120, pause_s: float = 0.05) -> T:
    """Return the first true result of `condition`; at the deadline fail the test and name the condition."""
    give_up = time.monotonic() + deadline_s
    while not (answer := condition()):
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {deadline_s:g} s for {what}; the last answer was {answer!r}")
        time.sleep(pause_s)
    return answer
