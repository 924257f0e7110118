"""`cdcd check --json` where neither PostgreSQL, Kafka nor the registry answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdcd.cli import main
from tests.unit.config.cases import GOOD


@pytest.mark.nightly  # test_check_and_init has them
def test_every_endpoint_is_tried_though_none_answers_and_the_json_names_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line break between the parts stays a line break; one inside a name is escaped in the JSON."""
    path = tmp_path / "prod.yaml"
    # port 1 is closed on every machine that runs tests
    text = GOOD.replace("db.example.com", "127.0.0.1:1").replace("kafka:9092", "127.0.0.1:1")
    path.write_text(text.replace("registry:8081", "127.0.0.1:1"))
    assert main(["check", "--json", "--config", str(path)]) == 1
    found = json.loads(capsys.readouterr().out)
    failed = [one["subject"] for one in found if one["level"] == "fail"]
    assert failed == ["source connection", "kafka", "registry"]
