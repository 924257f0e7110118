"""The judgement of a topic: each planted fault is found, and the counts of repeated rows are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.bench.copied_table import NAMES, changing
from tests.bench.folded_topic import Folded, Part
from tests.bench.killed_copy import Life, Repeated, repeated


def record(op: str, version: int) -> dict[str, Any]:
    row = {**dict.fromkeys(NAMES, 0), "version": version}
    return {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row}


GOOD = [(1, record("u", 3)), (1, record("r", 3)), (2, record("r", 0)), (2, record("d", 0)), (2, None)]


@pytest.mark.parametrize(
    ("records", "finding"),
    [
        ([], None),
        ([(1, record("r", 3))], "copied twice"),
        ([(1, record("u", 2))], "u older than the record before"),
        ([(2, record("r", 0))], "r after its delete"),
        ([(2, record("u", 9))], "u after its delete"),
        ([(2, record("d", 0))], "deleted twice"),
        ([(1, None)], "a tombstone of a row that is not deleted"),
    ],
)
def test_a_record_out_of_order_is_found(
    records: list[tuple[int, dict[str, Any] | None]], finding: str | None
) -> None:
    part = Part()
    for row_id, value in [*GOOD, *records]:
        part.take(row_id, value)
    assert bool(part.findings) == (finding is not None)
    assert finding is None or part.findings[0].startswith(finding)


def test_the_rows_are_those_after_the_last_record() -> None:
    part = Part()
    for row_id, value in GOOD:
        part.take(row_id, value)
    assert {row_id: version for row_id, (version, _) in part.rows.items()} == {1: 3}


def test_what_a_process_copied_and_nobody_sees_is_repeated() -> None:
    visible_at_ms = np.array([100, 150, 150, 199, 300, 301])
    folded = Folded(np.array([]), np.array([]), visible_at_ms, 50.0, [])
    lives = [Life(100, 200, 7), Life(250.5, 400, 2)]
    assert repeated(lives, folded) == [Repeated(3, 150), Repeated(0, 0)]


def test_each_change_is_in_one_transaction_with_the_row_that_is_read() -> None:
    script = changing(1_000, "INSERT INTO t0 SELECT 1")
    assert script.count("INSERT INTO t0 SELECT 1;") == 4
    assert script.count("\\if") == script.count("\\endif") == 1
    assert "random(1, 1000)" in script
