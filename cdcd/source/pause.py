"""Decide when the reader pauses to let the socket fill up. Pure: times are arguments.

In: the size of each drain, the clock in microseconds.  Out: the length of the pause.
Why: a walsender makes one send() per message. While the receive window is open, each call sends a packet, which wakes
a waiting reader; when the window is full, the call only copies to a buffer. A pause saves the server's time only if
it lasts well beyond the moment at which the window is full; a shorter one saves the reader's time. A pause until the
server's own buffer is full (4 MiB on Linux) stops the server.
Invariant: there is no pause while more data is available, nor at low rates, where latency matters.
"""

from __future__ import annotations

BACKLOG_MESSAGES_PER_S = 40_000
"""From this rate on throughput matters more than latency."""
FILL_BYTES = 500_000
"""The data sent during a pause of a backlog: more than a receive window, and less than the server's own buffer, even
if the reader is scheduled late."""
LONGEST_US = 20_000

BUSY_MESSAGES_PER_S = 10_000
BUSY_PAUSE_US = 2_000

_WINDOW_US = 100_000
"""Long enough that a moment in which the walsender is not scheduled does not count as idle."""


class Pause:
    """The pause policy of one stream. `is_at_backlog_rate`: at the current rate throughput matters, not latency."""

    def __init__(self, now_us: int) -> None:
        self._window_start_us = now_us
        self._window_messages = 0
        self._window_bytes = 0
        self._pause_us = 0
        self.is_at_backlog_rate = False

    def after_drain(self, messages: int, size_bytes: int, is_more: bool, now_us: int) -> int:
        """Return the microseconds to pause after a drain of this size.

        `is_more`: the drain stopped at its limit.
        """
        self._window_messages += messages
        self._window_bytes += size_bytes
        elapsed_us = now_us - self._window_start_us
        if elapsed_us >= _WINDOW_US:
            messages_per_s = self._window_messages * 1_000_000 // elapsed_us
            self.is_at_backlog_rate = messages_per_s >= BACKLOG_MESSAGES_PER_S
            self._pause_us = _pause_at(messages_per_s, self._window_bytes * 1_000_000 // elapsed_us)
            self._window_start_us = now_us
            self._window_messages = self._window_bytes = 0
        return 0 if is_more else self._pause_us


def _pause_at(messages_per_s: int, bytes_per_s: int) -> int:
    if messages_per_s >= BACKLOG_MESSAGES_PER_S:
        return min(FILL_BYTES * 1_000_000 // bytes_per_s, LONGEST_US)
    return BUSY_PAUSE_US if messages_per_s >= BUSY_MESSAGES_PER_S else 0
