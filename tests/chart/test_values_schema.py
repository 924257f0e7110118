"""The chart's values schema matches the configuration's models, and accepts the sample values and configuration."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.pages import blocks

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "cdcd"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_schema", ROOT / "helm" / "schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def judge() -> jsonschema.Draft7Validator:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def without_nulls(tree: Any) -> Any:
    """Remove null values, as Helm does before it validates."""
    if isinstance(tree, dict):
        return {key: without_nulls(value) for key, value in tree.items() if value is not None}
    return tree


def test_the_file_matches_the_models(generator: ModuleType) -> None:
    assert (CHART / "values.schema.json").read_text() == generator.text(), "run python helm/schema.py"


def test_the_defaults_and_every_sample_are_valid(judge: jsonschema.Draft7Validator) -> None:
    samples = [CHART / "values.yaml", *sorted((CHART / "ci").glob("*.yaml"))]
    assert len(samples) > 2
    for path in samples:
        judge.validate(without_nulls(yaml.safe_load(path.read_text())))


def test_the_sample_configuration_is_valid_but_for_its_loopback_address(
    judge: jsonschema.Draft7Validator,
) -> None:
    config = yaml.safe_load((ROOT / "config" / "sample.yaml").read_text())
    assert [error.json_path for error in judge.iter_errors({"config": config})] == ["$.config.admin.host"]
    config["admin"]["host"] = "0.0.0.0"
    judge.validate({"config": config})


def test_every_mapping_of_the_daemon_refuses_unknown_keys(judge: jsonschema.Draft7Validator) -> None:
    definitions = judge.schema["definitions"]
    assert "Config" in definitions
    assert all(schema["additionalProperties"] is False for schema in definitions.values())


def test_the_values_of_the_page_are_valid(judge: jsonschema.Draft7Validator) -> None:
    found = [
        yaml.safe_load(one.text) for one in blocks(ROOT / "docs" / "kubernetes.md") if one.language == "yaml"
    ]
    assert [list(one) for one in found] == [["verify"], ["mirror"]]
    for one in found:
        judge.validate({"config": {}, **one})
    judge.validate({"mirror": {"targetOptions": {"allow_http": "true"}}})
    for wrong in (
        {"targetOptions": {"aws_secret_access_key": "x"}},
        {"targetOptions": {"token": "x"}},
        {"target": "s3://key:secret@lake/shop"},
        {"replicas": 2},
        {"metricsPort": 0},
    ):
        assert not judge.is_valid({"mirror": wrong}), wrong
