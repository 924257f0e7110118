"""The replication lag in time, computed on demand. Pure except for the two clocks passed in.

In: samples of the server's WAL end and time; the received and the durable LSNs, per batch.
Out: the lag, or None while nothing is known.
Invariant: the lag is never less than the age of the oldest commit that is not durable in Kafka, received or not. A
commit counts from the time when it is in the server's WAL. While no new sample comes, the lag grows: it counts from
the last time up to which all commits are known to have been received.
Must not: cost anything per row, query a server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cdcd.clock import monotonic_us
from cdcd.lsn import INVALID_LSN, Lsn

FRESH_US = 500_000
"""A sample this young counts as now: if its WAL end was received, the lag is 0."""
MAX_SAMPLES = 64
"""Of samples whose WAL end was not received yet. With fewer, the lag falls in larger steps, never too early."""


@dataclass(frozen=True, slots=True)
class ServerTimeline:
    """A server, and the timeline of it that an LSN belongs to."""

    system_identifier: str
    timeline: int


@dataclass(frozen=True, slots=True)
class WalEnd:
    """One sample of the server: at `clock_us`, by its clock (Unix epoch), its WAL ended at `lsn` or after it.

    `asked_us`, `answered_us`: cdcd's monotonic clock before and after the query. `received_lsn`: received before it.
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
        self._last_sample: WalEnd | None = None
        self._ahead_us: int | None = None
        """The server's clock minus cdcd's monotonic clock, at most."""
        self._samples: deque[tuple[Lsn, int]] = deque()
        """Increasing WAL ends that were not received when they were sampled, with the server's time of the sample."""
        self._complete_us: int | None = None
        """Everything committed before this time is durable, or received in this session."""
        self._is_complete_by_wall = False
        """Whether `_complete_us` is from cdcd's own clock, before the first sample of the server's."""
        self._last_us: int | None = None
        self._oldest_us: int | None = None
        self._open_us: int | None = None
        self._ended_lsn: Lsn = INVALID_LSN
        self._durable_lsn: Lsn = INVALID_LSN
        self.received_lsn: Lsn = INVALID_LSN
        """Everything committed before this LSN is durable, or received in this session."""

    # --- samples of the server ---

    def add_sample(self, end: WalEnd) -> None:
        """Add a sample of the server's WAL end. A sample of another server is ignored (F59)."""
        if self._of is not None and end.of != self._of:
            return
        if end.lsn < end.received_lsn:
            return  # a copy of the server on the same timeline: its WAL ends before the received LSN
        self._last_sample = end
        self._set_clock(end)
        if self._samples and end.lsn < self._samples[-1][0]:
            self._samples.clear()
        if self._samples and end.lsn == self._samples[-1][0]:
            self._samples.pop()
        self._samples.append((end.lsn, end.clock_us))
        if len(self._samples) > MAX_SAMPLES:
            del self._samples[MAX_SAMPLES // 2]
        self._settle()

    def is_of(self, of: ServerTimeline) -> bool:
        """Return whether the received LSN is one of this server, or none is known."""
        return self._of in (None, of)

    @property
    def has_reached_last_sample(self) -> bool:
        """Whether everything that was in the server's WAL at the last sample has been received."""
        self._settle()
        return not self._samples

    def now_us(self) -> int:
        """Return the server's time now; without a sample, cdcd's own."""
        return self._wall_us() if self._ahead_us is None else self._clock_us() + self._ahead_us

    def _set_clock(self, end: WalEnd) -> None:
        """Take the server's clock from a sample. A slow answer does not replace the bound of quicker ones before.

        If the server's clock was set meanwhile, all stored times are by its former clock, so they are shifted.
        """
        least_us, most_us = end.clock_us - end.answered_us, end.clock_us - end.asked_us
        if self._ahead_us is None:
            by_us = most_us + self._clock_us() - self._wall_us()
            if self._complete_us is not None and self._is_complete_by_wall:
                self._complete_us += by_us
            self._ahead_us = most_us
        elif not least_us <= self._ahead_us <= most_us:
            by_us = most_us - self._ahead_us
            self._samples = deque((lsn, at_us + by_us) for lsn, at_us in self._samples)
            for name in ("_complete_us", "_last_us", "_oldest_us", "_open_us"):
                at_us = getattr(self, name)
                setattr(self, name, None if at_us is None else at_us + by_us)
            self._ahead_us = most_us

    # --- the start of a stream or a copy ---

    def recorded(self, of: ServerTimeline, end_lsn: Lsn, commit_us: int) -> None:
        """Take the stored position: everything up to `end_lsn` is durable, and its last commit was at `commit_us`."""
        if self._of is None:
            self._of = of
            self.received_lsn = max(self.received_lsn, end_lsn)
        self._complete_until_commit(commit_us)

    def copies(self) -> None:
        """Begin a snapshot: commits before this moment are in the copy, later ones are not received yet.

        An earlier lag remains until the copy is complete.
        """
        since_us, now_us = self._behind_since_us, self.now_us()
        self._forget()
        self._of, self.received_lsn = None, INVALID_LSN
        self._samples.clear()
        self._complete_us = now_us if since_us is None else min(since_us, now_us)
        self._is_complete_by_wall = self._ahead_us is None and self._complete_us == now_us

    def copied_before(self, commit_us: int) -> None:
        """Take the progress record of a begun or requested snapshot: commits after `commit_us` are not durable."""
        if self._complete_us is None:
            self._complete_until_commit(commit_us)

    @property
    def complete_us(self) -> int | None:
        """Everything committed before this time is durable, or received in this session; None: not known."""
        return self._complete_us

    @property
    def _behind_since_us(self) -> int | None:
        self._settle()
        known = [at_us for at_us in (self._complete_us, self._last_us) if at_us is not None]
        since = [max(known)] if known else []
        return min(since + [at_us for at_us in (self._oldest_us,) if at_us is not None], default=None)

    def streams(self, of: ServerTimeline, start_lsn: Lsn, durable_us: int) -> None:
        """Begin a stream at `start_lsn`; the last durable transaction committed at `durable_us`, 0: unknown.

        The server sends again what the last session had received without making it durable (F9, F27).
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
            self._samples.clear()
        self._of, self.received_lsn = of, start_lsn

    def _forget(self) -> None:
        self._last_us = self._oldest_us = self._open_us = None
        self._ended_lsn = self._durable_lsn = INVALID_LSN

    # --- the flow, per batch and per transaction ---

    def received(self, lsn: Lsn) -> None:
        """Note that everything committed before `lsn` was received."""
        self.received_lsn = max(self.received_lsn, lsn)

    def turned(self) -> None:
        """Note the end of a batch. A commit time from another clock (an origin's) may be ahead of the server's."""
        if self._last_us is not None:
            self._last_us = min(self._last_us, self.now_us())

    def began(self, commit_us: int) -> None:
        """Note a received transaction that is not durable yet."""
        self._open_us = commit_us = self._credible(commit_us)
        if self._oldest_us is None:
            self._oldest_us = commit_us

    def ended(self, end_lsn: Lsn, commit_us: int | None = None, *, is_empty: bool) -> None:
        """Note a complete transaction; `commit_us` is given if another transaction began last."""
        self.received_lsn = max(self.received_lsn, end_lsn)
        self._last_us = self._credible(commit_us) if commit_us is not None else self._open_us
        self._open_us = None
        if not is_empty:
            self._ended_lsn = end_lsn
        elif self._durable_lsn >= self._ended_lsn:
            self._oldest_us = None  # F7: an empty transaction is durable when those before it are

    def durable(self, lsn: Lsn, commit_us: int | None) -> None:
        """Note that everything up to `lsn` is durable; its last commit was at `commit_us`, None without one."""
        self._durable_lsn = lsn
        # Not the received LSN: keepalives advance it beyond the last transaction, and need no commit.
        if lsn >= self._ended_lsn:
            self._oldest_us = self._open_us
        elif self._oldest_us is not None and commit_us is not None and commit_us <= self.now_us():
            # A position without a transaction does not show when the commits after it happened.
            self._oldest_us = max(self._oldest_us, commit_us)

    def _credible(self, commit_us: int) -> int:
        """Return the earliest possible commit time of a transaction.

        The time of an origin whose clock is ahead is not usable: the commit is later than everything complete before.
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
        sample = self._last_sample
        if sample is None or self._complete_us is None or self._complete_us < sample.clock_us:
            return False
        return self._clock_us() - sample.asked_us <= FRESH_US

    def _settle(self) -> None:
        while self._samples and self._samples[0][0] <= self.received_lsn:
            self._complete_until(self._samples.popleft()[1])

    def _complete_until_commit(self, commit_us: int) -> None:
        """Ignore the time of an origin whose clock is ahead, and 0."""
        if 0 < commit_us <= self.now_us():
            self._complete_until(commit_us)

    def _complete_until(self, at_us: int) -> None:
        self._complete_us = at_us if self._complete_us is None else max(self._complete_us, at_us)
