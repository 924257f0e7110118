"""How far behind cdcd is in time, worked out when it is asked for. Pure but for the two clocks that it is given.

In: where the server's WAL ended and when, by looks at the server; what was received and what is durable, per batch.
Out: the lag, or None while nothing is known.
Invariant: never less than the age of the oldest commit that is not durable in Kafka, whether it was received or not.
A commit counts from when it is in the server's WAL for good. What is not known grows: it counts from the last time up
to which everything is known to have been received.
Must not: cost anything per row, ask a server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cdcd.clock import monotonic_us
from cdcd.lsn import INVALID_LSN, Lsn

FRESH_US = 500_000
"""A look this young speaks for now: what it found received is a lag of 0."""
MAX_LOOKS = 64
"""Of looks whose WAL end was not received yet. With fewer of them the lag falls in larger steps, never too early."""


@dataclass(frozen=True, slots=True)
class ServerTimeline:
    """What an LSN belongs to: a server, and one of its timelines."""

    system_identifier: str
    timeline: int


@dataclass(frozen=True, slots=True)
class WalEnd:
    """What one look at the server said: by its clock (Unix epoch) its WAL ended there, or farther.

    `asked_us`, `answered_us`: cdcd's monotonic clock before and after. `received_lsn`: what had been received before.
    """

    of: ServerTimeline
    lsn: Lsn
    clock_us: int
    asked_us: int
    answered_us: int
    received_lsn: Lsn = INVALID_LSN


def _wall_us() -> int:
    return time.time_ns() // 1_000


class LagTracker:
    """One for the process. All times but `asked_us` are the server's clock, so that cdcd's own may differ."""

    def __init__(
        self, clock_us: Callable[[], int] = monotonic_us, wall_us: Callable[[], int] = _wall_us
    ) -> None:
        self._clock_us = clock_us
        self._wall_us = wall_us
        self._of: ServerTimeline | None = None
        self._last_look: WalEnd | None = None
        self._ahead_us: int | None = None
        """By how much the server's clock is ahead of cdcd's monotonic one, at most."""
        self._looks: deque[tuple[Lsn, int]] = deque()
        """Rising WAL ends that were not received at their look, with the server's time of it."""
        self._complete_us: int | None = None
        """All that was committed before is durable, or received in this session."""
        self._is_complete_by_wall = False
        """Whether that was taken from cdcd's own clock, before a look at the server's."""
        self._last_us: int | None = None
        self._oldest_us: int | None = None
        self._open_us: int | None = None
        self._ended_lsn: Lsn = INVALID_LSN
        self._durable_lsn: Lsn = INVALID_LSN
        self.received_lsn: Lsn = INVALID_LSN
        """Everything committed before is durable, or received in this session."""

    # --- what the server says ---

    def looked(self, end: WalEnd) -> None:
        """Take note of where the server's WAL ended. Another server's says nothing of this one's commits (F59)."""
        if self._of is not None and end.of != self._of:
            return
        if end.lsn < end.received_lsn:
            return  # a copy of the server, of the same timeline: the WAL that was received goes farther
        self._last_look = end
        self._set_clock(end)
        if self._looks and end.lsn < self._looks[-1][0]:
            self._looks.clear()
        if self._looks and end.lsn == self._looks[-1][0]:
            self._looks.pop()
        self._looks.append((end.lsn, end.clock_us))
        if len(self._looks) > MAX_LOOKS:
            del self._looks[MAX_LOOKS // 2]
        self._settle()

    @property
    def has_reached_the_last_look(self) -> bool:
        """Whether everything that was in the server's WAL at the last look has been received."""
        self._settle()
        return not self._looks

    def now_us(self) -> int:
        """Return the server's time now; without a look at it cdcd's own."""
        return self._wall_us() if self._ahead_us is None else self._clock_us() + self._ahead_us

    def _set_clock(self, end: WalEnd) -> None:
        """Take the server's clock from a look. What a slow answer leaves open is decided by the quick ones before.

        If the server's clock was set meanwhile, all times that are remembered are by the clock before: they move too.
        """
        least_us, most_us = end.clock_us - end.answered_us, end.clock_us - end.asked_us
        if self._ahead_us is None:
            by_us = most_us + self._clock_us() - self._wall_us()
            if self._complete_us is not None and self._is_complete_by_wall:
                self._complete_us += by_us
            self._ahead_us = most_us
        elif not least_us <= self._ahead_us <= most_us:
            by_us = most_us - self._ahead_us
            self._looks = deque((lsn, at_us + by_us) for lsn, at_us in self._looks)
            for name in ("_complete_us", "_last_us", "_oldest_us", "_open_us"):
                at_us = getattr(self, name)
                setattr(self, name, None if at_us is None else at_us + by_us)
            self._ahead_us = most_us

    # --- where a position begins ---

    def recorded(self, of: ServerTimeline, end_lsn: Lsn, commit_us: int) -> None:
        """All up to `end_lsn` is durable by the progress record, and its last transaction committed then."""
        if self._of is None:
            self._of = of
            self.received_lsn = max(self.received_lsn, end_lsn)
        self._complete_until_commit(commit_us)

    def copies(self) -> None:
        """A snapshot begins: what commits before this is in the copy, what commits later is not received yet.

        What was behind before is behind until it is copied.
        """
        since_us, now_us = self._behind_since_us, self.now_us()
        self._forget()
        self._of, self.received_lsn = None, INVALID_LSN
        self._looks.clear()
        self._complete_us = now_us if since_us is None else min(since_us, now_us)
        self._is_complete_by_wall = self._ahead_us is None and self._complete_us == now_us

    def copied_before(self, commit_us: int) -> None:
        """By the progress record a snapshot was begun, or asked for, and what commits from then on is not durable."""
        if self._complete_us is None:
            self._complete_until_commit(commit_us)

    @property
    def complete_us(self) -> int | None:
        """Everything that was committed before is durable, or received in this session; None: not known."""
        return self._complete_us

    @property
    def _behind_since_us(self) -> int | None:
        self._settle()
        known = [at_us for at_us in (self._complete_us, self._last_us) if at_us is not None]
        since = [max(known)] if known else []
        return min(since + [at_us for at_us in (self._oldest_us,) if at_us is not None], default=None)

    def streams(self, of: ServerTimeline, start_lsn: Lsn, durable_us: int) -> None:
        """A stream begins at `start_lsn`; the last transaction that is durable committed at `durable_us`, 0: unknown.

        What the session before had received and is not durable comes again (F9, F27).
        """
        self._settle()
        left_us = self._oldest_us if self._ended_lsn > start_lsn else self._open_us
        if self._last_us is not None:
            self._complete_until(self._last_us)
        if left_us is None:
            self._complete_until_commit(durable_us)
        else:
            left_us = max(left_us, durable_us)
            self._complete_us = left_us if self._complete_us is None else min(self._complete_us, left_us)
        self._forget()
        if of != self._of:
            self._looks.clear()
        self._of, self.received_lsn = of, start_lsn

    def _forget(self) -> None:
        self._last_us = self._oldest_us = self._open_us = None
        self._ended_lsn = self._durable_lsn = INVALID_LSN

    # --- the flow, per batch and per transaction ---

    def received(self, lsn: Lsn) -> None:
        """Everything committed before `lsn` was received."""
        self.received_lsn = max(self.received_lsn, lsn)

    def turned(self) -> None:
        """A batch went through. A commit time from another clock (an origin's) may be ahead of the server's."""
        if self._last_us is not None:
            self._last_us = min(self._last_us, self.now_us())

    def began(self, commit_us: int) -> None:
        """A transaction that is not durable yet came in."""
        self._open_us = commit_us = self._credible(commit_us)
        if self._oldest_us is None:
            self._oldest_us = commit_us

    def ended(self, end_lsn: Lsn, commit_us: int | None = None, *, is_empty: bool) -> None:
        """A transaction is complete; with its commit time where another began last."""
        self.received_lsn = max(self.received_lsn, end_lsn)
        self._last_us = self._credible(commit_us) if commit_us is not None else self._open_us
        self._open_us = None
        if not is_empty:
            self._ended_lsn = end_lsn
        elif self._durable_lsn >= self._ended_lsn:
            self._oldest_us = None  # F7: empty, it is done when those before it are

    def durable(self, lsn: Lsn, commit_us: int | None) -> None:
        """Everything up to `lsn` is durable; its last transaction committed at `commit_us`, None without one."""
        self._durable_lsn = lsn
        # Not the received LSN: keepalives raise that beyond the last transaction, and nothing waits for them.
        if lsn >= self._ended_lsn:
            self._oldest_us = self._open_us
        elif self._oldest_us is not None and commit_us is not None and commit_us <= self.now_us():
            # A position alone tells nothing of when what is behind it was committed.
            self._oldest_us = max(self._oldest_us, commit_us)

    def _credible(self, commit_us: int) -> int:
        """Return when a transaction committed, at the earliest.

        The time of an origin whose clock is ahead says nothing: it came after everything that was complete before.
        """
        now_us = self.now_us()
        if commit_us <= now_us:
            return commit_us
        return now_us if self._complete_us is None else min(self._complete_us, now_us)

    # --- out ---

    def lag_us(self) -> int | None:
        """Return the age of the oldest commit that is not, or may not be, durable in Kafka; None: unknown."""
        self._settle()
        now_us = self.now_us()
        ages = [] if self._oldest_us is None else [now_us - self._oldest_us]
        known = [at_us for at_us in (self._complete_us, self._last_us) if at_us is not None]
        if known:
            ages.append(0 if self._is_complete_now else now_us - min(max(known), now_us))
        return max(0, *ages) if ages else None

    @property
    def _is_complete_now(self) -> bool:
        look = self._last_look
        if look is None or self._complete_us is None or self._complete_us < look.clock_us:
            return False
        return self._clock_us() - look.asked_us <= FRESH_US

    def _settle(self) -> None:
        while self._looks and self._looks[0][0] <= self.received_lsn:
            self._complete_until(self._looks.popleft()[1])

    def _complete_until_commit(self, commit_us: int) -> None:
        """The time of an origin whose clock is ahead says nothing, nor does 0."""
        if 0 < commit_us <= self.now_us():
            self._complete_until(commit_us)

    def _complete_until(self, at_us: int) -> None:
        self._complete_us = at_us if self._complete_us is None else max(self._complete_us, at_us)
