"""The workload of the matrix has a method for each rule."""

from __future__ import annotations

import pytest

from tests.matrix.workload import IDLE_RULES, OPEN_RULES, Workload


@pytest.mark.parametrize("rule", [*IDLE_RULES, *OPEN_RULES])
def test_each_rule_has_its_method(rule: str) -> None:
    assert callable(getattr(Workload, f"_{rule}"))
