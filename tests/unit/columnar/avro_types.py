"""Random Avro types with their Arrow types and values, and records of them that fastavro has written."""

from __future__ import annotations

import io
import itertools
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from cdcd.spark.decoding.schemas import expand

_NUMBERS = itertools.count()
TEXTS = st.text(max_size=20)


class AvroType(NamedTuple):
    """An Avro type, the Arrow type of its values, and a strategy of values as fastavro reads and writes them."""

    avro: Any
    arrow: pa.DataType
    values: st.SearchStrategy[Any]


def _decimal(precision: int, scale: int) -> AvroType:
    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1)
    return AvroType(
        avro,
        pa.decimal128(precision, scale),
        numbers.map(lambda number: Decimal((number < 0, Decimal(abs(number)).as_tuple().digits, -scale))),
    )


PLAIN = [
    AvroType("boolean", pa.bool_(), st.booleans()),
    AvroType("int", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    AvroType("long", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    AvroType("float", pa.float32(), st.floats(width=32, allow_nan=False)),
    AvroType("double", pa.float64(), st.floats(allow_nan=False)),
    AvroType("string", pa.string(), TEXTS),
    AvroType("bytes", pa.binary(), st.binary(max_size=20)),
    AvroType({"type": "int", "logicalType": "date"}, pa.date32(), st.dates(date(1, 1, 1))),
    AvroType(
        {"type": "long", "logicalType": "timestamp-micros"},
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda value: value.replace(tzinfo=UTC)),
    ),
    AvroType(
        {"type": "long", "logicalType": "local-timestamp-micros"},
        pa.timestamp("us"),
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    ),
    AvroType({"type": "long", "logicalType": "time-micros"}, pa.time64("us"), st.times()),
    AvroType({"type": "string", "connect.name": "io.debezium.data.Json"}, pa.string(), TEXTS),
    AvroType({"type": "string", "logicalType": "unknown"}, pa.string(), TEXTS),
    _decimal(5, 2),
    _decimal(18, 0),
    _decimal(38, 10),
]


def _optional(kind: AvroType) -> st.SearchStrategy[AvroType]:
    union = st.sampled_from([["null", kind.avro], [kind.avro, "null"]])
    return union.map(lambda avro: AvroType(avro, kind.arrow, st.none() | kind.values))


def _list(kind: AvroType) -> AvroType:
    return AvroType(
        {"type": "array", "items": kind.avro}, pa.list_(kind.arrow), st.lists(kind.values, max_size=3)
    )


def _map(kind: AvroType) -> AvroType:
    values = st.dictionaries(TEXTS, kind.values, max_size=3)
    return AvroType({"type": "map", "values": kind.avro}, pa.map_(pa.string(), kind.arrow), values)


def record_of(kinds: list[AvroType]) -> AvroType:
    """Return a record with the fields f0, f1, ... of these kinds."""
    fields = [{"name": f"f{place}", "type": kind.avro} for place, kind in enumerate(kinds)]
    avro = {"type": "record", "name": f"r{next(_NUMBERS)}", "fields": fields}
    arrow = pa.struct([pa.field(f"f{place}", kind.arrow) for place, kind in enumerate(kinds)])
    values = st.fixed_dictionaries({f"f{place}": kind.values for place, kind in enumerate(kinds)})
    return AvroType(avro, arrow, values)


def _nested(inner: st.SearchStrategy[AvroType]) -> st.SearchStrategy[AvroType]:
    maybe = inner | inner.flatmap(_optional)
    return st.one_of(
        maybe.map(_list), maybe.map(_map), st.lists(maybe, min_size=1, max_size=4).map(record_of)
    )


KINDS = st.recursive(st.sampled_from(PLAIN), _nested, max_leaves=6)
RECORDS = st.lists(KINDS | KINDS.flatmap(_optional), max_size=6).map(record_of)


def written(avro: Any, value: Any, schema_id: int = 1) -> bytes:
    """Return a record as fastavro writes it, with its header."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def without_names(avro: Any) -> Any:
    """Return the schema without references to named types."""
    return expand(avro)


@st.composite
def records(draw: st.DrawFn) -> tuple[AvroType, list[Any]]:
    """Draw a record's kind and some values of it; None is a null record."""
    kind = draw(RECORDS)
    return kind, draw(st.lists(st.none() | kind.values, max_size=5))


@st.composite
def pruned(draw: st.DrawFn, arrow: pa.DataType) -> pa.DataType:
    """Draw a type with some of a struct's fields, in any order, at each level."""
    if not pa.types.is_struct(arrow):
        return arrow
    fields = [arrow.field(place) for place in range(arrow.num_fields)]
    chosen = draw(st.lists(st.sampled_from(fields), unique_by=lambda field: field.name)) if fields else []
    return pa.struct([pa.field(field.name, draw(pruned(field.type))) for field in chosen])
