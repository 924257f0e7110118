"""The campaign's report counts what its lines have, and docs/proof.md has the numbers of the recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.facts import Write
from tests.campaign.nemesis_servers import BY_NAME
from tests.campaign.plan import FAULTS, plan_of
from tests.campaign.report import RUNS, read, tables, total
from tests.campaign.witness import writes

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"
LINE = {
    "seed": 3, "seconds": 1800.0, "transactions": 10, "changes": 20, "records": 30, "cuts": 4, "visits": 5,
    "starts": 2, "struck": {"broker_killed": 2}, "findings": ["lost: a row"],
}  # fmt: skip


def test_lines_add_up() -> None:
    summed = total([LINE, LINE])
    assert summed["seeds"] == 2
    assert summed["transactions"] == 20
    assert summed["struck"] == {"broker_killed": 4}
    assert summed["in_seeds"] == {"broker_killed": 2}
    assert summed["findings"] == ["seed 3: lost: a row"] * 2


def test_a_sum_of_sums_is_the_sum_of_their_seeds() -> None:
    assert total([total([LINE, LINE]), total([LINE])]) == total([LINE, LINE, LINE])


def test_the_tables_name_hours_and_faults() -> None:
    text = tables(total([LINE, LINE]))
    assert "| hours | 1.0 |" in text
    assert "| broker killed | 4 | 2 |" in text


def test_the_page_has_the_numbers_of_the_recorded_runs() -> None:
    assert tables(read([RUNS])) in PAGE.read_text()


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_decides_the_plan(seed: int) -> None:
    plan = plan_of(seed, 15)
    assert plan == plan_of(seed, 15)
    assert plan.strikes
    assert all(0 <= strike.at_s <= 15 for strike in plan.strikes)


def test_each_planned_fault_has_a_function() -> None:
    assert BY_NAME.keys() == FAULTS.keys()
    assert {strike.fault for seed in range(100) for strike in plan_of(seed, 15).strikes} == FAULTS.keys()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("lists", None, 1, "a,"), [Write(("lists", "1"), "a,")]),
        (("lists", 1, 1, "a,b,"), [Write(("lists", "1"), "a,b,")]),
        (("lists", 1, None, None), [Write(("lists", "1"), None)]),
        (("lists", 1, 2, "a,"), [Write(("lists", "1"), None), Write(("lists", "2"), "a,")]),
    ],
)
def test_a_new_key_is_a_deletion_and_a_new_row(line: tuple, expected: list[Write]) -> None:
    assert writes(*line) == expected
