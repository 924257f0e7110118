"""The benchmark's reads of a backlog, with few rows: the peaks of the memory, and a killed worker of a cluster."""

from __future__ import annotations

import pytest

from tests.bench.spark.cluster import by_cluster
from tests.bench.spark.memory import by_memory


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_workers_are_below_their_limits(capfd: pytest.CaptureFixture[str]) -> None:
    assert by_memory(50_000) == 0
    printed = capfd.readouterr().out
    for run in ("a tenth", "all", "all, and 50 MB"):
        for part in ("tasks", "planner"):
            assert any(line.startswith(run) and part in line for line in printed.splitlines())


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_row_once_on_a_cluster_with_a_killed_worker(capfd: pytest.CaptureFixture[str]) -> None:
    assert by_cluster(200_000, rounds=1) == 0
    assert "one killed after batch 2 of" in capfd.readouterr().out
