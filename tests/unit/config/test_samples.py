"""The files in config/ match the models, load, and satisfy the schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.config import load_config
from cdcd.config.document import parse_document, read_document
from cdcd.config.sample import json_schema, sample_yaml
from cdcd.config.shape import options
from cdcd.registry.settings import client_properties
from tests.support.registry_door import make_certificates
from tests.unit.config.cases import CASES, GOOD

FOLDER = Path(__file__).parents[3] / "config"
SAMPLES = ("sample.yaml", "prod.yaml", "demo.yaml")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_sample_and_schema_are_the_models_own() -> None:
    assert (FOLDER / "sample.yaml").read_text() == sample_yaml()
    assert (FOLDER / "schema.json").read_text() == json_schema()


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_loads(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    environ = {}
    if name == "prod.yaml":  # its paths of secrets are those of the chart's mounts
        environ = {
            "CDCD_SOURCE__PASSWORD_FILE": str(secret),
            "CDCD_REGISTRY__PASSWORD_FILE": str(secret),
            "CDCD_SINK__SECRET_FILES": json.dumps({"sasl.password": str(secret)}),
        }
    assert load_config(FOLDER / name, environ).name == "shop"


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_satisfies_the_schema(name: str, validator: jsonschema.Draft202012Validator) -> None:
    # parsed by cdcd's own YAML reader and by an ordinary one
    validator.validate(read_document(FOLDER / name).tree)
    validator.validate(yaml.safe_load((FOLDER / name).read_text()))


def test_the_sample_shows_every_option_with_its_default_and_a_description(tmp_path: Path) -> None:
    text = sample_yaml()
    for option in options():
        assert option.field.description, option.path
        assert option.field.description in text
    (tmp_path / "least.yaml").write_text(GOOD)
    least = load_config(tmp_path / "least.yaml", {})
    sample = load_config(FOLDER / "sample.yaml", {})
    required = {"source": {"dsn"}, "sink": {"bootstrap_servers"}, "registry": {"url"}}
    assert sample.model_dump(exclude=required) == least.model_dump(exclude=required)


def test_uncommenting_the_samples_options_makes_no_unknown_key() -> None:
    lines = [line for line in sample_yaml().splitlines() if line.lstrip().startswith("# ")]
    commented = {line.strip()[2:].partition(":")[0] for line in lines}
    optional = {option.path[-1] for option in options() if option.is_optional or option.is_mapping}
    assert optional <= commented


def with_unknown_keys(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one copy of the tree for each of its mappings, with an unknown key in that mapping."""
    found = [{**tree, "unknown_key": 1}]
    for key, value in tree.items():
        if isinstance(value, dict) and key not in ("properties", "secret_files"):
            found += [{**tree, key: inner} for inner in with_unknown_keys(value)]
    return found


def test_the_schema_rejects_an_unknown_key_everywhere(validator: jsonschema.Draft202012Validator) -> None:
    tree = parse_document(sample_yaml(), "sample.yaml").tree
    wrong = with_unknown_keys(tree)
    assert len(wrong) == 19  # the root and every nested model
    for candidate in wrong:
        with pytest.raises(jsonschema.ValidationError, match="unknown_key"):
            validator.validate(candidate)


@pytest.mark.parametrize(
    "name",
    [
        "unknown key",
        "missing option",
        "delivery word",
        "partitions zero",
        "size",
        "protocol version",
        "admin port",
        "override with nothing after its keys",
        "override with nothing as its patterns",
    ],
)
def test_the_schema_rejects_what_the_models_reject(
    name: str, validator: jsonschema.Draft202012Validator
) -> None:
    text = next(case.text for case in CASES if case.name == name)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(parse_document(text, "prod.yaml").tree)


PAGE = Path(__file__).parents[3] / "docs" / "registry.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_each_way_to_the_registry_on_its_page_is_valid(
    block: str, tmp_path: Path, validator: jsonschema.Draft202012Validator
) -> None:
    """The client accepts the resulting properties."""
    make_certificates(tmp_path)
    for name in ("registry-password", "registry-token", "registry-client-secret"):
        (tmp_path / name).write_text("canary")
    (tmp_path / "registry-key-password").write_text("of the key")
    for shown, made in (("tls.crt", "client.crt"), ("tls.key", "client.key")):
        block = block.replace(f"/etc/cdcd/tls/registry/{shown}", str(tmp_path / made))
    block = block.replace("/etc/cdcd/tls/registry", str(tmp_path)).replace("/etc/cdcd/secrets", str(tmp_path))
    text = re.sub(r"registry: .*\n", "", GOOD) + block
    (tmp_path / "cdcd.yaml").write_text(text)
    validator.validate(yaml.safe_load(text))
    config = load_config(tmp_path / "cdcd.yaml", {})
    if config.registry.is_none:
        assert config.schema_topic == "shop.__schemas"
    else:
        assert SchemaRegistryClient(client_properties(config.registry_settings()))
        assert config.schema_topic is None


def test_an_environment_can_do_without_a_registry(tmp_path: Path) -> None:
    (tmp_path / "cdcd.yaml").write_text(GOOD)
    assert load_config(tmp_path / "cdcd.yaml", {"CDCD_REGISTRY__URL": "none"}).registry.is_none
