"""Verdicts of the three probes, from one value that `cdcd.monitoring` keeps up to date.

In: a HealthState and the monotonic clock's reading.  Out: a Verdict: pass or not, and why, for a person.
Invariant: alive means that the loop turns, whatever the servers do, because a restart mends no server; ready
means that this process holds the slot or copies a snapshot and can write; started means that it got as far as
turning. Lag decides nothing. A halt that a restart cannot mend stays alive and is not ready.
Must not: do I/O, read the clock, ask a server.
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
"""What a pipeline can be doing, one at a time."""

_WORKING = frozenset({"snapshot", "streaming", "backpressure"})


@dataclass(frozen=True, slots=True)
class HealthState:
    """What the probes need to know. Times are readings of the monotonic clock in seconds.

    `reason` says why in the states halted and backoff: an error's code and message, never a value of a row.
    `was_ready`: it has been ready before in this process, so that a short back-off does not undo it.
    """

    state: str = "starting"
    last_turn_s: float | None = None
    is_source_streaming: bool = False
    is_sink_open: bool = False
    was_ready: bool = False
    backoff_since_s: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Refuse a state that no metric, verdict or page knows."""
        if self.state not in STATES:
            raise ValueError(f"unknown pipeline state {self.state!r}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a probe."""

    is_ok: bool
    reason: str


def startup(health: HealthState) -> Verdict:
    """Started: the configuration was read and the loop has turned once. Not: that any server is there."""
    if health.last_turn_s is None:
        return Verdict(False, "the loop has not turned yet")
    return Verdict(True, "started")


def liveness(health: HealthState, now_s: float, max_silence_s: float = 30.0) -> Verdict:
    """Alive: the loop turned not long ago. Waiting, backing off and being halted are alive."""
    if health.last_turn_s is None:
        return Verdict(True, "starting")
    silence_s = now_s - health.last_turn_s
    if silence_s > max_silence_s:
        return Verdict(False, f"the loop has not turned for {silence_s:.0f} s")
    return Verdict(True, health.state)


def readiness(health: HealthState, now_s: float, max_backoff_s: float = 30.0) -> Verdict:
    """Ready: the slot is streaming or a snapshot runs, and the producer is open; never by lag."""
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
