"""When the reader should let the socket fill up for a moment. Pure: time is given in.

In: what each drain brought, the clock in microseconds.  Out: for how long not to read.
Why: a walsender makes one send() per message and wakes an eager reader at each; small drains at a high rate
cost it three times the system time (design lesson: 196,000 against 310,000 rows/s). The smaller the messages, the
longer the socket takes to fill.
Invariant: never a pause while there is more or after a large drain, nor below a rate of arrivals, where latency is
what matters.
"""

from __future__ import annotations

PAUSE_US = 2_000
TINY_PAUSE_US = 5_000
TINY_BYTES = 128
"""On average: Begin and Commit take 46 and 51 bytes, so that of one-row transactions most messages are tiny."""
LARGE_DRAIN_MESSAGES = 2_000
HIGH_RATE_PER_S = 20_000
_WINDOW_US = 20_000


class Pause:
    """The pause policy of one stream."""

    def __init__(self, now_us: int) -> None:
        self._window_start_us = now_us
        self._window_messages = 0
        self._is_busy = False

    def after_drain(self, messages: int, size_bytes: int, is_more: bool, now_us: int) -> int:
        """Return for how many microseconds to leave the socket alone after a drain of so many messages.

        `is_more`: it stopped at its limit.
        """
        self._note_rate(messages, now_us)
        if not self._is_busy or is_more or messages >= LARGE_DRAIN_MESSAGES:
            return 0
        return TINY_PAUSE_US if size_bytes < TINY_BYTES * messages else PAUSE_US

    def _note_rate(self, messages: int, now_us: int) -> None:
        self._window_messages += messages
        elapsed_us = now_us - self._window_start_us
        if elapsed_us >= _WINDOW_US:
            self._is_busy = self._window_messages * 1_000_000 >= HIGH_RATE_PER_S * elapsed_us
            self._window_start_us = now_us
            self._window_messages = 0
