"""The envelope has the fields that readers of Debezium's Avro expect; this file lists them by hand.

Reader schemas represent the engines: each lists the fields that the engine reads, by name and type, and fastavro
resolves cdcd's records to that schema, as the engines' Avro libraries do.
"""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from cdcd.model import Column, Record, Relation, ReplicaIdentity
from cdcd.schema.policy import Policies
from tests.unit.avro.test_flat import Table, row

ITEMS = Relation(
    7,
    "public",
    "orders",
    ReplicaIdentity.DEFAULT,
    (Column("id", 23, -1, True), Column("note", 25, -1, False), Column("at", 1114, -1, False)),
)
OPTIONAL_LONG = ["null", "long"]
ENVELOPE = {
    "before": "optional row",
    "after": "optional row",
    "source": "record",
    "transaction": "optional record",
    "op": "string",
    "ts_ms": OPTIONAL_LONG,
    "ts_us": OPTIONAL_LONG,
    "ts_ns": OPTIONAL_LONG,
}
"""The fields of Debezium 3, in its order."""
SOURCE = {
    "version": "string",
    "connector": "string",
    "name": "string",
    "ts_ms": "long",
    "snapshot": ["string", "null"],
    "db": "string",
    "sequence": ["null", "string"],
    "ts_us": OPTIONAL_LONG,
    "ts_ns": OPTIONAL_LONG,
    "schema": "string",
    "table": "string",
    "txId": OPTIONAL_LONG,
    "lsn": OPTIONAL_LONG,
    "xmin": OPTIONAL_LONG,
}
BLOCK = {"id": "string", "total_order": "long", "data_collection_order": "long"}
VALUE_FIELDS = [
    {"name": "id", "type": "int"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {
        "name": "at",
        "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
        "default": None,
    },
]


def enveloped() -> Table:
    return Table(ITEMS, ("id",), Policies())


def plain(avro: Any) -> Any:
    """Return a type without its properties; of a named or logical type, the base type."""
    if isinstance(avro, list):
        return [plain(branch) for branch in avro]
    return avro["type"] if isinstance(avro, dict) else avro


def fields_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in record["fields"]}


def test_the_envelope_has_debeziums_names_order_and_nullability() -> None:
    value = enveloped().schemas.value
    assert value["name"] == value["connect.name"] == "shop.public.orders.Envelope"
    fields = fields_of(value)
    assert list(fields) == list(ENVELOPE)
    row_record = fields["before"]["type"][1]
    assert row_record["name"] == row_record["connect.name"] == "shop.public.orders.Value"
    assert fields["before"]["type"] == ["null", row_record]
    assert fields["after"]["type"] == ["null", "shop.public.orders.Value"]
    for name, expected in ENVELOPE.items():
        field = fields[name]
        if (isinstance(expected, str) and expected.startswith("optional")) or expected is OPTIONAL_LONG:
            assert field["default"] is None
            assert field["type"][0] == "null"
        if expected in ("string", OPTIONAL_LONG):
            assert plain(field["type"]) == expected


def test_the_source_block_begins_with_debeziums_fields() -> None:
    source = fields_of(enveloped().schemas.value)["source"]["type"]
    assert source["name"] == source["connect.name"] == "io.debezium.connector.postgresql.Source"
    fields = fields_of(source)
    assert list(fields)[: len(SOURCE)] == list(SOURCE)
    assert {name: plain(fields[name]["type"]) for name in SOURCE} == SOURCE
    snapshot = fields["snapshot"]
    assert (snapshot["default"], snapshot["type"][0]["connect.name"]) == ("false", "io.debezium.data.Enum")
    assert "true" in snapshot["type"][0]["connect.parameters"]["allowed"].split(",")


def test_the_transaction_block_is_debeziums() -> None:
    block = fields_of(enveloped().schemas.value)["transaction"]["type"][1]
    assert (block["connect.name"], block["connect.version"]) == ("event.block", 1)
    assert {field["name"]: field["type"] for field in block["fields"]} == BLOCK


def test_the_key_is_a_record_of_required_columns() -> None:
    key = enveloped().schemas.key
    assert key is not None
    assert key["name"] == key["connect.name"] == "shop.public.orders.Key"
    assert [(field["name"], field["type"]) for field in key["fields"]] == [("id", "int")]


ROW_READER = {"type": "record", "name": "shop.public.orders.Value", "fields": VALUE_FIELDS}
CHANGE_READER = {
    "type": "record",
    "name": "shop.public.orders.Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW_READER], "default": None},
        {"name": "after", "type": ["null", "shop.public.orders.Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
}
"""An engine that reads only the rows, with the columns of its own table, and the op."""
WHOLE_READER = {
    **CHANGE_READER,
    "fields": [
        *CHANGE_READER["fields"][:2],
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "io.debezium.connector.postgresql.Source",
                "fields": [{"name": name, "type": avro} for name, avro in SOURCE.items()],
            },
        },
        {
            "name": "transaction",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "event.block",
                    "fields": [{"name": name, "type": avro} for name, avro in BLOCK.items()],
                },
            ],
        },
        *({"name": name, "type": ENVELOPE[name]} for name in ("op", "ts_ms", "ts_us", "ts_ns")),
    ],
}
"""An engine that reads all fields of Debezium, and none that cdcd adds."""


def resolved(record: Record, table: Table, reader: Any) -> Any:
    assert record.value is not None
    writer = fastavro.parse_schema(table.schemas.value)
    buffer = io.BytesIO(record.value[5:])
    value = fastavro.schemaless_reader(buffer, writer, fastavro.parse_schema(reader))
    assert buffer.read() == b""
    return value


@pytest.mark.parametrize("reader", [CHANGE_READER, WHOLE_READER], ids=["change", "whole"])
def test_a_reader_with_debeziums_schema_reads_each_op(reader: Any) -> None:
    table = enveloped()
    inserted = table.records("I", b"N" + row("1", "a", None))
    updated = table.records("U", b"N" + row("1", "b", None))
    moved = table.records("U", b"K" + row("1", None, None) + b"N" + row("2", "b", None))
    deleted = table.records("D", b"K" + row("2", None, None))
    read = [
        resolved(record, table, reader)
        for record in (*inserted, *updated, *moved, *deleted)
        if record.value is not None
    ]
    assert [change["op"] for change in read] == ["c", "u", "d", "c", "d"]
    assert [record.value is None for record in moved] == [False, True, False]
    assert [(change["before"] or {}).get("id") for change in read] == [None, None, 1, None, 2]
    assert [(change["after"] or {}).get("id") for change in read] == [1, 1, None, 2, None]


def test_a_reader_of_the_source_gets_true_values() -> None:
    table = enveloped()
    (record,) = table.records("I", b"N" + row("1", "a", "2024-01-01 00:00:00"))
    change = resolved(record, table, WHOLE_READER)
    source = change["source"]
    assert (source["connector"], source["name"], source["db"]) == ("postgresql", "shop", "shopdb")
    assert (source["schema"], source["table"], source["snapshot"]) == ("public", "orders", "false")
    assert source["sequence"] == f'["{table.tx.info.commit_lsn}","{source["lsn"]}"]'
    assert (source["txId"], source["xmin"]) == (771, None)
    assert source["ts_us"] // 1000 == source["ts_ns"] // 1_000_000 == source["ts_ms"]
