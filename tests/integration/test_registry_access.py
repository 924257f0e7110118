"""Access to the registry, and the choice among several: TLS, certificates, tokens, OAuth; normalisation
and subjects.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cdcd.config import load_config
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import RegistryRefused, RegistryUnavailable
from cdcd.redaction import clean
from cdcd.registry.confluent import Registry
from cdcd.registry.confluent_client import ConfluentClient
from cdcd.registry.rest import Client, RegistryErrorAnswer, RestClient
from cdcd.registry.settings import RegistrySettings, client_properties
from tests.integration.test_registry_confluent import INCOMPATIBLE, OPTIONAL, V1, V2, ask
from tests.support.registry_door import Door
from tests.support.topics import new_name


@pytest.fixture
def subject() -> str:
    return new_name("shop.public.orders") + "-value"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def client(folder: Path, **options: Any) -> Registry:
    """Return a client made from a configuration file, as the daemon makes it."""
    path = folder / "cdcd.yaml"
    tree = {
        "name": "shop",
        "source": {"dsn": "postgresql://cdcd@db/shop"},
        "sink": {"bootstrap_servers": "kafka:9092"},
        "registry": options,
    }
    path.write_text(json.dumps(tree))
    return Registry(load_config(path, {}).registry_settings())


def secret(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text + "\n")
    return str(path)


@pytest.fixture
def tls(registry: SchemaRegistry, folder: Path) -> Iterator[Door]:
    with Door(registry.url, folder, wants_certificate=True) as door:
        yield door


def test_mutual_tls_lets_in_who_has_a_certificate(
    tls: Door, registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    """The client's key has a password, which is in a file."""
    mine = client(
        folder,
        url=tls.url,
        properties={
            "ssl.ca.location": str(folder / "ca.crt"),
            "ssl.certificate.location": str(folder / "client.crt"),
            "ssl.key.location": str(folder / "client.key"),
        },
        secret_files={"ssl.key.password": secret(folder, "of the key")},
    )
    number = mine.schema_id(subject, V1)
    assert ask(f"{registry.url}/subjects/{subject}/versions/latest")["id"] == number
    assert [finding.level for finding in mine.check("s")] == ["ok"]


@pytest.mark.parametrize("shown", [None, "stranger"], ids=["no certificate", "another authority's"])
def test_mutual_tls_keeps_others_out(shown: str | None, tls: Door, folder: Path, subject: str) -> None:
    properties = {"ssl.ca.location": str(folder / "ca.crt")}
    if shown is not None:
        properties |= {
            "ssl.certificate.location": str(folder / f"{shown}.crt"),
            "ssl.key.location": str(folder / f"{shown}.key"),
        }
    with pytest.raises(RegistryUnavailable):
        client(folder, url=tls.url, properties=properties).schema_id(subject, V1)
    assert tls.asked == []


def test_a_server_of_an_unknown_authority_gets_no_request(
    registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    with Door(registry.url, folder) as door:
        door.opens_to = "Bearer canary"
        with pytest.raises(RegistryUnavailable):
            client(folder, url=door.url, token_file=secret(folder, "canary")).schema_id(subject, V1)
        assert door.asked == []


def test_a_refused_bearer_token_over_tls_is_read_again(
    registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    with Door(registry.url, folder) as door:
        door.opens_to = "Bearer new"
        properties = {"ssl.ca.location": str(folder / "ca.crt")}
        mine = client(folder, url=door.url, token_file=secret(folder, "canary"), properties=properties)
        with pytest.raises(RegistryRefused) as caught:
            mine.schema_id(subject, V1)
        assert caught.value.context["status"] == 401
        assert "canary" not in str(caught.value)
        secret(folder, "new")
        number = mine.schema_id(subject, V1)
        assert ask(f"{registry.url}/subjects/{subject}/versions/latest")["id"] == number
        assert "token" not in repr(mine)


class Issuer(BaseHTTPRequestHandler):
    """Issues a token for the right client's id and secret."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        is_known = (self.headers["Authorization"] or "").startswith("Basic ")
        expires = int(time.time()) + 3600
        answer = {"access_token": "given", "token_type": "Bearer", "expires_in": 3600, "expires_at": expires}
        body = json.dumps(answer if is_known else {"error": "invalid_client"}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_oauth_fetches_its_token(registry: SchemaRegistry, folder: Path, subject: str) -> None:
    issuer = HTTPServer(("127.0.0.1", 0), Issuer)
    threading.Thread(target=issuer.serve_forever, daemon=True).start()
    with Door(registry.url) as door:
        door.opens_to = "Bearer given"
        mine = client(
            folder,
            url=door.url,
            properties={
                "bearer.auth.credentials.source": "OAUTHBEARER",
                "bearer.auth.issuer.endpoint.url": f"http://127.0.0.1:{issuer.server_port}/token",
                "bearer.auth.client.id": "cdcd",
                "bearer.auth.scope": "schemas",
            },
            secret_files={"bearer.auth.client.secret": secret(folder, "canary")},
        )
        assert ask(f"{registry.url}/schemas/ids/{mine.schema_id(subject, V1)}")
    assert clean("you sent given") == "you sent ***", "the token is a secret as well"
    issuer.shutdown()
    issuer.server_close()
    broken = client(
        folder,
        url=registry.url,
        properties={
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.issuer.endpoint.url": f"http://127.0.0.1:{free_port()}/token",
            "bearer.auth.client.id": "cdcd",
            "bearer.auth.scope": "schemas",
            "max.retries": "0",
        },
        secret_files={"bearer.auth.client.secret": secret(folder, "canary")},
    )
    with pytest.raises(RegistryUnavailable) as caught:
        broken.schema_id(subject, V2)
    assert "canary" not in str(caught.value)


def test_of_several_urls_the_next_is_asked_when_one_is_down(
    registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    with Door(registry.url) as door, Door(registry.url) as ailing:
        ailing.status = 503
        urls = f"http://127.0.0.1:{free_port()}, {ailing.url},{door.url}"
        number = client(folder, url=urls).schema_id(subject, V1)
        assert ask(f"{registry.url}/subjects/{subject}/versions/latest")["id"] == number
        assert ailing.asked
        door.shut()
        with pytest.raises(RegistryUnavailable):
            client(folder, url=urls).schema_id(subject, V2)


@pytest.mark.parametrize("subject_suffix", ["", " ä/ö?"])
def test_both_clients_get_the_same_answers(
    registry: SchemaRegistry, subject: str, subject_suffix: str
) -> None:
    """Confluent's own client is the judge of cdcd's."""
    name, missing = subject + subject_suffix, f"{subject}-missing"
    properties = client_properties(RegistrySettings(registry.url))
    ours, theirs = RestClient(properties), ConfluentClient(properties)

    def reported(ask: Callable[[Client], object]) -> list[object]:
        answers: list[object] = []
        for client in (ours, theirs):
            try:
                answers.append(ask(client))
            except RegistryErrorAnswer as error:
                answers.append((error.status, error.code, error.message))
        return answers

    first, second = '"string"', '{"type": "array", "items": "string"}'
    asked: list[Callable[[Client], object]] = [
        lambda client: client.register(name, first, normalize=False),
        lambda client: client.set_level(name, "NONE"),
        lambda client: client.register(name, second, normalize=True),
        lambda client: client.set_level(name, "FULL"),
        lambda client: client.level(name),
        lambda client: client.level(None),
        lambda client: client.register(name, '"int"', normalize=False),  # incompatible
        lambda client: client.register(name, '{"type": "nothing"}', normalize=False),
        lambda client: client.look_up(name, first, normalize=False),
        lambda client: client.look_up(name, '"long"', normalize=False),
        lambda client: client.look_up(missing, first, normalize=False),
        lambda client: client.versions(name),
        lambda client: client.versions(missing),
        lambda client: client.version(name, None),
        lambda client: client.version(name, 1),
        lambda client: client.version(name, 99),
        lambda client: client.version(missing, None),
        lambda client: client.by_id(client.look_up(name, second, normalize=False)),
        lambda client: client.by_id(2**31 - 1),
        lambda client: client.level(missing),
        lambda client: client.set_level(name, "SOMETIMES"),
    ]
    answers = [reported(ask) for ask in asked]
    ours.close()
    theirs.close()
    assert [one for one, _ in answers] == [other for _, other in answers]
    refused = [isinstance(one, tuple) and len(one) == 3 for one, _ in answers]
    assert sum(refused) >= 7, "the refusals are among the answers"


@pytest.mark.parametrize("normalize", [True, False])
def test_normalisation_takes_another_spelling_for_the_same(
    normalize: bool, registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    """Another client registered the schema, with the same fields and attributes in another order."""
    other = {"fields": [{"type": "int", "name": "id"}], "name": "Value", "type": "record"}
    mine = client(folder, url=registry.url, normalize=normalize)
    first = client(folder, url=registry.url).schema_id(subject, other)
    assert mine.schema_id(subject, V1) == first
    assert ask(f"{registry.url}/subjects/{subject}/versions") == [1]
    second = mine.schema_id(subject, V2)
    assert second != first


def test_a_registry_that_gives_an_id_in_use_to_another_schema_is_found_out(
    registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    """F55: a registry that is emptied and filled again counts ids from the beginning."""
    mine = client(folder, url=registry.url)
    number = mine.schema_id(subject, V1)
    # The id that it had issued before it was emptied; a real registry cannot be made to choose an id.
    for given in range(number + 1, number + 1000):
        assert mine._cache.take("another", '"string"', given)
    with pytest.raises(RegistryRefused, match="lost"):
        mine.schema_id(subject, V2)
    mine.close()
    assert mine.schema_id(subject, V2)


def test_cached_schemas_need_no_registry(registry: SchemaRegistry, folder: Path, subject: str) -> None:
    """F55: an id, and the newest schema of a subject, stay known; a new schema waits."""
    with Door(registry.url) as door:
        mine = client(folder, url=door.url, properties={"max.retries": 0})
        number = mine.schema_id(subject, V1)
        door.shut()
        mine.close()
        assert mine.schema_id(subject, V1) == number
        assert mine.latest(subject) == V1
        for unknown in (lambda: mine.schema_id(subject, V2), lambda: mine.latest("another")):
            with pytest.raises(RegistryUnavailable):
                unknown()
        door.open()
        assert mine.schema_id(subject, V2) != number


def test_a_subject_deleted_on_purpose_is_no_loss(
    registry: SchemaRegistry, folder: Path, subject: str
) -> None:
    """F45: the resolution after a changed key. A request for the newest schema first shows that there is none."""
    mine = client(folder, url=registry.url)
    mine.schema_id("stays-" + subject, V1)
    mine.schema_id(subject, {**V1, "fields": [*V1["fields"], OPTIONAL]})
    ask(f"{registry.url}/subjects/{subject}", method="DELETE")
    assert mine.latest(subject) is None
    assert mine.schema_id(subject, INCOMPATIBLE)
