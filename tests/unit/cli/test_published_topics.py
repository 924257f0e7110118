"""The settings of a command's Kafka client: its log is off unless the configuration sets its level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdcd.cli.published_topics import command_settings
from cdcd.config import load_config
from tests.unit.config.cases import GOOD


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({}, "0"), ({"log_level": "6"}, "6"), ({"debug": "broker"}, None)],
)
def test_the_log_level_of_the_client(
    properties: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text(GOOD)
    environ = {"CDCD_SINK__PROPERTIES": json.dumps(properties)}
    given = command_settings(load_config(path, environ), timeout_s=3.0)
    assert given.properties.get("log_level") == expected
    assert given.operation_timeout_s == 3.0
