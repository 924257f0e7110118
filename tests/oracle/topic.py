"""The content of the topics, read by confluent-kafka's consumer and fastavro with the schemas of the registry.

In: a broker, a registry, topics.  Out: for each record the row, its texts in `source.special`, and its Avro types.
Invariant: no code of cdcd; logical types are removed, because Python's own dates and times have smaller ranges than
PostgreSQL's.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Row:
    """The row of one record. `special`: the texts of `source.special`; `avro`: the types of its fields; both by
    column.
    """

    values: dict[str, Any]
    special: dict[str, str]
    avro: dict[str, Any]
    is_snapshot: bool


@dataclass(frozen=True)
class _Schema:
    parsed: Any
    columns: dict[str, Any]


class Topics:
    """Every committed record of some topics, once."""

    def __init__(self, bootstrap: str, registry_url: str) -> None:
        self._bootstrap = bootstrap
        self._registry = SchemaRegistryClient({"url": registry_url, "timeout": 30})
        self._schemas: dict[int, _Schema] = {}

    def read(self, topics: Iterable[str]) -> dict[str, list[bytes]]:
        """Return the values' bytes by topic."""
        found: dict[str, list[bytes]] = {topic: [] for topic in topics}
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "oracle",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            self._consume(consumer, found)
        finally:
            consumer.close()
        return found

    @staticmethod
    def _consume(consumer: Consumer, found: dict[str, list[bytes]]) -> None:
        known = consumer.list_topics(timeout=20).topics
        waiting = {(name, number) for name in found for number in known[name].partitions}
        consumer.assign([TopicPartition(name, number, 0) for name, number in sorted(waiting)])
        end_s = time.monotonic() + DEADLINE_S
        while waiting:
            for message in consumer.consume(1000, 1):
                end_s = time.monotonic() + DEADLINE_S
                if message.error() is not None:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    waiting.discard((message.topic(), message.partition()))
                elif message.value() is not None:
                    found[message.topic()].append(message.value())
            assert time.monotonic() < end_s, f"no end of {sorted(waiting)[:5]}"

    def rows(self, raws: Iterable[bytes]) -> Iterator[Row]:
        """Yield the decoded records: each must be an insert or a snapshot row, without unchanged columns."""
        for raw in raws:
            assert raw[0] == 0
            schema = self._schema(int.from_bytes(raw[1:5], "big"))
            buffer = io.BytesIO(raw[5:])
            value = fastavro.schemaless_reader(buffer, schema.parsed, None)
            assert buffer.read() == b""
            assert value["op"] in ("c", "r")
            assert value["source"]["unchanged"] == []
            special = {
                name.removeprefix("after."): text for name, text in (value["source"]["special"] or {}).items()
            }
            yield Row(value["after"], special, schema.columns, value["op"] == "r")

    def columns(self, schema_id: int) -> dict[str, Any]:
        """Return the Avro types of the columns in a schema of the registry."""
        return self._schema(schema_id).columns

    def _schema(self, number: int) -> _Schema:
        if number not in self._schemas:
            dressed = json.loads(self._registry.get_schema(number).schema_str)
            named: dict[str, Any] = {}
            full = fastavro.parse_schema(dressed, named)  # with the full name in each reference
            row = next(f["type"][1] for f in full["fields"] if f["name"] == "before")
            columns = {field["name"]: resolved(field["type"], named) for field in row["fields"]}
            self._schemas[number] = _Schema(fastavro.parse_schema(undressed(dressed)), columns)
        return self._schemas[number]


def resolved(avro: Any, named: dict[str, Any]) -> Any:
    """Return the type with each name of a record replaced by the record."""
    if isinstance(avro, list):
        return [resolved(branch, named) for branch in avro]
    if isinstance(avro, str):
        return resolved(named[avro], named) if avro in named else avro
    if avro["type"] == "record":
        return {**avro, "fields": [{**f, "type": resolved(f["type"], named)} for f in avro["fields"]]}
    return {key: resolved(part, named) if key in ("items", "values") else part for key, part in avro.items()}


def undressed(avro: Any) -> Any:
    """Return the schema without logical types."""
    if isinstance(avro, dict):
        stripped = {key: undressed(part) for key, part in avro.items()}
        return {
            key: part for key, part in stripped.items() if key not in ("logicalType", "precision", "scale")
        }
    return [undressed(branch) for branch in avro] if isinstance(avro, list) else avro
