"""When the reader should let the socket fill up for a moment. Pure: time is given in.

In: what each drain brought, the clock in microseconds.  Out: for how long not to read.
Why: a walsender makes one send() per message. Each goes all the way to the reader while the receive window is open,
and wakes an eager one; when the window is full, it is a copy to the end of a buffer. A pause saves the server's time
only if it lasts well beyond the moment at which the window is full; a shorter one saves the reader's.
Invariant: never a pause while there is more, nor below a rate of arrivals, where latency is what matters.
"""

from __future__ import annotations

PAUSES_US = ((40_000, 20_000), (10_000, 2_000))
"""From so many messages a second on: the pause, counted from the end of the drain, work on it included."""

_WINDOW_US = 100_000
"""Long enough that one moment in which the walsender got no processor is no idleness."""


class Pause:
    """The pause policy of one stream."""

    def __init__(self, now_us: int) -> None:
        self._window_start_us = now_us
        self._window_messages = 0
        self._pause_us = 0

    def after_drain(self, messages: int, is_more: bool, now_us: int) -> int:
        """Return for how many microseconds to leave the socket alone after a drain of so many messages.

        `is_more`: it stopped at its limit.
        """
        self._window_messages += messages
        elapsed_us = now_us - self._window_start_us
        if elapsed_us >= _WINDOW_US:
            self._pause_us = _pause_at(self._window_messages * 1_000_000 // elapsed_us)
            self._window_start_us = now_us
            self._window_messages = 0
        return 0 if is_more else self._pause_us

    @property
    def is_at_backlog_rate(self) -> bool:
        """Whether so much comes in that latency is not what matters."""
        return self._pause_us == PAUSES_US[0][1]


def _pause_at(messages_per_s: int) -> int:
    return next((pause_us for from_rate, pause_us in PAUSES_US if messages_per_s >= from_rate), 0)
