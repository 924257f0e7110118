"""A registry client that several threads use, and the loss of the registry's data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.errors import RegistryRefused, RegistryUnavailable, SchemaIncompatible
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.registry import confluent
from cdcd.registry.confluent import Registry
from cdcd.registry.rest import TooManyVersions
from cdcd.registry.schema_cache import VersionCache
from cdcd.registry.settings import RegistrySettings
from cdcd.schema.relation_schema import relation_schemas
from tests.support.registry_content import AvroJavaContent, RegistryContent

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


def test_a_subject_may_be_deleted_in_a_registry_that_writes_names_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Confluent's registry returns a full name as a name and a namespace: the id still has its schema."""
    content = AvroJavaContent()
    client = client_of(content, monkeypatch)
    for subject, schema in (("t-key", {**KEY, "name": "shop.public.t.Key"}), ("t-value", table(1, "a"))):
        client.schema_id(subject, schema)
        del content.subjects[subject]
        client.close()
        assert client.latest(subject) is None
    assert client.schema_id("t-key", {**VALUE, "name": "shop.public.t.Key"}) == 3


@pytest.mark.parametrize("is_emptied", [False, True], ids=["one subject", "all subjects"])
def test_an_id_without_a_schema_is_a_loss_only_if_the_topics_other_subject_is_missing(
    is_emptied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some registries do not return the schema of an id whose only subject was deleted."""
    content = RegistryContent()
    client = client_of(content, monkeypatch)
    for subject, schema in (("a-value", {**VALUE, "name": "A"}), ("t-key", KEY), ("t-value", VALUE)):
        client.schema_id(subject, schema)
    content.texts.clear()
    for subject in ("t-key", "t-value") if is_emptied else ("t-key",):
        del content.subjects[subject]
    client.close()
    if is_emptied:
        with pytest.raises(RegistryRefused, match="lost the schema of id 2"):
            client.latest("t-key")
    else:
        assert client.latest("t-key") is None
        assert client.schema_id("t-key", {**KEY, "name": "B"}) == 4


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


def table(relid: int, *columns: str) -> dict[str, Any]:
    """Return the value's schema of a table that was created again, with the same columns and others."""
    described = tuple(Column(name, 25, -1, name == "id") for name in ("id", *columns))
    relation = Relation(relid, "public", "staging", ReplicaIdentity.DEFAULT, described)
    attnums = tuple(range(relid, relid + len(described)))
    value = relation_schemas(relation, {}, ("id",), "shop", attnums=attnums).value
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("content", [RegistryContent(), AvroJavaContent()], ids=["as sent", "Avro Java"])
def test_a_table_that_is_created_again_and_again_costs_the_same_each_time(
    content: RegistryContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An equal schema was compared with all versions before it, also behind 10,000 versions."""
    client = client_of(content, monkeypatch)
    for relid in range(300):
        client.schema_id("staging-value", table(relid))
    before = content.requests["version"]
    client.schema_id("staging-value", table(1000))
    assert content.requests["version"] == before + 1
    content.subjects["staging-value"] = content.subjects["staging-value"] * 40
    assert client.schema_id("staging-value", table(1001))


def test_earlier_versions_are_compared_down_to_an_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = RegistryContent()
    client = client_of(content, monkeypatch)
    for relid, columns in enumerate(((), ("a",), ("b",))):
        client.schema_id("staging-value", table(relid, *columns))
    content.requests.clear()
    client._version_cache = VersionCache("")
    client.schema_id("staging-value", table(9, "a"))
    assert content.requests["version"] == 3, "the newest, and the two down to the equal one"
    narrowed = relation_schemas(
        Relation(9, "public", "staging", ReplicaIdentity.DEFAULT, (Column("a", 23, -1, True),)),
        {23: PgType(23, "pg_catalog", "int4", "b")},
        ("a",),
        "shop",
    ).value
    with pytest.raises(SchemaIncompatible):
        client.schema_id("staging-value", narrowed)


def test_more_versions_than_can_be_compared_have_an_error_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reply does come from a registry: the hint names what helps."""
    content = RegistryContent()
    client = client_of(content, monkeypatch)
    client.schema_id("staging-value", table(1))
    newest = content.texts[1]

    def versions(_subject: str) -> list[int]:
        raise TooManyVersions(10_001)

    monkeypatch.setattr(content, "versions", versions)
    with pytest.raises(RegistryRefused, match="10001 versions") as caught:
        client.schema_id("staging-value", table(2, "a"))
    assert "curl -X DELETE" in caught.value.advice
    assert caught.value.context == {"subject": "staging-value"}
    assert list(client.registered("staging-value")) == [json.loads(newest)], "no halt: the newest one only"
