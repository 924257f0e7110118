"""The matrix in its small form: majors of PostgreSQL, three configurations each, one generated workload with kills.

`make matrix` runs every combination of options on every major, `make long` this one on the other majors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.matrix.batch import Plan, run
from tests.matrix.cells import MAJORS, few_of
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers, Stack

CHOSEN = (12, 14, 18)
"""12 does not stream, 14 does, 18 also in parallel."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("major", "steps"),
    [
        (18, 120),
        *(nightly(major, 250) for major in CHOSEN),
        *(pytest.param(major, 250, marks=pytest.mark.long) for major in MAJORS if major not in CHOSEN),
    ],
)
@pytest.mark.timeout(300)
def test_what_is_read_is_postgresqls_own_account(
    major: int,
    steps: int,
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """F4, F26 to F29, F33 to F35, F46, F47, F49 to F52: every transaction, change and value, once and in order."""
    cells, plan = few_of(major), Plan(seed=major, steps=steps)
    print(f"seed {plan.seed}: make matrix ARGS='--majors {major} --few --large-rows 0 --seed {plan.seed}"
          f" --steps {plan.steps}'")  # fmt: skip
    outcomes = run(Stack(pg_server(major), kafka, registry, tmp_path), cells, plan)
    for outcome in outcomes:
        reported = f"{outcome.kills} kills, {outcome.streamed} streamed"
        print(f"PostgreSQL {major}, {outcome.cell}, {reported}: {outcome.counts}")
    assert not [f"{outcome.cell}: {outcome.error}" for outcome in outcomes if outcome.error]
    assert len(outcomes) == len(cells)
    assert [outcome.streamed > 0 for outcome in outcomes] == [cell.streaming != "off" for cell in cells]
