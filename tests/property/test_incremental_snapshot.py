"""The core of the incremental snapshot against a simulated server: readers have the table's rows, none of them older.

`python -m tests.simulator.incremental --first SEED --count 1` runs a failing seed alone.
"""

from __future__ import annotations

import pytest

from tests.simulator.incremental import Simulation
from tests.simulator.incremental_bugs import BUGS, OldScanContinues, ReadAgainTooEarly
from tests.support.nightly import nightly, nightly_except

SEEDS = 2000
BLOCKS = 4


@pytest.mark.parametrize("block", nightly_except(range(BLOCKS), 0))
def test_readers_have_each_row_and_never_an_older_one_after_a_newer_one(block: int) -> None:
    """F36, F40: with any order of visibility, at any lag of the stream, and after a crash at any step."""
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        Simulation(seed).run()


def test_the_simulation_has_each_event_that_it_is_meant_to_test() -> None:
    counts = sum((Simulation(seed).run() for seed in range(300)), start=Simulation(0).counts)
    wanted = {"crashes", "chunks", "dropped", "refused", "read again", "waits", "files", "slices", "gone"}
    assert {name for name, count in counts.items() if count >= 5} == wanted


LATE = (OldScanContinues, ReadAgainTooEarly)
"""It takes thousands of seeds to find these."""


@pytest.mark.parametrize(
    "bug", [nightly(bug) if bug in LATE else bug for bug in BUGS], ids=lambda bug: bug.__name__
)
def test_a_planted_bug_is_detected(bug: type[Simulation]) -> None:
    """F1, F33, F36, F46, F81: each rule of the method is needed."""
    for seed in range(3 * SEEDS):
        try:
            bug(seed).run()
        except AssertionError:
            return
    pytest.fail(f"not detected: {BUGS[bug]}")
