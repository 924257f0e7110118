"""The core of the initial snapshot against a simulated server: each row and change is there once, after any crash.

`python -m tests.simulator.initial --first SEED --count 1` runs a failing seed alone.
"""

from __future__ import annotations

import pytest

from tests.simulator.initial import Simulation
from tests.simulator.initial_bugs import BUGS
from tests.support.nightly import nightly_except

SEEDS = 600
BLOCKS = 4


@pytest.mark.parametrize("block", nightly_except(range(BLOCKS), 0))
def test_readers_have_each_row_and_each_change_once(block: int) -> None:
    """F1, F36, F37, F40: whatever step a crash interrupts, and whatever commits between any two steps."""
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        Simulation(seed).run()


def test_the_simulation_has_each_event_that_it_is_meant_to_test() -> None:
    counts = sum((Simulation(seed).run() for seed in range(100)), start=Simulation(0).counts)
    wanted = {"crashes", "lost slots", "rests", "standbys", "copies", "streamed", "kept", "ranges"}
    wanted |= {"continued", "failures", "given up", "included again", "marks"}
    assert {name for name, count in counts.items() if count >= 5} == wanted


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_detected(bug: type[Simulation]) -> None:
    """F1, F36, F37, F40: each rule of the snapshot is needed."""
    for seed in range(2 * SEEDS):
        try:
            bug(seed).run()
        except AssertionError:
            return
    pytest.fail(f"not detected: {BUGS[bug]}")
