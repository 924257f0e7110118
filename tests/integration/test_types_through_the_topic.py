"""The oracle in its small form: every type through the topics of the newest major, judged by PostgreSQL itself.

`make oracle` runs more values on several majors, and prints the counts of each type.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.oracle.report import failures, table_of
from tests.oracle.run import Stack, run


@pytest.mark.timeout(300)
def test_every_type_comes_back_as_the_row_was(
    postgres: PostgresServer, kafka: KafkaBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    """Snapshot and stream, text and binary; alone, in arrays, domains, composites, ranges and multiranges."""
    outcome = run(Stack(postgres, kafka, registry, tmp_path), count=10)
    print(table_of(outcome))
    assert not failures(outcome)
    assert all(verdict.sum("text", "values") for verdict in outcome.verdicts)
    assert all(verdict.sum("binary", "values") for verdict in outcome.verdicts)
