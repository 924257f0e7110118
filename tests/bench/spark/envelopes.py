"""Change records as cdcd writes them, for the benchmark: an update of a table with 10 columns.

In: a number of records, with or without the old row.  Out: the schema, framed values of about 250 bytes (350 with the
old row), and the wanted columns.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import fastavro
import pyarrow as pa

from cdcd.schema.envelope import envelope_schema
from cdcd.spark.decoding.schemas import expand

SCHEMA_ID = 7
US = 1_700_000_000_000_000
NULLABLE: list[tuple[str, Any, pa.DataType]] = [
    ("customer", "string", pa.string()),
    ("total", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, pa.decimal128(12, 2)),
    ("born", {"type": "int", "logicalType": "date"}, pa.date32()),
    ("placed_at", {"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
    ("weight", "double", pa.float64()),
    ("paid", "boolean", pa.bool_()),
    ("status", "string", pa.string()),
    ("note", "string", pa.string()),
    ("items", "int", pa.int32()),
]


def schema() -> Any:
    """Return the envelope's schema."""
    columns = [{"name": name, "type": ["null", avro], "default": None} for name, avro, _ in NULLABLE]
    value = {
        "type": "record",
        "name": "shop.public.orders.Value",
        "fields": [{"name": "id", "type": "long"}, *columns],
    }
    return envelope_schema("shop.public.orders", value)


def key_schema() -> Any:
    """Return the schema of the key."""
    fields = [{"name": "id", "type": "long"}]
    return {"type": "record", "name": "shop.public.orders.Key", "fields": fields}


def all_columns(*, before: bool = False) -> pa.Schema:
    """Return 13 columns: the operation, the row's 10 columns, the position; 23 with those of the old row."""
    row = pa.struct([pa.field("id", pa.int64()), *(pa.field(name, arrow) for name, _, arrow in NULLABLE)])
    position = pa.struct([("commit_lsn", pa.int64()), ("tx_seq", pa.int64())])
    images = [("before", row), ("after", row)] if before else [("after", row)]
    return pa.schema([("op", pa.string()), *images, ("source", position)])


def few_columns() -> pa.Schema:
    """Return 3 columns: the operation, the key, the position."""
    row, position = pa.struct([("id", pa.int64())]), pa.struct([("commit_lsn", pa.int64())])
    return pa.schema([("op", pa.string()), ("after", row), ("source", position)])


def pruned_schema(wanted: pa.Schema) -> Any:
    """Return the envelope's schema without the fields that `wanted` does not have: a reader's schema for Avro."""
    return _pruned(expand(schema()), wanted)  # the row is defined in `before`


def _pruned(avro: Any, wanted: Any) -> Any:
    """Return a record's schema, or that of a union with null, with the fields of a struct or a schema of Arrow."""
    if isinstance(avro, list):
        return [one if one == "null" else _pruned(one, wanted) for one in avro]
    if not isinstance(avro, dict) or "fields" not in avro:
        return avro
    types = {field.name: field.type for field in wanted}
    fields = [field for field in avro["fields"] if field["name"] in types]
    return {**avro, "fields": [{**one, "type": _pruned(one["type"], types[one["name"]])} for one in fields]}


def records(
    count: int,
    *,
    before: bool = False,
    schema_id: int = SCHEMA_ID,
    same: Mapping[str, Any] = MappingProxyType({}),
) -> pa.Array:
    """Return framed values as a binary column. `before`: they have the old row (REPLICA IDENTITY FULL).

    `same`: values of a column of the row, or of its position, that all records have.
    """
    parsed, chance = fastavro.parse_schema(schema()), random.Random(1)
    values = []
    for number in range(count):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, _envelope(number, chance, before, same))
        values.append(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())
    return pa.array(values, pa.binary())


def _envelope(number: int, chance: random.Random, before: bool, same: Mapping[str, Any]) -> dict[str, Any]:
    row = {
        "id": number,
        "customer": f"Customer {chance.randrange(100_000)}",
        "total": chance.randrange(1, 10**7).to_bytes(4, "big", signed=True),
        "born": chance.randrange(20_000),
        "placed_at": US + number * 1000,
        "weight": chance.random() * 100,
        "paid": chance.random() < 0.5,
        "status": chance.choice(("new", "paid", "sent", "returned")),
        "note": None if chance.random() < 0.3 else "Please leave it at the door, thank you.",
        "items": chance.randrange(1, 20),
    }
    row |= {name: same[name] for name in row.keys() & same.keys()}
    source = {
        "version": "0.1.0", "connector": "postgresql", "name": "shop", "ts_ms": US // 1000, "snapshot": "false",
        "db": "shop", "sequence": None, "ts_us": US, "ts_ns": US * 1000, "schema": "public", "table": "orders",
        "txId": 700 + number // 10, "lsn": 2**34 + number * 200, "xmin": None, "origin": None, "origin_lsn": None,
        "timeline": 1, "commit_lsn": 2**34 + number // 10 * 2000, "tx_seq": number % 10, "special": None,
        "unchanged": [],
    }  # fmt: skip
    source |= {name: same[name] for name in source.keys() & same.keys()}
    times = {"ts_ms": US // 1000, "ts_us": US, "ts_ns": US * 1000}
    old = {**row, "status": "new"} if before else None
    return {"before": old, "after": row, "source": source, "transaction": None, "op": "u", **times}
