"""Short seeds of the campaign: its servers, faults, readers and judge work. `make campaign` runs many seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign.one_seed import CDCD, run_seed
from tests.campaign.plan import Plan, Strike, plan_of
from tests.campaign.servers import Servers, running

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
UNFENCED = "tests.campaign.unfenced"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running(18) as servers:
        yield servers


def planned(load_s: float, *strikes: Strike) -> Plan:
    """A plan of these faults only, with Kafka transactions of many rows."""
    plan = plan_of(1, load_s)
    plan.options["sink"]["commit"].update(max_wait_ms=20, max_rows=30_000)
    return replace(plan, strikes=strikes, is_in_copy=False)


def test_a_seed_with_a_partition_and_kills_has_no_findings(servers: Servers, tmp_path: Path) -> None:
    strikes = Strike("broker_partitioned", 0.2, 5, 1), Strike("cdcd_killed", 1, 0.2, 2)
    result = run_seed(servers, planned(8, *strikes), tmp_path)
    assert result.findings == []
    assert result.struck == {"broker_partitioned": 1, "cdcd_killed": 1}
    assert result.cuts > 1
    assert result.visits > 0
    assert result.records > 0 < result.transactions


@pytest.mark.parametrize(("module", "is_found"), [(CDCD, False), (UNFENCED, True)])
def test_it_finds_a_daemon_that_continues_under_the_same_epoch(
    module: str, is_found: bool, servers: Servers, tmp_path: Path
) -> None:
    """F77: requests that arrive late tear and repeat transactions, unless each of them meets a new epoch."""
    strikes = [Strike("request_late", 0.3 + number * 0.8, 1.0, number) for number in range(24)]
    result = run_seed(servers, replace(planned(20, *strikes), seed=1 + is_found), tmp_path, module)
    assert result.struck["request_late"] > 2
    assert bool(result.findings) is is_found, result.findings
