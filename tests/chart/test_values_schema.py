"""The chart's values schema matches the configuration's models, and accepts the sample values and configuration."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from cdcd.config.dsn import SHOWN
from cdcd.property_names import FILE_PROPERTIES, has_user, is_secret_property
from cdcd.spark.storage.options import SECRETS
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


@pytest.mark.parametrize("page", ["docs/kubernetes.md", "deploy/spark/README.md"])
def test_the_images_that_a_page_builds_are_those_of_the_chart(page: str) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    of_chart = {f"{one['image']['repository']}:{version}" for one in (values, values["mirror"])}
    built = re.findall(r"docker build [^`\n]*?-t (\S+) \.", (ROOT / page).read_text())
    assert built
    assert {image.removeprefix("registry.example.com/") for image in built} <= of_chart
    if page.startswith("docs"):
        assert len(built) == len(of_chart)


MINIMAL = yaml.safe_load((CHART / "ci" / "minimal-values.yaml").read_text())
NAMES = """
    ssl.key.password sasl.oauthbearer.assertion.private.key.passphrase SASL.Password bearer.auth.token
    basic.auth.user.info bearer.auth.client.secret sasl.jaas.config bearer.auth.client.id
    bearer.auth.credentials.source sasl.mechanism linger.ms
"""
PROPERTIES = {
    **dict.fromkeys((*FILE_PROPERTIES, *NAMES.split()), "x"),
    "sasl.oauthbearer.token.endpoint.url": "https://idp.example.com/token",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
    "sasl.username": "cdcd@example.com",
    "sasl.kerberos.principal": "cdcd@EXAMPLE.COM",
}
ADDRESSES = {
    "proxy": "u:p@proxy:3128",
    "https.proxy": "http://proxy:3128",
    "client.id": "https://u:p@host",
    "sasl.oauthbearer.token.endpoint.url": "https://u:p@idp.example.com/token",
    "bearer.auth.issuer.endpoint.url": "https://u:p/w@idp.example.com/token",
}


def config(**sections: Any) -> dict[str, Any]:
    return {"config": MINIMAL["config"] | sections}


@pytest.mark.parametrize("room", ["sink", "registry"])
def test_the_properties_are_refused_that_cdcd_itself_hides(
    judge: jsonschema.Draft7Validator, room: str
) -> None:
    own = MINIMAL["config"][room]
    for name, value in [*PROPERTIES.items(), *ADDRESSES.items()]:
        is_secret = is_secret_property(name) or has_user(name, value)
        values = config(**{room: own | {"properties": {name: value}}})
        assert judge.is_valid(values) != is_secret, name
    assert not judge.is_valid(
        config(sink=own | {"properties": {"sasl.oauthbearer.extensions": "a=b,client_secret=x"}})
    )


@pytest.mark.parametrize(
    "name",
    [*sorted(SHOWN), "password", "sslpassword", "oauth_client_secret", "scram_client_key", "passwd", "pass"],
)
def test_the_parameters_of_a_dsn_are_refused_that_cdcd_itself_hides(
    judge: jsonschema.Draft7Validator, name: str
) -> None:
    is_secret = name not in SHOWN
    for dsn in (
        f"postgresql://u@h/d?{name}=x",
        f"postgresql://u@h:5432/d?sslmode=require&{name}=x&application_name=a",
        f"host=h user=u {name}=x",
        f"{name} = 'x' host=h",
    ):
        assert judge.is_valid(config(source={"dsn": dsn})) != is_secret, dsn
        assert judge.is_valid(config(snapshot={"from": dsn})) != is_secret, dsn


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p@h/d",
        "POSTGRESQL://u:p@h/d",
        "postgres://:p@h/d",
        "postgresql://u:p/w@h/d",
        "postgresql://u:p?w@h/d",
        "postgresql://u:p@w@h/d",
        "postgresql:///d?user=u&pass%77ord=x",
        "postgresql:///d?PASSWORD=x",
    ],
)
def test_a_dsn_with_a_password_is_refused(judge: jsonschema.Draft7Validator, dsn: str) -> None:
    assert not judge.is_valid(config(source={"dsn": dsn}))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u@h1:5432,h2:5432/d?target_session_attrs=primary",
        "postgresql://u@[::1]:5432/d",
        "postgresql://h:5432/d?user=u@example.com",
        "postgresql://h:5432/d?oauth_issuer=https://idp:8443/x&user=u@example.com",
        "postgresql://u%40example.com@h/d?options=-c%20search_path%3Da",
        "service=shop passfile=/etc/cdcd/pgpass",
    ],
)
def test_a_dsn_without_a_password_is_accepted(judge: jsonschema.Draft7Validator, dsn: str) -> None:
    judge.validate(config(source={"dsn": dsn}))


@pytest.mark.parametrize(
    "url",
    ["https://u:p@r.example.com", "https://r.example.com,https://u:p@s.example.com", "https://r?token=x"],
)
def test_the_credentials_in_the_address_of_a_registry_are_refused(
    judge: jsonschema.Draft7Validator, url: str
) -> None:
    assert not judge.is_valid(config(registry={"url": url}))
    judge.validate(config(registry={"url": "https://r:8081/a,https://s:8081/a"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((f"{prefix}{name}", "x") for name in sorted(SECRETS) for prefix in ("", "aws_", "azure_storage_")),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("proxy_url", "http://u:p@proxy:3128"),
        ("endpoint", "u:p@s3.example.com"),
        ("service_account", ' {"private_key": "x"}'),
    ],
)
def test_the_secrets_of_a_storage_are_refused(
    judge: jsonschema.Draft7Validator, name: str, value: str
) -> None:
    assert not judge.is_valid({"mirror": {"targetOptions": {name: value}}})


@pytest.mark.parametrize(
    ("target", "is_accepted"),
    [
        ("s3://lake/shop", True),
        ("abfss://lake@account.dfs.core.windows.net/shop", True),
        ("hdfs://node:8020/user/a@b", True),
        ("/data/shop", True),
        ("S3://key:secret@lake/shop", False),
        ("s3://key:sec/ret@lake/shop", False),
    ],
)
def test_a_target_with_a_key_is_refused(
    judge: jsonschema.Draft7Validator, target: str, is_accepted: bool
) -> None:
    assert judge.is_valid({"mirror": {"target": target}}) is is_accepted
