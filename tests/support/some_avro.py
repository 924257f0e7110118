"""Random record schemas, with Arrow columns for a part of their fields and records that fastavro wrote.

In: a Random.  Out: a schema without named references, the wanted columns, framed records.
"""

from __future__ import annotations

import io
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

SCHEMA_ID = 1
_PLAIN: list[tuple[Any, pa.DataType]] = [
    ("boolean", pa.bool_()),
    ("int", pa.int32()),
    ("int", pa.float64()),
    ("long", pa.int64()),
    ("float", pa.float32()),
    ("float", pa.float64()),
    ("double", pa.float64()),
    ("string", pa.string()),
    ("bytes", pa.binary()),
    ({"type": "int", "logicalType": "date"}, pa.date32()),
    ({"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}, pa.decimal128(20, 3)),
]


class SomeAvro:
    """A schema and its columns. `wanted`: every field, or some, inside records too."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._records = 0
        self.schema, record = self._record(0)
        self.wanted = pa.schema(list(record))

    def framed(self) -> bytes:
        """Return a record with random values."""
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(self.schema), self._value(self.schema))
        return b"\0" + SCHEMA_ID.to_bytes(4, "big") + out.getvalue()

    def _record(self, depth: int) -> tuple[Any, pa.DataType]:
        self._records += 1
        name, fields, columns = f"r{self._records}", [], []
        for place in range(self._chance.randint(1, 6)):
            avro, arrow = self._type(depth)
            fields.append({"name": f"f{place}", "type": avro})
            if self._chance.random() < 0.7:
                columns.append(pa.field(f"f{place}", arrow))
        self._chance.shuffle(columns)
        return {"type": "record", "name": name, "fields": fields}, pa.struct(columns)

    def _type(self, depth: int) -> tuple[Any, pa.DataType]:
        way = self._chance.random()
        if depth > 2 or way < 0.6:
            avro, arrow = self._chance.choice(_PLAIN)
        elif way < 0.75:
            avro, arrow = self._record(depth + 1)
        else:
            item, of_item = self._type(depth + 1)
            is_list = way < 0.9
            avro = {"type": "array", "items": item} if is_list else {"type": "map", "values": item}
            arrow = pa.list_(of_item) if is_list else pa.map_(pa.string(), of_item)
        union = self._chance.random()
        if union < 0.6 or isinstance(avro, list):
            return avro, arrow
        return (["null", avro] if union < 0.9 else [avro, "null"]), arrow

    def _value(self, avro: Any) -> Any:
        chance = self._chance
        if isinstance(avro, list):
            return self._value(next(one for one in avro if one != "null")) if chance.random() < 0.7 else None
        kind = avro["type"] if isinstance(avro, dict) else avro
        if kind == "record":
            return {one["name"]: self._value(one["type"]) for one in avro["fields"]}
        if kind == "array":
            return [self._value(avro["items"]) for _ in range(chance.randint(0, 3))]
        if kind == "map":
            return {f"k{place}": self._value(avro["values"]) for place in range(chance.randint(0, 3))}
        if isinstance(avro, dict) and "logicalType" in avro and kind == "bytes":
            return chance.randint(-(10**20) + 1, 10**20 - 1).to_bytes(9, "big", signed=True)
        return {
            "boolean": chance.random() < 0.5,
            "int": chance.choice((0, -1, 2**31 - 1, -(2**31), chance.randint(-1000, 1000))),
            "long": chance.choice((0, 2**63 - 1, -(2**63), chance.randint(-(2**40), 2**40))),
            "float": chance.choice((0.5, float("inf"), float("nan"))),
            "double": chance.choice((0.1, -0.0, float("nan"))),
            "string": chance.choice(("", "text", "ä€😀", "x" * 200)),
            "bytes": chance.randbytes(chance.choice((0, 3, 100))),
        }[kind]
