"""The sources of a run's figures, and when a run is repeated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.measure import Run, Sample, others_share, rows_left
from tests.bench.pairs import undisturbed
from tests.bench.usage import Cpu, Machine


@pytest.mark.parametrize(
    ("sent_lsn", "left"), [(50, 1000), (100, 1000), (150, 750), (300, 0), (400, 0)], ids=str
)
def test_rows_left_are_a_share_of_the_wal(sent_lsn: int, left: float) -> None:
    assert rows_left(1000, 100, 300, sent_lsn) == left


def test_others_are_what_is_left_of_the_machine_and_what_was_stolen() -> None:
    before = Sample(10.0, {"broker": Cpu(1.0, 1.0)}, Machine(100.0, 5.0, 1.0))
    after = Sample(20.0, {"broker": Cpu(4.0, 1.0), "walsender": Cpu(2.0, 0.0)}, Machine(107.0, 9.0, 2.0))
    assert others_share(before, after, 2) == pytest.approx((7 + 1 - 5) / 20)
    assert others_share(before, before, 2) == 0.0


def test_ours_may_seem_to_have_used_more_than_all() -> None:
    before = Sample(0.0, {}, Machine(0.0, 0.0, 0.0))
    after = Sample(1.0, {"broker": Cpu(1.01, 0.0)}, Machine(1.0, 0.0, 0.0))
    assert others_share(before, after, 2) == 0.0


def of_share(share: float) -> Run:
    return Run("c", "r", 1, 1, 1, 1, 0, 0, {}, {}, 0, share, None)


@pytest.mark.parametrize(
    ("shares", "chosen", "repeats"),
    [
        ((0.1,), 0.1, 0),
        ((0.5, 0.02), 0.02, 1),
        ((0.5, 0.3, 0.4), 0.3, 2),
        ((0.2, 0.3, 0.09), 0.09, 2),
    ],
    ids=[
        "undisturbed",
        "undisturbed at the second run",
        "always disturbed: the least",
        "undisturbed at the last run",
    ],
)
def test_a_disturbed_run_is_repeated_so_many_times(
    shares: tuple[float, ...], chosen: float, repeats: int
) -> None:
    each: Iterator[float] = iter(shares)
    run = undisturbed(lambda: of_share(next(each)), 2)
    assert (run.others_share, run.repeats) == (chosen, repeats)
    assert next(each, None) is None, "exactly as many runs as needed"
