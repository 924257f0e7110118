"""Decide whether the next chunk of an incremental snapshot may be read, by the load on the source. Pure.

In: the limits, the rows read so far, the replication lag, the active sessions, the time.  Out: `Wait`, or None.
Invariant: over any time the tables together read at most `max_rows_per_second`, and one chunk more. A value that is
not known is above its limit.
Must not: read the clock, or ask the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LOOK_S = 0.5
"""How long a table waits before the load is checked again."""


class Wait(NamedTuple):
    """Why no chunk is read, and for how long."""

    reason: str
    seconds: float


class Sessions(NamedTuple):
    """The client sessions of the server, without cdcd's: active ones, and those whose state the role may not see."""

    active: int
    hidden: int


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits; None: without this limit."""

    max_rows_per_second: int | None = None
    pause_above_lag_ms: int | None = None
    pause_above_active_sessions: int | None = None

    def most_rows(self, goal_s: float) -> int | None:
        """Return the rows that may be read in the goal of one chunk."""
        return None if self.max_rows_per_second is None else max(1, int(self.max_rows_per_second * goal_s))


class LoadGate:
    """The limits of all tables of a session together."""

    def __init__(self, limits: LoadLimits) -> None:
        self.limits = limits
        self._free_at_s = float("-inf")

    def was_read(self, rows: int, now_s: float) -> None:
        """Note the rows of a chunk."""
        if self.limits.max_rows_per_second is not None:
            self._free_at_s = max(self._free_at_s, now_s) + rows / self.limits.max_rows_per_second

    def wait(self, now_s: float, lag_s: float | None, sessions: Sessions | None) -> Wait | None:
        """Return why the next chunk is not read now, None if it is."""
        return self._wait_for_rate(now_s) or self._wait_for_lag(lag_s) or self._wait_for_sessions(sessions)

    def _wait_for_rate(self, now_s: float) -> Wait | None:
        left_s = self._free_at_s - now_s
        if left_s <= 0:
            return None
        return Wait(f"max_rows_per_second: {self.limits.max_rows_per_second}", min(left_s, LOOK_S))

    def _wait_for_lag(self, lag_s: float | None) -> Wait | None:
        limit_ms = self.limits.pause_above_lag_ms
        if limit_ms is None or (lag_s is not None and lag_s * 1000 <= limit_ms):
            return None
        now = "not known" if lag_s is None else f"{round(lag_s * 1000)} ms"
        return Wait(f"pause_above_lag_ms: {limit_ms}; the replication lag is {now}", LOOK_S)

    def _wait_for_sessions(self, sessions: Sessions | None) -> Wait | None:
        limit = self.limits.pause_above_active_sessions
        if limit is None or (sessions is not None and sum(sessions) <= limit):
            return None
        now = "the active sessions are not known"
        if sessions is not None:
            now = f"{sessions.active} sessions are active"
            if sessions.hidden:
                now += (
                    f", and {sessions.hidden} may be: GRANT pg_read_all_stats to the role shows their state"
                )
        return Wait(f"pause_above_active_sessions: {limit}; {now}", LOOK_S)
