"""The dry run of the schemas: an outage is no finding about a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdcd.config.load import load_config
from cdcd.errors import CdcdError, RegistryUnavailable, SinkUnavailable, SourceUnavailable, TopicMissing
from cdcd.session.start_checks.schema_dry_run import SchemaDryRun
from tests.unit.config.cases import GOOD


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (SinkUnavailable("a broker restarts"), "unknown"),
        (SourceUnavailable("the server restarts"), "unknown"),
        (RegistryUnavailable("it restarts"), "unknown"),
        (TopicMissing("it is not there"), "fail"),
    ],
)
def test_an_outage_is_no_problem_of_a_table(
    error: CdcdError, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The session would log of the table that its next row halts cdcd."""

    class Plans:
        def place_transactions(self) -> None:
            raise error

    monkeypatch.setattr(SchemaDryRun, "_plans", lambda *_: Plans())
    schemas: Any = None
    path = tmp_path / "shop.yaml"
    path.write_text(GOOD)
    config = load_config(path, {})
    dry_run = SchemaDryRun(config, schemas, lambda _name: False)
    (found,) = dry_run.run({"t": None}, at_once=False)
    assert (found.level, error.message in found.message) == (level, True)
