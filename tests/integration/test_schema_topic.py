"""The schema topic on a real broker: two writers, aborts, collisions, and other readers' view of it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import RegistryRefused, SchemaIdTaken
from cdcd.model import Progress, SourceIdentity
from cdcd.schema.schema_index import SchemaIndex, id_of
from cdcd.sink import schemas as schemas_module
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topics import Topics
from tests.support.nightly import nightly
from tests.support.topics import committed_records, new_name
from tests.support.waiting import eventually

V1: dict[str, Any] = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "v", "type": ["null", "string"], "default": None}]}
OTHER = {**V1, "name": "Other"}


class Writer:
    """A sink and the schema topic of one prefix, as a session uses them."""

    def __init__(self, kafka: KafkaBroker, prefix: str, slot: str, delivery: str = "exactly_once") -> None:
        self.topic = f"{prefix}.__schemas"
        self.bootstrap = kafka.bootstrap
        self.settings = SinkSettings(
            bootstrap_servers=kafka.bootstrap,
            delivery=delivery,  # type: ignore[arg-type]
            transactional_id=f"cdcd-{slot}",
            client_id=f"cdcd-{slot}",
            progress_topic=f"{prefix}.__progress",
            slot=slot,
        )
        self.slot = slot
        self.sink = KafkaSink(self.settings)
        self.schemas = SchemaTopic(self.topic, slot, "BACKWARD_TRANSITIVE")

    def open(self) -> Writer:
        topics = Topics(self.settings, TopicSettings(create=True, partitions=1, replication_factor=1))
        topics.ensure_progress(self.settings.progress_topic)
        topics.ensure_schemas(self.topic)
        self.sink.open()
        self.schemas.open(self.sink, self.settings)
        return self

    def close(self) -> None:
        self.schemas.close()
        self.sink.close()

    def announce(self, subject: str, schema: dict[str, Any]) -> int:
        number = self.schemas.schema_id(subject, schema)
        self.sink.begin()
        self.schemas.announce()
        return number

    def commit(self) -> None:
        identity = SourceIdentity("1", 1, "d", self.slot)
        progress = self.sink.commit(Progress(identity, "streaming", 1, 2, 0))
        assert self.topic not in progress.offsets
        self.schemas.decided()

    def subjects(self) -> list[str]:
        self.schemas.refresh()
        assert self.schemas.schema_index is not None
        return self.schemas.schema_index.subjects()

    def stored(self) -> list[tuple[str, int, int]]:
        found = [json.loads(r.value()) for r in committed_records(self.bootstrap, self.topic) if r.value()]
        return [(one["subject"], one["version"], one["id"]) for one in found]


@pytest.fixture
def prefix() -> str:
    return new_name("shop")


@pytest.fixture
def one(kafka: KafkaBroker, prefix: str) -> Any:
    writer = Writer(kafka, prefix, new_name("one")).open()
    yield writer
    writer.close()


@pytest.fixture
def two(kafka: KafkaBroker, prefix: str) -> Any:
    writer = Writer(kafka, prefix, new_name("two")).open()
    yield writer
    writer.close()


def test_an_aborted_schema_is_never_served_and_keeps_its_id(one: Writer) -> None:
    number = one.announce("t-value", V1)
    assert one.schemas.schema_index is not None
    assert one.schemas.schema_index.text(number) is None
    one.sink.abort()
    assert one.open().subjects() == []
    assert one.announce("t-value", V1) == number
    one.commit()
    assert one.stored() == [("t-value", 1, number)]
    assert one.subjects() == ["t-value"]


def test_a_reader_waits_for_what_is_being_decided(one: Writer) -> None:
    """The reader may have the rows before cdcd's commit returns: it must not get the answer that the id does not
    exist.
    """
    number = one.announce("t-value", V1)
    found: list[str | None] = []

    def look() -> None:
        one.schemas.await_decided(lambda registered: registered.schema_id == number)
        assert one.schemas.schema_index is not None
        found.append(one.schemas.schema_index.text(number))

    assert one.schemas.is_deciding(lambda registered: registered.subject == "t-value")
    assert not one.schemas.is_deciding(lambda registered: registered.subject == "u-value")
    reader = threading.Thread(target=look)
    reader.start()
    assert found == []
    one.commit()
    reader.join(30)
    assert found == [json.dumps(V1, separators=(",", ":"))]


def test_a_schema_committed_by_another_daemon_is_found_on_request(one: Writer, two: Writer) -> None:
    number = one.announce("t-value", V1)
    one.commit()
    eventually(lambda: two.subjects() == ["t-value"], "the other writer serves the schema too")
    assert two.schemas.schema_id("t-value", V1) == number
    assert not two.schemas.is_waiting


def test_two_writers_of_one_schema_choose_the_same_id(one: Writer, two: Writer) -> None:
    """Both transactions are open at once; both commit."""
    numbers = {writer.announce("t-value", V1) for writer in (one, two)}
    assert len(numbers) == 1
    for writer in (two, one):
        writer.commit()
    eventually(lambda: one.subjects() == two.subjects() == ["t-value"], "one subject")
    assert {version for _, version, _ in one.stored()} == {1}


@pytest.mark.parametrize("delivery", ["exactly_once", nightly("at_least_once")])
def test_of_two_schemas_with_one_id_the_first_in_the_log_has_it(
    delivery: str, kafka: KafkaBroker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two schemas with colliding ids, and two daemons that do not know of each other's."""
    monkeypatch.setattr(
        schemas_module, "SchemaIndex", lambda: SchemaIndex(id_of=lambda _text, attempt: 1 + attempt)
    )
    one = Writer(kafka, prefix, new_name("one"), delivery).open()
    two = Writer(kafka, prefix, new_name("two"), delivery).open()
    assert one.announce("t-value", V1) == 1
    two.schemas.schema_id("u-value", OTHER)
    two.sink.begin()
    with pytest.raises(SchemaIdTaken):
        two.schemas.announce()
    two.sink.abort()
    one.commit()
    assert two.open().announce("u-value", OTHER) == 2
    two.commit()
    for writer in (one, two):
        eventually(lambda w=writer: w.subjects() == ["t-value", "u-value"], "both are served")
        assert writer.schemas.schema_index is not None
        assert json.loads(writer.schemas.schema_index.text(1) or "") == V1
        assert json.loads(writer.schemas.schema_index.text(2) or "") == OTHER
        writer.close()


def test_of_two_versions_at_once_the_second_becomes_the_next(one: Writer, two: Writer) -> None:
    for writer in (one, two):
        writer.announce("t-value", V1)
    one.commit()
    two.sink.abort()
    two.open()
    three = {**V2, "fields": [*V2["fields"], {"name": "w", "type": ["null", "int"], "default": None}]}
    one.announce("t-value", V2)
    two.schemas.schema_id("t-value", three)
    two.sink.begin()
    with pytest.raises(SchemaIdTaken):
        two.schemas.announce()
    two.sink.abort()
    one.commit()
    two.open().announce("t-value", three)
    two.commit()
    assert [version for _, version, _ in one.stored()] == [1, 2, 3]


def test_an_incompatible_schema_is_refused_with_the_difference(one: Writer) -> None:
    one.announce("t-value", V1)
    one.commit()
    must = {**V1, "fields": [*V1["fields"], {"name": "must", "type": "string"}]}
    for _ in range(2):
        with pytest.raises(RegistryRefused, match="must: is new and has no default") as caught:
            one.schemas.schema_id("t-value", must)
        assert caught.value.context["status"] == 409
    assert not one.schemas.is_waiting
    assert one.schemas.latest("t-value") == V1
    assert one.schemas.latest("u-value") is None


def test_comparison_starts_at_a_schema_that_was_accepted_as_incompatible(one: Writer) -> None:
    one.announce("t-value", V1)
    one.commit()
    must = {**V1, "fields": [*V1["fields"], {"name": "must", "type": "string"}]}
    one.schemas.compatibility = "NONE"
    one.announce("t-value", must)
    one.commit()
    one.schemas.compatibility = "BACKWARD_TRANSITIVE"
    more = {**must, "fields": [*must["fields"], {"name": "v", "type": ["null", "string"], "default": None}]}
    one.announce("t-value", more)
    one.commit()
    one.announce("t-value", {**more, "fields": [{"name": "id", "type": "long"}, *more["fields"][1:]]})
    one.commit()
    with pytest.raises(RegistryRefused, match="id: long cannot be read as int"):
        one.schemas.schema_id("t-value", more | {"doc": "narrower again"})
    assert [version for _, version, _ in one.stored()] == [1, 2, 3, 4]


def test_a_topic_that_was_emptied_is_found_out_and_filled_again_with_the_same_ids(one: Writer) -> None:
    from confluent_kafka.admin import AdminClient

    number = one.announce("t-value", V1)
    one.commit()
    one.schemas.verify_next()
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    admin.delete_topics([one.topic])[one.topic].result(30)
    eventually(lambda: one.topic not in admin.list_topics(timeout=10).topics, "the topic is deleted")
    Topics(one.settings, TopicSettings(create=True, partitions=1, replication_factor=1)).ensure_schemas(
        one.topic
    )
    with pytest.raises(RegistryRefused, match="lost its records"):
        one.schemas.verify_next()
    assert one.open().announce("t-value", V1) == number == id_of(json.dumps(V1, separators=(",", ":")))
