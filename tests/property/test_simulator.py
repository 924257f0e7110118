"""The pure core against a simulated server: exactly what was committed, whatever is streamed, aborted or cut off.

A failing seed is run alone by `python -m tests.simulator --first SEED --count 1`.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.simulator.judge import expected, simulate
from tests.simulator.workload import Generator, SubAbort


@pytest.mark.parametrize("block", range(8))
def test_exactly_what_was_committed_arrives_in_commit_order(block: int) -> None:
    """F26 to F29, F43: interleaved streams, nested aborts, relations in and out of streams, reconnects."""
    for seed in range(block * 50, block * 50 + 50):
        simulate(seed)


@pytest.mark.parametrize("seed", range(4))
def test_the_connection_may_break_at_each_point(seed: int) -> None:
    """F27: a new session, from any position that was complete, makes up for it."""
    messages = simulate(seed, breaks=(), steps=40)
    for point in range(messages + 1):
        simulate(seed, breaks=(point,), steps=40)


def test_the_work_holds_what_it_is_meant_to_test() -> None:
    work = [Generator(Random(seed)).work(120) for seed in range(50)]
    aborts = [len(record.xids) for one in work for record in one.wal if isinstance(record, SubAbort)]
    assert max(aborts) >= 4, "nested and released subtransactions that go together"
    kinds = {what[0] for one in work for _, whats in expected(one) for what in whats}
    assert kinds == {"I", "U", "D", "T", "M"}
    columns = [what[2] for one in work for _, whats in expected(one) for what in whats if what[0] == "I"]
    assert len(set(columns)) > 20, "tables are altered"
