"""When the reader should let the socket fill up for a moment. Pure: time is given in.

In: what each drain brought, the clock in microseconds.  Out: for how long not to read.
Why: a walsender makes one send() per message. Each goes all the way to the reader while the receive window is open,
and wakes an eager one; when the window is full, it is a copy to the end of a buffer. A pause saves the server's time
only if it lasts well beyond the moment at which the window is full; a shorter one saves the reader's. One that lasts
until the server's own buffer is full (4 MiB on Linux) makes it stand still.
Invariant: never a pause while there is more, nor below a rate of arrivals, where latency is what matters.
"""

from __future__ import annotations

BACKLOG_MESSAGES_PER_S = 40_000
"""From here on latency is not what matters."""
FILL_BYTES = 500_000
"""What comes in during a pause of a backlog: more than a receive window, and less than the server's own buffer, even
where the reader gets a processor late."""
LONGEST_US = 20_000

BUSY_MESSAGES_PER_S = 10_000
BUSY_PAUSE_US = 2_000

_WINDOW_US = 100_000
"""Long enough that one moment in which the walsender got no processor is no idleness."""


class Pause:
    """The pause policy of one stream. `is_at_backlog_rate`: so much comes in that latency is not what matters."""

    def __init__(self, now_us: int) -> None:
        self._window_start_us = now_us
        self._window_messages = 0
        self._window_bytes = 0
        self._pause_us = 0
        self.is_at_backlog_rate = False

    def after_drain(self, messages: int, size_bytes: int, is_more: bool, now_us: int) -> int:
        """Return for how many microseconds to leave the socket alone after a drain of so much.

        `is_more`: it stopped at its limit.
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
