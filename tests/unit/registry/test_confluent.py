"""A registry client that several threads use, and the loss of the registry's data."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import RegistryRefused, RegistryUnavailable
from cdcd.registry import confluent
from cdcd.registry.confluent import Registry
from cdcd.registry.settings import RegistrySettings
from tests.support.registry_content import RegistryContent

KEY: dict[str, Any] = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
VALUE: dict[str, Any] = {"type": "record", "name": "Value", "fields": [{"name": "v", "type": "int"}]}


def client_of(content: RegistryContent, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(confluent, "new_client", lambda _properties: content)
    return Registry(RegistrySettings("http://registry"))


def restarted_empty(client: Registry, first_id: int, monkeypatch: pytest.MonkeyPatch) -> RegistryContent:
    """End the session of a client; the next one finds a registry without schemas."""
    client.close()
    content = RegistryContent(first_id)
    monkeypatch.setattr(confluent, "new_client", lambda _properties: content)
    return content


@pytest.mark.parametrize("others", [0, 1], ids=["emptied", "another program uses the ids"])
def test_a_session_that_begins_with_an_emptied_registry_registers_nothing(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F55: before the periodic check, and with one table only. A missing subject alone is no proof of a loss."""
    client = client_of(RegistryContent(1), monkeypatch)
    client.schema_id("t-value", VALUE)
    client.schema_id("t-key", KEY)
    emptied = restarted_empty(client, 1, monkeypatch)
    for _ in range(others):
        emptied.register("another", '"string"', normalize=False)
        emptied.register("another", '"bytes"', normalize=False)
    before = emptied.requests["register"]
    with pytest.raises(RegistryRefused, match="lost"):
        client.latest("t-key")
    # the plans of other tables are made at the same time
    for schema in (VALUE, KEY):
        with pytest.raises(RegistryRefused, match="lost"):
            client.schema_id("another", schema)
    assert emptied.requests["register"] == before
    client.close()
    assert client.latest("t-key") is None, "the next session accepts the loss"
    assert client.schema_id("t-key", KEY)


def test_a_subject_that_was_deleted_on_purpose_is_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """F45: the registry still has the schema of the id, so the records can be decoded."""
    content = RegistryContent()
    client = client_of(content, monkeypatch)
    client.schema_id("t-key", KEY)
    del content.subjects["t-key"]
    assert client.latest("t-key") is None
    assert client.schema_id("t-key", VALUE) == 2


def test_a_request_whose_client_another_thread_has_closed_may_be_made_again() -> None:
    """The other thread was refused and closes the client, so that its next request reads the password again."""
    registry = Registry(RegistrySettings("http://127.0.0.1:1"))

    def request(_client: object) -> None:
        registry.close()
        raise RuntimeError("the client has been closed")

    with pytest.raises(RegistryUnavailable):
        registry._call("lookup", request)


def test_a_defect_in_a_request_stays_one() -> None:
    registry = Registry(RegistrySettings("http://127.0.0.1:1"))

    def request(_client: object) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        registry._call("lookup", request)
