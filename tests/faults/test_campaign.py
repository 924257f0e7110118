"""One short seed of the campaign: its servers, faults, readers and judge work. `make campaign` runs many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign.one_seed import run_seed
from tests.campaign.plan import Strike, plan_of
from tests.campaign.servers import running

STRIKES = (
    Strike("broker_partitioned", 0.2, 4, 1),
    Strike("cdcd_killed", 1, 0.2, 2),
    Strike("cdcd_killed", 3, 0.2, 3),
)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_seed_with_a_partition_and_kills_has_no_findings(tmp_path: Path) -> None:
    with running(18) as servers:
        result = run_seed(servers, replace(plan_of(1, 6), strikes=STRIKES), tmp_path)
    assert result.findings == []
    assert result.struck == {"broker_partitioned": 1, "cdcd_killed": 2}
    assert result.cuts > 1
    assert result.visits > 0
    assert result.records > result.transactions > 0
