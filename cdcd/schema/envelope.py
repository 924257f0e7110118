"""The Debezium-compatible envelope around a row, with additional fields.

In: the relation's dotted name and its Value record.  Out: the Envelope's Avro schema.
Invariant: the order of the fields here is the order in which `cdcd.avro` writes their bytes; readers use the names.
`timeline`, `commit_lsn` and `tx_seq` are the sequence of changes; `special` and `unchanged` have the information that
`before` and `after` cannot hold.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cdcd.schema.codec import AvroSchema

TIMELINE_DEFAULT = 0
"""The timeline that readers assume for a record without this field: no server has it."""

_SNAPSHOT = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}


def _optional(name: str, avro: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", avro], "default": None}


@cache
def source_schema() -> AvroSchema:
    """Return the `source` block, one for all relations."""
    name = "io.debezium.connector.postgresql.Source"
    fields = [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [_SNAPSHOT, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        _optional("sequence", "string"),
        _optional("ts_us", "long"),
        _optional("ts_ns", "long"),
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        _optional("txId", "long"),
        _optional("lsn", "long"),
        _optional("xmin", "long"),
        _optional("origin", "string"),
        _optional("origin_lsn", "long"),
        # A timeline is an unsigned integer of 32 bits, which an Avro int cannot hold.
        {"name": "timeline", "type": "long", "default": TIMELINE_DEFAULT},
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_seq", "type": "long"},
        _optional("special", {"type": "map", "values": "string"}),
        {"name": "unchanged", "type": {"type": "array", "items": "string"}},
    ]
    return {"type": "record", "name": name, "connect.name": name, "fields": fields}


@cache
def transaction_schema() -> AvroSchema:
    """Return the `transaction` block with Debezium's names, one for all relations."""
    fields = [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ]
    name = "event.block"
    return {"type": "record", "name": name, "connect.version": 1, "connect.name": name, "fields": fields}


def envelope_schema(base: str, value: AvroSchema) -> AvroSchema:
    """Return `<base>.Envelope` around the Value record; `before` defines the record, `after` refers to its name."""
    name = f"{base}.Envelope"
    fields = [
        _optional("before", value),
        _optional("after", value["name"]),
        {"name": "source", "type": source_schema()},
        _optional("transaction", transaction_schema()),
        {"name": "op", "type": "string"},
        _optional("ts_ms", "long"),
        _optional("ts_us", "long"),
        _optional("ts_ns", "long"),
    ]
    return {"type": "record", "name": name, "connect.name": name, "fields": fields}
