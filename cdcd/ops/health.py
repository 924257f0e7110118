"""Verdicts of the three probes, from one value that `cdcd.monitoring` updates.

In: a HealthState and the monotonic clock's reading.  Out: a Verdict: pass or not, and the reason as text.
Invariant: alive means that the event loop runs, whatever the state of the servers, because a restart fixes no server.
Ready means that this process reads the slot or copies a snapshot and can write. Started means that the event loop has
run once. Lag decides nothing. A halt that a restart does not resolve is alive and not ready.
Must not: do I/O, read the clock, query a server.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STATES", "HealthState", "Verdict", "liveness", "readiness", "startup"]

STATES = (
    "starting",
    "snapshot",
    "streaming",
    "backpressure",
    "backoff",
    "waiting_slot",
    "halted",
    "stopping",
)
"""The states of the pipeline, one at a time."""

_WORKING = frozenset({"snapshot", "streaming", "backpressure"})


@dataclass(frozen=True, slots=True)
class HealthState:
    """The input of the probes. Times are readings of the monotonic clock in seconds.

    `reason`: in the states halted and backoff the error's code and message, never a value of a row.
    `was_ready`: the pipeline has been ready in this process, so that it stays ready during a short back-off.
    """

    state: str = "starting"
    last_turn_s: float | None = None
    is_source_streaming: bool = False
    is_sink_open: bool = False
    was_ready: bool = False
    backoff_since_s: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown state."""
        if self.state not in STATES:
            raise ValueError(f"unknown pipeline state {self.state!r}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a probe."""

    is_ok: bool
    reason: str


def startup(health: HealthState) -> Verdict:
    """Return whether the configuration was read and the event loop has run once; the servers do not matter."""
    if health.last_turn_s is None:
        return Verdict(False, "the event loop has not run yet")
    return Verdict(True, "started")


def liveness(health: HealthState, now_s: float, max_silence_s: float = 30.0) -> Verdict:
    """Return whether the event loop ran in the last `max_silence_s`. Waits, back-offs and halts are alive."""
    if health.last_turn_s is None:
        return Verdict(True, "starting")
    silence_s = now_s - health.last_turn_s
    if silence_s > max_silence_s:
        return Verdict(False, f"the event loop has not run for {silence_s:.0f} s")
    return Verdict(True, health.state)


def readiness(health: HealthState, now_s: float, max_backoff_s: float = 30.0) -> Verdict:
    """Return whether the slot streams or a snapshot runs, and the producer is open; lag does not matter."""
    if health.state in _WORKING:
        if not health.is_sink_open:
            return Verdict(False, "the producer is not open")
        if health.state != "snapshot" and not health.is_source_streaming:
            return Verdict(False, "the replication stream is not open")
        return Verdict(True, health.state)
    if health.state == "backoff" and health.was_ready and health.backoff_since_s is not None:
        since_s = now_s - health.backoff_since_s
        if since_s <= max_backoff_s:
            return Verdict(True, f"backing off for {since_s:.0f} s: {health.reason}")
    return Verdict(False, f"{health.state}: {health.reason}" if health.reason else health.state)
