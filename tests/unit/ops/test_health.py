"""The answers of the probes: a table of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.ops.health import STATES, HealthState, liveness, readiness, startup

WORKING = HealthState("streaming", 100.0, is_source_streaming=True, is_sink_open=True, was_ready=True)


@pytest.mark.parametrize("state", STATES)
def test_alive_whatever_the_state_while_the_loop_turns(state: str) -> None:
    assert liveness(replace(WORKING, state=state), now_s=110.0).is_ok


def test_dead_when_the_loop_stands_still() -> None:
    verdict = liveness(WORKING, now_s=131.0)
    assert not verdict.is_ok
    assert "31 s" in verdict.reason


def test_alive_and_not_started_before_the_first_turn() -> None:
    fresh = HealthState()
    assert liveness(fresh, now_s=1e9).is_ok
    assert not startup(fresh).is_ok
    assert startup(replace(fresh, last_turn_s=1.0)).is_ok


@pytest.mark.parametrize(
    ("health", "is_ready"),
    [
        (WORKING, True),
        (replace(WORKING, state="backpressure"), True),
        (replace(WORKING, state="snapshot", is_source_streaming=False), True),
        (replace(WORKING, is_source_streaming=False), False),
        (replace(WORKING, is_sink_open=False), False),
        (replace(WORKING, state="snapshot", is_sink_open=False), False),
        (replace(WORKING, state="starting"), False),
        (replace(WORKING, state="waiting_slot"), False),
        (replace(WORKING, state="halted", reason="CDCD-SLOT-LOST"), False),
        (replace(WORKING, state="stopping"), False),
        (replace(WORKING, state="backoff", backoff_since_s=80.0), True),
        (replace(WORKING, state="backoff", backoff_since_s=60.0), False),
        (replace(WORKING, state="backoff", backoff_since_s=80.0, was_ready=False), False),
    ],
)
def test_ready_means_that_it_can_write_what_it_reads(health: HealthState, is_ready: bool) -> None:
    assert readiness(health, now_s=100.0).is_ok is is_ready


def test_a_halt_says_its_reason() -> None:
    assert (
        "CDCD-SLOT-LOST" in readiness(replace(WORKING, state="halted", reason="CDCD-SLOT-LOST"), 100.0).reason
    )


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="dozing"):
        HealthState("dozing")
