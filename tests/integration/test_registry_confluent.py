"""The registry's client with a real registry: ids, levels, refusals, unavailability (F55)."""

from __future__ import annotations

import base64
import gc
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka.schema_registry import RegisteredSchema

from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import ConfigError, RegistryRefused, RegistryUnavailable, SchemaIncompatible
from cdcd.registry import confluent
from cdcd.registry.confluent import Registry
from cdcd.registry.confluent_client import ConfluentClient
from cdcd.registry.settings import RegistrySettings
from tests.support.topics import new_name

V1: dict[str, Any] = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
OPTIONAL = {"name": "note", "type": ["null", "string"], "default": None}
V2 = {**V1, "fields": [*V1["fields"], OPTIONAL]}
INCOMPATIBLE = {**V1, "fields": [*V1["fields"], {"name": "must", "type": "string"}]}


def ask(url: str, body: dict[str, str] | None = None, method: str = "GET") -> Any:
    """Send a request in plain HTTP, without the client: the judge."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with opener.open(request, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture
def subject() -> str:
    return new_name("shop.public.orders") + "-value"


@pytest.fixture
def requests() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def client(registry: SchemaRegistry, requests: list[tuple[str, str]]) -> Registry:
    return Registry(
        RegistrySettings(registry.url), lambda operation, code: requests.append((operation, code))
    )


def test_the_id_is_the_one_that_readers_look_up(
    registry: SchemaRegistry, client: Registry, subject: str
) -> None:
    schema_id = client.schema_id(subject, V1)
    assert json.loads(ask(f"{registry.url}/schemas/ids/{schema_id}")["schema"]) == V1
    assert ask(f"{registry.url}/subjects/{subject}/versions/latest")["id"] == schema_id


def test_a_created_subject_gets_its_own_level(
    registry: SchemaRegistry, client: Registry, subject: str
) -> None:
    client.schema_id(subject, V1)
    assert ask(f"{registry.url}/config/{subject}")["compatibilityLevel"] == "BACKWARD_TRANSITIVE"


def test_a_subject_that_exists_keeps_its_level(registry: SchemaRegistry, subject: str) -> None:
    Registry(RegistrySettings(registry.url, compatibility="NONE")).schema_id(subject, V1)
    Registry(RegistrySettings(registry.url)).schema_id(subject, INCOMPATIBLE)
    assert ask(f"{registry.url}/config/{subject}")["compatibilityLevel"] == "NONE"


def test_an_id_is_asked_for_once(client: Registry, subject: str, requests: list[tuple[str, str]]) -> None:
    first = client.schema_id(subject, V1)
    asked = len(requests)
    assert client.schema_id(subject, dict(V1)) == first
    assert len(requests) == asked
    assert ("register", "200") in requests


def test_a_subject_found_absent_before_is_registered_without_a_look_up(
    client: Registry, requests: list[tuple[str, str]]
) -> None:
    """Hundreds of tables may come at once; a registry that knows no level without a schema is queried once for it."""
    asked = []
    for _ in range(2):
        subject = new_name("shop.public.orders") + "-key"
        assert client.latest(subject) is None
        client.schema_id(subject, V1)
        asked.append([operation for operation, _ in requests])
        requests.clear()
    assert "lookup" not in asked[0] + asked[1]
    assert sorted(asked[1]) == ["latest", "register", "set_compatibility", "versions"]


def test_a_restart_finds_the_id_without_registering(
    registry: SchemaRegistry, client: Registry, subject: str, requests: list[tuple[str, str]]
) -> None:
    first = Registry(RegistrySettings(registry.url)).schema_id(subject, V1)
    assert client.schema_id(subject, V1) == first
    assert requests == [("lookup", "200")]


def test_a_compatible_change_is_a_new_version(
    registry: SchemaRegistry, client: Registry, subject: str
) -> None:
    assert client.schema_id(subject, V1) != client.schema_id(subject, V2)
    assert ask(f"{registry.url}/subjects/{subject}/versions") == [1, 2]


def test_the_newest_schema_of_a_subject_is_as_it_was_registered(
    registry: SchemaRegistry, subject: str
) -> None:
    writer = Registry(RegistrySettings(registry.url))
    assert writer.latest(subject) is None
    writer.schema_id(subject, V1)
    assert Registry(RegistrySettings(registry.url)).latest(subject) == V1
    writer.schema_id(subject, V2)
    assert writer.latest(subject) == V2


@pytest.mark.parametrize("schema", ["string", ["null", "string"]])
def test_a_newest_schema_of_another_that_is_no_record(
    registry: SchemaRegistry, subject: str, schema: Any
) -> None:
    ask(f"{registry.url}/subjects/{subject}/versions", {"schema": json.dumps(schema)}, "POST")
    assert Registry(RegistrySettings(registry.url)).latest(subject) == {"type": schema}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("PROTOBUF", 'syntax = "proto3"; message Row { int32 id = 1; }'),
        ("JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'),
    ],
)
def test_a_subject_of_another_format_is_refused_with_its_name(
    registry: SchemaRegistry, client: Registry, subject: str, kind: str, text: str
) -> None:
    ask(f"{registry.url}/subjects/{subject}/versions", {"schema": text, "schemaType": kind}, "POST")
    with pytest.raises(RegistryRefused, match="not Avro") as caught:
        client.latest(subject)
    assert caught.value.context["subject"] == subject


def test_a_registry_that_has_lost_a_subject_is_found_out(registry: SchemaRegistry, subject: str) -> None:
    """F55: the ids that cdcd writes would refer to no schema, or to another one."""
    client = Registry(RegistrySettings(registry.url))
    client.verify_next()
    client.schema_id(subject, V1)
    client.verify_next()
    ask(f"{registry.url}/subjects/{subject}", method="DELETE")
    with pytest.raises(RegistryRefused) as caught:
        client.verify_next()
    assert caught.value.context == {"subject": subject}


@pytest.mark.parametrize(("counts_for_s", "checks"), [(1000.0, 1), (0.0, 3)])
def test_the_first_schemas_of_many_tables_need_one_check_in_a_while(
    registry: SchemaRegistry, subject: str, counts_for_s: float, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F55: without a check that counts, each schema needs another one."""
    monkeypatch.setattr(confluent, "_VERIFIED_FOR_S", counts_for_s)
    asked: list[str] = []
    client = Registry(RegistrySettings(registry.url), lambda operation, _code: asked.append(operation))
    for number in range(4):
        client.schema_id(f"{subject}.{number}", V1)
    assert asked.count("versions") == checks
    client.close()
    client.schema_id(f"{subject}.4", V1)
    assert asked.count("versions") == checks + 1, "after another connection the registry may be another one"


def test_an_incompatible_change_is_refused_each_time(client: Registry, subject: str) -> None:
    """F55: an operator decides; a second attempt is refused too."""
    client.schema_id(subject, V1)
    for _ in range(2):
        with pytest.raises(RegistryRefused) as caught:
            client.schema_id(subject, INCOMPATIBLE)
        assert caught.value.context["status"] == 409
        assert caught.value.context["subject"] == subject


def test_the_client_does_not_cache_the_versions_of_a_subject(
    registry: SchemaRegistry,
    client: Registry,
    subject: str,
    requests: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each version is compared with all before it, and requested once; Confluent's client would cache
    each for ever.
    """
    monkeypatch.setattr(client, "_client", ConfluentClient({"url": registry.url}))
    versions = [{**V1, "fields": [*V1["fields"], {**OPTIONAL, "name": f"c{number}"}]} for number in range(12)]
    before = cached_by_the_library()
    ids = [client.schema_id(subject, version) for version in versions]
    assert len(set(ids)) == len(versions)
    assert requests.count(("version", "200")) == len(versions) - 1
    assert cached_by_the_library() <= before + 1


def cached_by_the_library() -> int:
    gc.collect()
    return sum(isinstance(one, RegisteredSchema) for one in gc.get_objects())


def test_an_accepted_incompatible_schema_leaves_the_level_unchanged(
    registry: SchemaRegistry, subject: str
) -> None:
    client = Registry(RegistrySettings(registry.url))
    client.schema_id(subject, V1)
    ask(f"{registry.url}/config/{subject}", {"compatibility": "FULL"}, method="PUT")
    with pytest.raises(SchemaIncompatible):
        client.schema_id(subject, INCOMPATIBLE)
    assert not client.knows(subject, INCOMPATIBLE)
    number = client.schema_id(subject, INCOMPATIBLE, is_forced=True)
    assert client.knows(subject, INCOMPATIBLE)
    assert ask(f"{registry.url}/config/{subject}")["compatibilityLevel"] == "FULL"
    assert Registry(RegistrySettings(registry.url)).schema_id(subject, INCOMPATIBLE) == number


def test_a_level_that_a_kill_has_left_open_is_put_back(registry: SchemaRegistry, subject: str) -> None:
    Registry(RegistrySettings(registry.url)).schema_id(subject, V1)
    ask(f"{registry.url}/config/{subject}", {"compatibility": "NONE"}, method="PUT")
    with pytest.raises(SchemaIncompatible):
        Registry(RegistrySettings(registry.url, registers_incompatible=True)).schema_id(subject, INCOMPATIBLE)
    assert ask(f"{registry.url}/config/{subject}")["compatibilityLevel"] == "BACKWARD_TRANSITIVE"


def test_a_lowered_compatibility_level_is_obeyed(registry: SchemaRegistry, subject: str) -> None:
    client = Registry(RegistrySettings(registry.url))
    client.schema_id(subject, V1)
    ask(f"{registry.url}/config/{subject}", {"compatibility": "NONE"}, method="PUT")
    assert client.schema_id(subject, INCOMPATIBLE)
    assert ask(f"{registry.url}/config/{subject}")["compatibilityLevel"] == "NONE"


def test_without_auto_register_nothing_is_written(registry: SchemaRegistry, subject: str) -> None:
    reader = Registry(RegistrySettings(registry.url, auto_register=False))
    with pytest.raises(RegistryRefused) as caught:
        reader.schema_id(subject, V1)
    assert json.dumps(V1, separators=(",", ":")) in str(caught.value)
    assert subject not in ask(f"{registry.url}/subjects")
    registered = Registry(RegistrySettings(registry.url)).schema_id(subject, V1)
    assert reader.schema_id(subject, V1) == registered


def test_a_subject_with_odd_characters(registry: SchemaRegistry, client: Registry) -> None:
    subject = new_name("shop.public.Order_u0020 Lines%/x") + "-key"
    client.schema_id(subject, V1)
    assert subject in ask(f"{registry.url}/subjects")
    assert ask(f"{registry.url}/subjects/{quote(subject, safe='')}/versions") == [1]


def test_a_schema_that_is_not_avro_is_refused(client: Registry, subject: str) -> None:
    with pytest.raises(RegistryRefused):
        client.schema_id(subject, {"type": "rekord"})


def test_a_registry_that_is_not_there_is_unavailable(requests: list[tuple[str, str]]) -> None:
    settings = RegistrySettings(f"http://127.0.0.1:{free_port()}", request_timeout_s=2.0)
    client = Registry(settings, lambda operation, code: requests.append((operation, code)))
    with pytest.raises(RegistryUnavailable):
        client.schema_id("s", V1)
    assert requests == [("lookup", "unreachable")]
    assert [finding.level for finding in client.check("s")] == ["fail"]


def test_a_server_that_is_no_registry_is_refused(registry: SchemaRegistry) -> None:
    client = Registry(RegistrySettings(registry.url.removesuffix("/apis/ccompat/v7") + "/nothing"))
    with pytest.raises(RegistryRefused):
        client.schema_id("s", V1)


def test_check_says_that_it_answers(client: Registry) -> None:
    assert [(finding.level, finding.subject) for finding in client.check("s")] == [("ok", "registry")]


def test_unknown_properties_are_an_error_of_the_configuration(registry: SchemaRegistry) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.property"):
        Registry(RegistrySettings(registry.url, read_properties=lambda: {"no.such.property": "1"})).schema_id(
            "s", V1
        )


class Door(BaseHTTPRequestHandler):
    """A fake registry that accepts one password and has one schema. The real one here has no accounts."""

    opens_to = "Basic " + base64.b64encode(b"cdcd:new").decode()

    def do_POST(self) -> None:
        is_let_in = self.headers["Authorization"] == self.opens_to
        body = b'{"subject":"s","id":7,"version":1,"schema":"{}"}' if is_let_in else b'{"error_code":40101}'
        self.send_response(200 if is_let_in else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_rotated_password_is_picked_up() -> None:
    """After a 401 the password is read again, and it is never shown."""
    server = HTTPServer(("127.0.0.1", 0), Door)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    passwords = ["canary", "new"]
    url = f"http://127.0.0.1:{server.server_port}"
    client = Registry(RegistrySettings(url, username="cdcd", read_password=lambda: passwords.pop(0)))
    with pytest.raises(RegistryRefused) as caught:
        client.schema_id("s", V1)
    assert caught.value.context["status"] == 401
    assert "canary" not in str(caught.value)
    assert client.schema_id("s", V1) == 7
    server.shutdown()
    server.server_close()
