"""An empty topic under the prefix whose subject cannot be used: it is left out, and the mirror goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cdcd.errors import RegistryRefused
from cdcd.registry.rest import RegisteredSchema, RegistryErrorAnswer
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.decoding import registry_schemas
from cdcd.spark.mirroring import empty_tables
from cdcd.spark.mirroring.empty_tables import EmptyTables
from tests.spark.events import column, envelope_schema

TOPICS = ("shop.public.items", "shop.public.other")


class Kafka:
    def partitions(self) -> dict[str, list[int]]:
        return {"shop.__progress": [0], **{topic: [0] for topic in TOPICS}}

    def high_watermarks(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, 0)


class Registry:
    """A registry whose answer for the subjects of one topic is another one."""

    def __init__(self) -> None:
        self.kind = "AVRO"
        self.error: Exception | None = None

    def close(self) -> None:
        pass

    def versions(self, subject: str) -> list[int]:
        if subject.endswith("-key"):
            raise RegistryErrorAnswer(404, 40401, "no subject")
        if self.error is not None and TOPICS[1] in subject:
            raise self.error
        return [1]

    def version(self, subject: str, number: int | None) -> Any:
        return self._schema(self.kind if TOPICS[1] in subject else "AVRO", 7)

    def by_id(self, number: int) -> Any:
        return self._schema("AVRO", number)

    def _schema(self, kind: str, number: int) -> Any:

        text = json.dumps(envelope_schema(TOPICS[0], [column("id", "int", required=True)]))
        return RegisteredSchema(kind=kind, text=text, schema_id=number)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry()
    monkeypatch.setattr(registry_schemas, "new_client", lambda _: found)
    return found


@pytest.fixture
def tables(registry: Registry, request: pytest.FixtureRequest) -> EmptyTables:
    url = f"http://127.0.0.1:1/{request.node.name}"  # schemas are stored by their source
    connection = connection_from({"brokers": "127.0.0.1:1", "prefix": "shop", "schema.registry.url": url})
    return EmptyTables(Kafka(), connection)  # type: ignore[arg-type]


def looked(tables: EmptyTables) -> list[str]:
    return [one.topic for one in tables.look(())]


def test_the_topic_of_another_program_is_left_out(
    tables: EmptyTables, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.kind = "JSON"
    assert looked(tables) == []
    for _ in range(2):
        assert looked(tables) == [TOPICS[0]]
    assert [TOPICS[1] in line and "not Avro" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize("status", [401, 403])
def test_a_subject_that_the_user_may_not_read_is_asked_for_again(
    tables: EmptyTables, registry: Registry, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    registry.error = RegistryErrorAnswer(status, 40301, "User is denied operation Read on Subject")
    assert looked(tables) == []
    for _ in range(3):
        assert looked(tables) == [TOPICS[0]]
    assert [TOPICS[1] in line and "refuses the login" in line for line in caplog.messages] == [True]
    registry.error = None
    assert looked(tables) == [*TOPICS]


def test_a_server_that_is_no_registry_is_an_error(tables: EmptyTables, registry: Registry) -> None:
    registry.error = RegistryErrorAnswer(404, 0, "not found")
    assert looked(tables) == []
    with pytest.raises(RegistryRefused, match="does not answer as a schema registry"):
        looked(tables)


def test_the_modules_have_one_list_of_statuses() -> None:
    assert set(empty_tables.LOGIN) == registry_schemas._UNAUTHORISED
