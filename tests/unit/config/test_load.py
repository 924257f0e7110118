"""Loading a valid file and environment: precedence, derived names, kinds of values, settings of the packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.config import Config, load, load_config
from cdcd.errors import ConfigError, SecretUnreadable
from tests.unit.config.cases import GOOD


def config_of(folder: Path, text: str = GOOD, environ: dict[str, str] | None = None) -> Config:
    path = folder / "prod.yaml"
    path.write_text(text)
    return load_config(path, environ or {})


def test_a_variable_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    text = GOOD + "admin: {host: 10.0.0.1, port: 1}\n"
    config = config_of(tmp_path, text, {"CDCD_ADMIN__PORT": "2"})
    assert (config.admin.host, config.admin.port) == ("10.0.0.1", 2)
    assert config.log.level == "info"


def test_a_mapping_in_a_variable_is_laid_over_the_files_key_by_key(tmp_path: Path) -> None:
    text = GOOD.replace('"kafka:9092"}', '"kafka:9092", properties: {linger.ms: 5, compression.type: lz4}}')
    config = config_of(
        tmp_path, text, {"CDCD_SINK__PROPERTIES": '{"linger.ms": 9, "socket.keepalive.enable": true}'}
    )
    assert config.sink.properties == {
        "linger.ms": "9",
        "compression.type": "lz4",
        "socket.keepalive.enable": "true",
    }


def test_a_variable_sets_an_option_where_the_file_has_no_registry(tmp_path: Path) -> None:
    text = GOOD.replace('{url: "http://registry:8081"}', "none")
    registry = config_of(tmp_path, text, {"CDCD_REGISTRY__INCOMPATIBLE": "register_with_none"}).registry
    assert (registry.is_none, registry.incompatible) == (True, "register_with_none")
    assert config_of(tmp_path, text, {"CDCD_REGISTRY__URL": "http://r"}).registry.url == "http://r"
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, text, {"CDCD_REGISTRY__USERNAME": "cdcd"})
    assert any("username" in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("one, two", ("one", "two")),
        ("one", ("one",)),
        ('["one", "two"]', ("one", "two")),
        (' ["odd \\"name\\", with, commas", " b"]', ('odd "name", with, commas', " b")),
    ],
)
def test_a_list_in_a_variable_has_commas_or_is_json(
    written: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    config = config_of(tmp_path, environ={"CDCD_SOURCE__PUBLICATION__NAMES": written})
    assert config.source.publication.names == names


@pytest.mark.parametrize(
    ("written", "names"),
    [("one", ("one",)), ("""['odd "name", with, commas', b]""", ('odd "name", with, commas', "b"))],
)
def test_a_name_in_a_file_is_taken_as_it_is(written: str, names: tuple[str, ...], tmp_path: Path) -> None:
    text = GOOD.replace('/shop"}', f'/shop", publication: {{names: {written}}}}}')
    assert config_of(tmp_path, text).source.publication.names == names


def test_an_empty_variable_of_an_optional_is_nothing(tmp_path: Path) -> None:
    assert config_of(tmp_path, environ={"CDCD_SOURCE__PASSWORD_FILE": ""}).source.password_file is None


def test_the_environment_can_give_every_required_option(tmp_path: Path) -> None:
    environ = {
        "CDCD_NAME": "shop",
        "CDCD_SOURCE__DSN": "postgresql://cdcd@db/shop",
        "CDCD_SINK__BOOTSTRAP_SERVERS": "kafka:9092",
        "CDCD_REGISTRY__URL": "http://registry:8081",
    }
    assert config_of(tmp_path, "log: {level: debug}\n", environ).source.slot.name == "cdcd_shop"


def test_variables_that_kubernetes_makes_for_a_service_named_cdcd_are_not_options(tmp_path: Path) -> None:
    environ = {
        "CDCD_SERVICE_HOST": "10.0.0.7",
        "CDCD_SERVICE_PORT": "8080",
        "CDCD_SERVICE_PORT_HTTP_METRICS": "8080",
        "CDCD_PORT": "tcp://10.0.0.7:8080",
        "CDCD_PORT_8080_TCP_ADDR": "10.0.0.7",
        "CDCD_SHOP_SERVICE_HOST": "10.0.0.7",
    }
    assert config_of(tmp_path, environ=environ).admin.port == 8080


def test_slot_publication_and_transactional_id_are_named_after_name(tmp_path: Path) -> None:
    config = config_of(tmp_path, GOOD.replace("name: shop", "name: shop_2_eu"))
    assert config.source.slot.name == "cdcd_shop_2_eu"
    assert config.source.publication.names == ("cdcd_shop_2_eu",)
    assert config.sink.transactional_id == "cdcd-cdcd_shop_2_eu"
    assert config.progress_topic == "shop_2_eu.__progress"
    assert config.dead_letter_topic is None, "without dead letters a row that is too large halts"


NAMES = ("shop_eu", "shop-eu", "shop.eu", "Shop_EU", "shop__eu", "s" * 58, "s" * 59, "s" * 60)


def test_no_two_names_give_one_slot_publication_or_transactional_id(tmp_path: Path) -> None:
    """F80: a name is refused if another could derive the same slot name; slot and publication may be configured."""
    derived = set()
    for name in NAMES:
        text = GOOD.replace("name: shop", f"name: {name}")
        try:
            config = config_of(tmp_path, text)
        except ConfigError as error:
            (line,) = error.problems
            assert line.startswith(f"name: slot and publication cannot be named after {name!r}")
            given = {"CDCD_SOURCE__SLOT__NAME": "mine", "CDCD_SOURCE__PUBLICATION__NAMES": "mine"}
            assert config_of(tmp_path, text, environ=given).sink.transactional_id == "cdcd-mine"
            continue
        names = (config.source.slot.name, *config.source.publication.names, config.sink.transactional_id)
        assert names == (f"cdcd_{name}", f"cdcd_{name}", f"cdcd-cdcd_{name}"), (
            "the same names as in earlier versions"
        )
        assert derived.isdisjoint(names)
        derived |= set(names)
    assert len(derived) == 2 * 3, "shop_eu, shop__eu and 58 letters"


def test_dead_letters_have_a_topic_where_they_are_wanted(tmp_path: Path) -> None:
    text = GOOD.replace('"kafka:9092"}', '"kafka:9092", too_large: dead_letter}')
    assert config_of(tmp_path, text).dead_letter_topic == "shop.__dead_letters"


def test_the_transactional_id_follows_the_slot(tmp_path: Path) -> None:
    config = config_of(tmp_path, environ={"CDCD_SOURCE__SLOT__NAME": "other"})
    assert config.sink.transactional_id == "cdcd-other"
    assert config.source.publication.names == ("cdcd_shop",)


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("16MiB", 16 << 20), ("64kB", 64_000), ("1 GiB", 1 << 30), ("4096", 4096), ("12B", 12)],
)
def test_sizes_have_units(written: str, size_bytes: int, tmp_path: Path) -> None:
    assert config_of(tmp_path, GOOD + f"buffer: {{memory: {written}}}\n").buffer.memory == size_bytes


@pytest.mark.parametrize(
    ("written", "streaming"), [("on", "on"), ("off", "off"), ("true", "on"), ("auto", "auto")]
)
def test_on_and_off_are_words(written: str, streaming: str, tmp_path: Path) -> None:
    text = GOOD.replace('/shop"}', f'/shop", protocol: {{streaming: {written}}}}}')
    assert config_of(tmp_path, text).source.protocol.streaming == streaming
    variables = {"CDCD_SOURCE__PROTOCOL__STREAMING": written}
    assert config_of(tmp_path, GOOD, variables).source.protocol.streaming == streaming


def test_settings_of_the_rooms_carry_every_option(tmp_path: Path) -> None:
    secret = tmp_path / "kafka-password"
    secret.write_text("first\n")
    text = f"""\
name: shop
source:
  dsn: postgresql://cdcd:pw%40@[::1]:6432,db2/shop?sslmode=require
  slot: {{failover: true}}
  publication: {{names: [a, b]}}
  protocol: {{two_phase: true}}
sink:
  bootstrap_servers: kafka-0:9092, kafka-1:9092
  delivery: at_least_once
  transaction_timeout_ms: 60000
  topics: {{create: false, partitions: 2, replication_factor: 1, properties: {{retention.ms: -1}}}}
  properties: {{linger.ms: 5}}
  secret_files: {{sasl.password: {secret}}}
registry:
  url: http://registry:8081/apis/ccompat/v7/
  auto_register: false
  compatibility: FULL
  username: u
  password: p
"""
    config = config_of(tmp_path, text)
    source, sink = config.source_settings(), config.sink_settings()
    assert source.dsn == "postgresql://cdcd@[::1]:6432,db2/shop?sslmode=require"
    assert source.read_password() == "pw@"
    assert (source.slot, source.publications) == ("cdcd_shop", ("a", "b"))
    assert (source.failover, source.two_phase) == (True, True)
    assert sink.bootstrap_servers == "kafka-0:9092,kafka-1:9092"
    assert (sink.delivery, sink.slot, sink.transaction_timeout_ms) == ("at_least_once", "cdcd_shop", 60000)
    assert (sink.transactional_id, sink.progress_topic) == ("cdcd-cdcd_shop", "shop.__progress")
    assert sink.properties == {"linger.ms": "5", "sasl.password": "first"}
    topics = config.topic_settings()
    assert (topics.create, topics.partitions, topics.replication_factor) == (False, 2, 1)
    assert topics.properties == {"retention.ms": "-1"}
    registry = config.registry_settings()
    assert (registry.url, registry.auto_register) == ("http://registry:8081/apis/ccompat/v7", False)
    assert (registry.compatibility, registry.username, registry.read_password()) == ("FULL", "u", "p")


def test_a_secret_file_is_read_at_each_use(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("first\n")
    config = config_of(tmp_path, environ={"CDCD_SOURCE__PASSWORD_FILE": str(secret)})
    read = config.source_settings().read_password
    assert read() == "first"
    secret.write_text(" second, with blanks \r\n")
    assert read() == " second, with blanks "
    secret.unlink()
    with pytest.raises(SecretUnreadable, match="CDCD-SECRET-UNREADABLE"):
        read()


def test_origins_name_line_and_variable(tmp_path: Path) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text(GOOD + "admin:\n  host: 10.0.0.1\n  port: 1\n")
    origins = load(path, {"CDCD_ADMIN__PORT": "2"}).origins
    assert origins.exactly(("admin", "host")) == f"{path}:6"
    assert origins.exactly(("admin", "port")) == "CDCD_ADMIN__PORT"
    assert origins.exactly(("log", "level")) is None
