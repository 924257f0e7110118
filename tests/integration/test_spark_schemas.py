"""Schemas for Spark's readers: a real registry behind TLS and passwords, and the schema topic of a daemon.

The judges are the registry's own HTTP interface and the daemon's admin port.
"""

from __future__ import annotations

import base64
import json
import pickle
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import CdcdError, ConfigError, RegistryRefused, RegistryUnavailable, SparkReadError
from cdcd.spark.clients.connection import Connection, RegistryAccess, SchemaAccess
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.decoding import registry_schemas, schemas, topic_schemas
from cdcd.spark.decoding.schema_source import SchemaSource
from cdcd.spark.decoding.schemas import SchemaSet, newest_schema, schema_by_id, source_of, topic_versions
from tests.integration.conftest import NewDaemon
from tests.integration.test_schema_topic import Writer
from tests.spark.events import register_schema
from tests.support.nightly import nightly
from tests.support.registry_door import Door
from tests.support.stack import run
from tests.support.topics import new_name
from tests.support.waiting import eventually

V1: dict[str, Any] = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
KEY: dict[str, Any] = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
CANARY = "canary-5f3a91"
BASIC = "Basic " + base64.b64encode(f"spark:{CANARY}".encode()).decode()


@pytest.fixture(autouse=True)
def _nothing_cached() -> Iterator[None]:
    """Forget the sources of other tests: a port may be used again."""
    yield
    for cache in (schemas.source_of, schemas.schema_by_id):
        cache.cache_clear()


@pytest.fixture
def topic() -> str:
    return new_name("shop") + ".public.orders"


@pytest.fixture
def ids(registry: SchemaRegistry, topic: str) -> list[int]:
    """Register two versions of the topic's values and one of its keys; return their ids."""
    value, key = f"{topic}-value", f"{topic}-key"
    return [
        register_schema(registry.url, value, V1),
        register_schema(registry.url, value, V2),
        register_schema(registry.url, key, KEY),
    ]


@pytest.fixture
def door(registry: SchemaRegistry, tmp_path: Path) -> Iterator[Door]:
    """A registry that speaks TLS and asks for a certificate and a password."""
    with Door(registry.url, tmp_path, wants_certificate=True) as door:
        door.opens_to = BASIC
        yield door


def connected(folder: Path, url: str, **over: str) -> Connection:
    """Return a connection whose registry needs everything that `door` asks for; "" removes an option."""
    (folder / "password").write_text(f"{CANARY}\n")
    (folder / "key-password").write_text("of the key\n")
    options = {
        "brokers": "kafka:9092",
        "prefix": "shop",
        "schema.registry.url": url,
        "schema.registry.ssl.ca.location": f"{folder}/ca.crt",
        "schema.registry.ssl.certificate.location": f"{folder}/client.crt",
        "schema.registry.ssl.key.location": f"{folder}/client.key",
        "schema.registry.ssl.key.password": f"file:{folder}/key-password",
        "basic.auth.user.info": f"spark:file:{folder}/password",
        **{f"schema.registry.{name.replace('_', '.')}": value for name, value in over.items()},
    }
    return connection_from({name: value for name, value in options.items() if value})


def access(folder: Path, url: str, **over: str) -> SchemaAccess:
    """Return the source of the schemas of `connected`."""
    found = connected(folder, url, **over).schemas
    assert found is not None
    return found


def in_another_process(one: Any) -> Any:
    """Return a copy as an executor gets it, whose caches are empty."""
    sent = pickle.dumps(one)
    assert CANARY.encode() not in sent
    schemas.source_of.cache_clear()
    schemas.schema_by_id.cache_clear()
    return pickle.loads(sent)


# --- a registry --------------------------------------------------------------------------------------------------


def test_all_versions_of_a_topic_come_from_a_registry_with_tls_and_a_password(
    registry: SchemaRegistry, door: Door, tmp_path: Path, topic: str, ids: list[int]
) -> None:
    """The first URL is dead: the next one is asked."""
    given = access(tmp_path, f"https://127.0.0.1:{free_port()},{door.url}")
    found = topic_versions(given, topic)
    assert [(one.version, one.schema_id, json.loads(one.text)) for one in found.values] == [
        (1, ids[0], V1),
        (2, ids[1], V2),
    ]
    assert [(one.version, one.schema_id, json.loads(one.text)) for one in found.keys] == [(1, ids[2], KEY)]
    assert newest_schema(given, f"{topic}-value") == V2
    assert newest_schema(given, f"{topic}-none") is None
    assert {asked.authorization for asked in door.asked} == {BASIC}
    none = topic_versions(given, new_name("other"))
    assert (none.values, none.keys) == ((), ())


def test_an_executor_fetches_only_what_the_driver_did_not_send(
    door: Door, tmp_path: Path, topic: str, ids: list[int], registry: SchemaRegistry
) -> None:
    sent = in_another_process(SchemaSet.of(access(tmp_path, door.url), [topic]))
    door.asked.clear()
    assert [sent[number] for number in ids] == [V1, V2, KEY]
    assert door.asked == []
    newer = {**V2, "fields": [*V2["fields"], {"name": "more", "type": ["null", "long"], "default": None}]}
    later = register_schema(registry.url, f"{topic}-value", newer)
    assert [sent[later], sent[later]] == [newer, newer]
    (asked,) = door.asked
    assert asked.path.endswith(f"/schemas/ids/{later}")


def test_one_client_serves_a_process(door: Door, tmp_path: Path, ids: list[int]) -> None:
    """Equal connections have one client; no key of a cache has a secret."""
    first, second = access(tmp_path, door.url), access(tmp_path, door.url)
    assert source_of(first) is source_of(pickle.loads(pickle.dumps(second)))
    assert schema_by_id(first, ids[0]) is schema_by_id(second, ids[0])
    assert CANARY not in repr(first)


def test_a_rotated_password_is_read_again(door: Door, tmp_path: Path, ids: list[int]) -> None:
    given = access(tmp_path, door.url)
    assert schema_by_id(given, ids[0]) == V1
    door.opens_to = "Basic " + base64.b64encode(b"spark:rotated").decode()
    (tmp_path / "password").write_text("rotated\n")
    assert schema_by_id(given, ids[1]) == V2


def test_a_bearer_token_of_the_configuration(
    registry: SchemaRegistry, tmp_path: Path, ids: list[int]
) -> None:
    (tmp_path / "token").write_text(f"{CANARY}\n")
    with Door(registry.url) as door:
        door.opens_to = f"Bearer {CANARY}"
        (tmp_path / "cdcd.yaml").write_text(f"""\
name: shop
sink: {{bootstrap_servers: "kafka:9092"}}
registry: {{url: "{door.url}", token_file: {tmp_path}/token}}
""")
        given = connection_from({"config": str(tmp_path / "cdcd.yaml")}, environ={}).schemas
        assert given is not None
        assert schema_by_id(given, ids[0]) == V1


# --- errors, each with what to do --------------------------------------------------------------------------------


def _refused(given: SchemaAccess, ask: Callable[[SchemaSource], object]) -> CdcdError:
    with pytest.raises(CdcdError) as caught:
        ask(source_of(given))
    assert CANARY not in str(caught.value)
    return caught.value


def test_an_unknown_id_is_the_wrong_registry(door: Door, tmp_path: Path) -> None:
    error = _refused(access(tmp_path, door.url), lambda source: source.by_id(2**31 - 1))
    assert isinstance(error, RegistryRefused)
    assert f"no schema with this id [schema_id={2**31 - 1}" in str(error)
    assert "read from the registry that cdcd writes to" in error.advice


def test_a_wrong_password_is_refused_at_once(door: Door, tmp_path: Path, ids: list[int]) -> None:
    given = access(tmp_path, door.url)
    (tmp_path / "password").write_text("wrong-canary")
    error = _refused(given, lambda source: source.by_id(ids[0]))
    assert "refuses the login: who are you? " in str(error)
    assert "correct basic.auth.user.info" in error.advice
    assert "wrong-canary" not in str(error)
    assert len(door.asked) == 1, "a refusal is not repeated"


@pytest.mark.parametrize(
    ("over", "host", "words"),
    [
        ({}, "localhost", "Hostname mismatch"),
        nightly({"ssl_ca_location": ""}, "127.0.0.1", "certificate verify failed"),
        ({"ssl_certificate_location": "stranger.crt"}, "127.0.0.1", "UNKNOWN_CA"),
    ],
    ids=["another name", "an unknown authority", "a stranger's certificate"],
)
def test_a_certificate_that_does_not_fit_is_refused_at_once(
    over: dict[str, str], host: str, words: str, door: Door, tmp_path: Path, ids: list[int]
) -> None:
    if "ssl_certificate_location" in over:
        over = {
            "ssl_certificate_location": f"{tmp_path}/stranger.crt",
            "ssl_key_location": f"{tmp_path}/stranger.key",
            "ssl_key_password": "",
        }
    given = access(tmp_path, door.url.replace("127.0.0.1", host), **over)
    error = _refused(given, lambda source: source.by_id(ids[0]))
    assert isinstance(error, RegistryRefused)
    assert words.lower() in str(error).lower().replace(" ca", "_ca")
    assert "let schema.registry.ssl.ca.location name" in error.advice
    assert door.asked == []


class _Page(BaseHTTPRequestHandler):
    """Answers as a web server that is no registry; `status` and `body` are its answer."""

    status, body = 200, b"<html>Welcome</html>"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>Welcome</html>"),
        (404, b"Not Found"),
        nightly(302, b""),
        nightly(200, b'{"schema": 1, "x": []}'),
    ],
)
def test_another_server_is_named_as_one(status: int, body: bytes) -> None:
    page = type("Page", (_Page,), {"status": status, "body": body})
    server = HTTPServer(("127.0.0.1", 0), page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        given = RegistryAccess(f"http://127.0.0.1:{server.server_port}/wrong")
        error = _refused(given, lambda source: source.versions("shop-value"))
        assert isinstance(error, RegistryRefused)
        assert "does not answer as a schema registry" in str(error)
        assert f"url={given.url}" in str(error)
        assert "correct the registry's URL and its path" in error.advice
    finally:
        server.shutdown()
        server.server_close()


def test_an_outage_is_waited_for_a_limited_time_and_logged_once(
    registry: SchemaRegistry,
    monkeypatch: pytest.MonkeyPatch,
    ids: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(registry_schemas, "PAUSE_S", 0.1)
    with Door(registry.url) as door:
        given, answers = RegistryAccess(door.url), [503, 503, None]
        door.status = 503

        def comes_back(_asked: object) -> bool:
            return (answers.pop(0) if len(answers) > 1 else answers[0]) is not None

        door.is_answered_for = comes_back
        assert json.loads(source_of(given).by_id(ids[0])) == V1
        (logged,) = (one.getMessage() for one in caplog.records if one.name == "cdcd.spark.registry")
        assert logged.startswith("trying again for 120 s: CDCD-REGISTRY-UNAVAILABLE")
        door.is_answered_for = lambda _asked: True
        monkeypatch.setattr(registry_schemas, "RETRY_TIMEOUT_S", 0.5)
        failing = _refused(given, lambda source: source.by_id(ids[1]))
        assert isinstance(failing, RegistryUnavailable)
        door.shut()
        away = _refused(given, lambda source: source.by_id(ids[1]))
    assert isinstance(away, RegistryUnavailable)
    assert "cannot be reached" in str(away)
    assert "start the registry" in away.advice


def test_a_connection_without_a_registry_says_so() -> None:
    with pytest.raises(ConfigError, match=r"no source of schemas.*schema\.registry\.url"):
        schemas.access_of(connection_from({"brokers": "kafka:9092", "prefix": "shop"}))


def test_a_key_without_its_password_is_named(door: Door, tmp_path: Path) -> None:
    given = access(tmp_path, door.url)
    (tmp_path / "key-password").write_text("wrong-canary")
    error = _refused(given, lambda source: source.by_id(1))
    assert isinstance(error, ConfigError)
    assert "refuses its properties" in str(error)
    assert "wrong-canary" not in str(error)


# --- without a registry ------------------------------------------------------------------------------------------


def test_the_schema_topic_has_what_the_admin_port_serves(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    """The daemon's configuration is the connection. The schemas come from Kafka, also while the daemon is down."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')")
    with new_daemon(postgres, database, registry="none") as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        given = connection_from({"config": str(daemon.config_path)}, environ={}).schemas
        assert given is not None
        before = topic_versions(given, topic)
        assert [one.version for one in before.values] == [1]
        run(postgres, database, "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'w', 3)")
        served = _served_versions(daemon.port, f"{topic}-value", 2)
        after = topic_versions(given, topic)
        assert [(one.version, one.schema_id, one.text) for one in after.values] == served
        assert [(one.version, one.schema_id, one.text) for one in after.keys] == _served_versions(
            daemon.port, f"{topic}-key", 1
        )
        by_port = topic_versions(RegistryAccess(f"http://127.0.0.1:{daemon.port}"), topic)
        assert (by_port.values, by_port.keys) == (after.values, after.keys)
        daemon.kill()
    sent = in_another_process(SchemaSet(given))
    assert sent[served[1][1]] == json.loads(served[1][2])
    assert newest_schema(given, f"{topic}-none") is None


def _served_versions(port: int, subject: str, count: int) -> list[tuple[int, int, str]]:
    """Return the versions that the admin port serves, once there are as many."""

    def asked(path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/subjects/{subject}/versions{path}", timeout=30
        ) as got:
            return json.load(got)

    numbers = eventually(
        lambda: found if len(found := asked("")) == count else None, "the versions are served"
    )
    served = [asked(f"/{number}") for number in numbers]
    return [(one["version"], one["id"], one["schema"]) for one in served]


def test_an_id_that_is_not_committed_yet_is_waited_for(kafka: KafkaBroker) -> None:
    prefix = new_name("shop")
    writer = Writer(kafka, prefix, new_name("slot")).open()
    try:
        number = writer.announce(f"{prefix}.public.t-value", V1)
        given = connection_from(
            {"brokers": kafka.bootstrap, "prefix": prefix, "registry": "none"}, environ={}
        ).schemas
        assert given is not None
        assert source_of(given).versions(f"{prefix}.public.t-value") == []
        found: list[str] = []
        requesting = threading.Thread(target=lambda: found.append(source_of(given).by_id(number)))
        requesting.start()
        writer.commit()
        requesting.join(60)
        assert [json.loads(text) for text in found] == [V1]
    finally:
        writer.close()


def test_a_topic_without_the_id_and_a_missing_topic_are_named(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_schemas, "FOUND_WITHIN_S", 0.0)
    prefix = new_name("shop")
    options = {"brokers": kafka.bootstrap, "prefix": prefix, "registry": "none"}
    given = connection_from(options, environ={}).schemas
    assert given is not None
    missing = _refused(given, lambda source: source.by_id(7))
    assert isinstance(missing, SparkReadError)
    assert f"there is no schema topic [topic={prefix}.__schemas]" in str(missing)
    assert "schema.registry.url" in missing.advice
    writer = Writer(kafka, prefix, new_name("slot")).open()
    writer.close()
    unknown = _refused(given, lambda source: source.by_id(7))
    assert "no schema with this id" in str(unknown)
    assert "schema_id=7" in str(unknown)
