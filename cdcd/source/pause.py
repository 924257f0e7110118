"""When the reader should let the socket fill up for a moment. Pure: time is given in.

In: how many messages each drain brought, the clock in microseconds.  Out: for how long not to read.
Why: a walsender makes one send() per message and wakes an eager reader at each; small drains at a high rate
cost it three times the system time (design lesson: 196,000 against 310,000 rows/s).
Invariant: never a pause after a large drain, nor below a rate of arrivals, where latency is what matters.
"""

from __future__ import annotations

PAUSE_US = 2_000
LARGE_DRAIN_MESSAGES = 2_000
HIGH_RATE_PER_S = 20_000
_WINDOW_US = 20_000


class Pause:
    """The pause policy of one stream."""

    def __init__(self, now_us: int) -> None:
        self._window_start_us = now_us
        self._window_messages = 0
        self._is_busy = False

    def after_drain(self, messages: int, now_us: int) -> int:
        """Return for how many microseconds to leave the socket alone after a drain of so many messages."""
        self._window_messages += messages
        elapsed_us = now_us - self._window_start_us
        if elapsed_us >= _WINDOW_US:
            self._is_busy = self._window_messages * 1_000_000 >= HIGH_RATE_PER_S * elapsed_us
            self._window_start_us = now_us
            self._window_messages = 0
        return PAUSE_US if self._is_busy and messages < LARGE_DRAIN_MESSAGES else 0
