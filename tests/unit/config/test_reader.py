"""A reader's part of the configuration: checked by the daemon's models, without its files and other sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.config import load_reader, value_at
from cdcd.errors import ConfigError

TEXT = """\
name: shop
source: {dsn: "postgresql://cdcd@db/shop", password_file: /nowhere/postgres}
sink:
  bootstrap_servers: kafka:9092
  properties: {security.protocol: SASL_SSL, compression.type: zstd}
  secret_files: {sasl.password: /nowhere/kafka}
registry: {url: "https://one, https://two", username: cdcd, password_file: /nowhere/registry}
snapshot: {workers: 3}
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "cdcd.yaml"
    path.write_text(text)
    return path


def test_a_reader_needs_neither_secret_files_nor_the_other_sections(tmp_path: Path) -> None:
    config = load_reader(_file(tmp_path, TEXT), {}).config
    assert config.name == "shop"
    assert config.sink.bootstrap_servers == "kafka:9092"
    assert config.sink.secret_files == {"sasl.password": Path("/nowhere/kafka")}
    assert config.registry.url == "https://one,https://two"
    without_source = "\n".join(line for line in TEXT.splitlines() if not line.startswith("source"))
    assert load_reader(_file(tmp_path, without_source), {}).config == config


def test_variables_override_the_file_as_they_do_for_the_daemon(tmp_path: Path) -> None:
    environ = {"CDCD_SINK__BOOTSTRAP_SERVERS": "other:9092", "CDCD_SOURCE__DSN": "postgresql://x@y/z"}
    loaded = load_reader(_file(tmp_path, TEXT), environ)
    assert loaded.config.sink.bootstrap_servers == "other:9092"
    assert loaded.variables["sink", "bootstrap_servers"] == "CDCD_SINK__BOOTSTRAP_SERVERS"


def test_a_variable_sets_an_option_where_the_file_has_no_registry(tmp_path: Path) -> None:
    path = _file(tmp_path, TEXT[: TEXT.index("registry:")] + "registry: none\n")
    environ = {"CDCD_REGISTRY__COMPATIBILITY": "NONE"}
    registry = load_reader(path, environ).config.registry
    assert (registry.is_none, registry.compatibility) == (True, "NONE")
    assert value_at(path, environ, ("registry", "url")) == "none"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("kafka:9092", "kafka", "sink.bootstrap_servers: server 1 is not HOST:PORT (from {}:4)"),
        ("registry:", "registryy:", "registryy: unknown key (from {}:7) - did you mean registry?"),
        ("registry:", "# registry:", "registry: required, but not set - add it to {}"),
        ("security.protocol: SASL_SSL", "acks: 1", "cdcd needs acks=all"),
    ],
)
def test_a_mistake_has_the_daemons_message(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = _file(tmp_path, TEXT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_reader(path, {})
    assert any(problem.format(path) in line for line in caught.value.problems), caught.value.problems


def test_a_single_value_is_read_by_its_key(tmp_path: Path) -> None:
    path = _file(tmp_path, TEXT)
    key = ("sink", "properties", "security.protocol")
    assert value_at(path, {}, key) == "SASL_SSL"
    assert value_at(path, {"CDCD_SINK__PROPERTIES": '{"security.protocol": "SSL"}'}, key) == "SSL"
    with pytest.raises(ConfigError, match=r"has no registry\.password"):
        value_at(path, {}, ("registry", "password"))
