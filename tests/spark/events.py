"""Create events for tests: the records that the daemon would write, without a daemon.

In: a table's columns as Avro fields and rows as dicts.  Out: framed keys and envelopes of the wire format.
Invariant: every record is encoded by fastavro under the schema in a registry.
Must not: be used to write to topics of a running daemon.
"""

from __future__ import annotations

import io
import json
import struct
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.client import RemoteDisconnected
from typing import Any

import fastavro

from cdcd.lsn import format_lsn

Schema = Any


def column(name: str, avro: Any, *, required: bool = False, **properties: Any) -> dict[str, Any]:
    """Return an Avro field as the daemon builds it: nullable with default null unless it belongs to the key."""
    shape = {"type": avro} if required else {"type": ["null", avro], "default": None}
    return {"name": name, **shape, "pg.name": name, **properties}


def key_schema(topic: str, fields: Sequence[Mapping[str, Any]]) -> Schema:
    """Return the schema of a table's Kafka key."""
    namespace = _namespace(topic)
    return {"type": "record", "name": "Key", "namespace": namespace, "fields": [dict(one) for one in fields]}


def envelope_schema(topic: str, fields: Sequence[Mapping[str, Any]], relid: int = 0) -> Schema:
    """Return the schema of a table's Kafka value. `relid`: the table's oid, 0 for a schema without it."""
    namespace = _namespace(topic)
    value = {
        "type": "record",
        "name": "Value",
        "namespace": namespace,
        **({"pg.relid": relid} if relid else {}),
        "fields": [dict(one) for one in fields],
    }
    block = {
        "type": "record",
        "name": "block",
        "namespace": "event",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "total_order", "type": "long"},
            {"name": "data_collection_order", "type": "long"},
        ],
    }
    optional_long = ["null", "long"]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": namespace,
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", f"{namespace}.Value"], "default": None},
            {"name": "source", "type": _SOURCE},
            {"name": "transaction", "type": ["null", block], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": optional_long, "default": None},
            {"name": "ts_us", "type": optional_long, "default": None},
            {"name": "ts_ns", "type": optional_long, "default": None},
        ],
    }


def _namespace(topic: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in topic)


_OPTIONAL_TEXT = ["null", "string"]
_SOURCE: Schema = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": ["string", "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "sequence", "type": _OPTIONAL_TEXT, "default": None},
        {"name": "ts_us", "type": ["null", "long"], "default": None},
        {"name": "ts_ns", "type": ["null", "long"], "default": None},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "xmin", "type": ["null", "long"], "default": None},
        {"name": "origin", "type": _OPTIONAL_TEXT, "default": None},
        {"name": "origin_lsn", "type": ["null", "long"], "default": None},
        {"name": "timeline", "type": "long", "default": 0},
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_seq", "type": "long"},
        {"name": "special", "type": ["null", {"type": "map", "values": "string"}], "default": None},
        {"name": "unchanged", "type": {"type": "array", "items": "string"}},
    ],
}


def frame(number: int, schema: Schema, record: Mapping[str, Any]) -> bytes:
    """Return 0x00, the schema id and the record in Avro."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, _parsed(schema), record)
    return b"\x00" + struct.pack(">I", number) + body.getvalue()


_PARSED: dict[int, tuple[Schema, Schema]] = {}


def _parsed(schema: Schema) -> Schema:
    held = _PARSED.get(id(schema))
    if held is None or held[0] is not schema:
        held = _PARSED[id(schema)] = (schema, fastavro.parse_schema(schema))
    return held[1]


REGISTER_ATTEMPTS = 3


def register_schema(registry_url: str, subject: str, schema: Schema) -> int:
    """Register a schema under a subject and return its id. A registry may close a connection while it is busy."""
    request = urllib.request.Request(
        f"{registry_url}/subjects/{subject}/versions",
        data=json.dumps({"schema": json.dumps(schema)}).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    for attempt in range(REGISTER_ATTEMPTS):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(json.load(answer)["id"])
        except RemoteDisconnected:
            if attempt == REGISTER_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def progress_value(
    commit_lsn: int,
    offsets: Mapping[str, Mapping[int, int]],
    slot: str = "test",
    loading: Iterable[str] = (),
    snapshot: Iterable[str] | None = None,
    commit_us: int = 0,
) -> bytes:
    """Return the progress record of a Kafka transaction. `loading`: the topics of tables that are being copied.

    `snapshot`: the topics of which an incomplete snapshot may have written rows; None while the stream runs.
    """
    tables = {str(relid): {"topic": topic, "after": [7]} for relid, topic in enumerate(loading, 16_384)}
    copy = {"copy": {"pending": [], "floors": {}, "point_lsn": "0/0", "tables": tables}} if tables else {}
    return json.dumps(
        {
            **copy,
            "format": 1,
            "system_identifier": "1",
            "timeline": 1,
            "database": "test",
            "slot": slot,
            "phase": "streaming" if snapshot is None else "snapshot",
            "commit_lsn": format_lsn(commit_lsn),
            "end_lsn": format_lsn(commit_lsn + 8),
            "commit_us": commit_us,
            "offsets": {topic: {str(p): n for p, n in parts.items()} for topic, parts in offsets.items()},
            "snapshot_tables": list(snapshot or ()),
        }
    ).encode()


@dataclass(slots=True)
class Table:
    """A table whose events are created. Without `key` the events have no key."""

    topic: str
    fields: list[dict[str, Any]]
    key: tuple[str, ...]
    registry_url: str
    _value: tuple[int, Schema] | None = None
    _key: tuple[int, Schema] | None = None

    def event(
        self,
        op: str,
        commit_lsn: int,
        tx_seq: int,
        *,
        after: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
        unchanged: Sequence[str] = (),
        special: Mapping[str, str] | None = None,
        snapshot: bool | None = None,
        timeline: int = 1,
        commit_us: int | None = None,
    ) -> tuple[bytes | None, bytes]:
        """Return key and value of one change; the key is taken from `after`, else from `before`."""
        number, schema = self._registered()
        _, namespace, table = self.topic.rsplit(".", 2)
        is_snapshot = op == "r" if snapshot is None else snapshot
        source = {
            "version": "test",
            "connector": "postgresql",
            "name": self.topic.split(".")[0],
            "ts_ms": 0,
            "ts_us": commit_us,
            "snapshot": "true" if is_snapshot else "false",
            "db": "test",
            "schema": namespace,
            "table": table,
            "timeline": timeline,
            "commit_lsn": commit_lsn,
            "tx_seq": tx_seq,
            "lsn": commit_lsn,
            "special": dict(special) if special else None,
            "unchanged": list(unchanged),
        }
        value = frame(number, schema, {"before": before, "after": after, "source": source, "op": op})
        row = after if after is not None else before
        return (self.key_bytes(row) if self.key and row is not None and op != "t" else None), value

    def key_bytes(self, row: Mapping[str, Any]) -> bytes:
        """Return the Kafka key of a row."""
        self._registered()
        assert self._key is not None
        return frame(*self._key, {name: row[name] for name in self.key})

    def alter(self, fields: list[dict[str, Any]]) -> None:
        """Change the columns; later events have a new schema."""
        self.fields = fields
        self._value = None

    def _registered(self) -> tuple[int, Schema]:
        if self._value is None:
            schema = envelope_schema(self.topic, self.fields)
            self._value = (register_schema(self.registry_url, f"{self.topic}-value", schema), schema)
        if self.key and self._key is None:
            schema = key_schema(self.topic, [one for one in self.fields if one["name"] in self.key])
            self._key = (register_schema(self.registry_url, f"{self.topic}-key", schema), schema)
        return self._value
