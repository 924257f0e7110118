"""fastavro reads any row, sent as text or as binary, back as the original Python values."""

from __future__ import annotations

import datetime
import io
import math
import struct
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from cdcd.avro.encode import encode_batch
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError
from cdcd.model import Column, PgType, Relation, ReplicaIdentity, RowBatch, TransactionInfo
from cdcd.schema.relation_schema import relation_schemas
from cdcd.schema.varint import decode_long, encode_long

TYPES = {1009: PgType(1009, "pg_catalog", "_text", "b", 25), 25: PgType(25, "pg_catalog", "text", "b")}
RELATION = Relation(
    7,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (
        Column("id", 20, -1, True),
        Column("txt", 25, -1, False),
        Column("num", 1700, (38 << 16 | 10) + 4, False),
        Column("dbl", 701, -1, False),
        Column("at", 1114, -1, False),
        Column("day", 1082, -1, False),
        Column("raw", 17, -1, False),
        Column("arr", 1009, -1, False),
        Column("span", 1186, -1, False),
    ),
)
SCHEMAS = relation_schemas(RELATION, TYPES, None, "shop")
PLAN: RelationPlan = compile_plan(
    RELATION,
    SCHEMAS,
    topic="shop.public.t",
    partitions=3,
    key_schema_id=1,
    value_schema_id=2,
    tombstones=True,
)
VALUE_SCHEMA = fastavro.parse_schema(SCHEMAS.value)
KEY_SCHEMA = fastavro.parse_schema(SCHEMAS.key)
INFO = TransactionInfo(9, 5000, 0)

Cell = tuple[str, bytes | None, Any]
"""Text as PostgreSQL writes it, its send format or None, the value that a reader must see."""


def array_text(items: list[str | None]) -> str:
    quoted = (
        '"' + i.replace("\\", "\\\\").replace('"', '\\"') + '"' if i is not None else "NULL" for i in items
    )
    return "{" + ",".join(quoted) + "}"


def array_binary(items: list[str | None]) -> bytes:
    if not items:
        return struct.pack(">iiI", 0, 0, 25)
    out = struct.pack(">iiIii", 1, 0, 25, len(items), 1)
    for item in items:
        raw = None if item is None else item.encode()
        out += struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw
    return out


def timestamp_text(at: datetime.datetime) -> str:
    text = f"{at.year:04d}-{at:%m-%d %H:%M:%S}"
    return text + f".{at.microsecond:06d}".rstrip("0") if at.microsecond else text


def since_2000(at: datetime.datetime) -> bytes:
    return struct.pack(">q", (at - datetime.datetime(2000, 1, 1)) // datetime.timedelta(microseconds=1))


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
longs = st.integers(-(2**63), 2**63 - 1)
cells: list[st.SearchStrategy[Cell]] = [
    longs.map(lambda n: (str(n), struct.pack(">q", n), n)),
    text.map(lambda s: (s, s.encode(), s)),
    st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: (f"{Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -10)):f}", None, n)
    ),
    st.floats(allow_nan=False).map(lambda x: (repr(x).replace("inf", "Infinity"), struct.pack(">d", x), x)),
    st.datetimes().map(lambda at: (timestamp_text(at), since_2000(at), at)),
    st.dates().map(
        lambda d: (d.isoformat(), struct.pack(">i", d.toordinal() - datetime.date(2000, 1, 1).toordinal()), d)
    ),
    st.binary().map(lambda b: ("\\x" + b.hex(), b, b)),
    st.lists(text | st.none()).map(lambda items: (array_text(items), array_binary(items), items)),
    st.integers(-(2**31), 2**31 - 1).map(
        lambda d: (f"{d} day{'' if d == 1 else 's'}" if d else "00:00:00", struct.pack(">qii", 0, d, 0), d)
    ),
]
rows = st.tuples(cells[0], *[st.none() | cell for cell in cells[1:]])


def insert(row: tuple[Cell | None, ...], *, binary: bool) -> RowBatch:
    body = struct.pack(">IcH", 7, b"N", len(row))
    for cell in row:
        if cell is None:
            body += b"n"
            continue
        sent = cell[1] if binary else None
        value = sent if sent is not None else cell[0].encode()
        body += (b"t" if sent is None else b"b") + struct.pack(">I", len(value)) + value
    return RowBatch(struct.pack(">IQ", 1 + len(body), 4000) + b"I" + body, 1)


def context() -> TransactionContext:
    return TransactionContext(INFO, timeline=1, name="shop", database="d", now_us=1, version="0")


def read(framed: bytes | None, schema: Any) -> Any:
    assert framed is not None
    buffer = io.BytesIO(framed[5:])
    value = fastavro.schemaless_reader(buffer, schema, None)
    assert buffer.read() == b""
    return value


@given(rows)
def test_a_row_reads_back_as_its_values_from_text_and_from_binary(row: tuple[Cell | None, ...]) -> None:
    (record,) = encode_batch(insert(row, binary=False), {7: PLAN}, context())
    assert encode_batch(insert(row, binary=True), {7: PLAN}, context()) == [record]
    assert row[0] is not None
    assert read(record.key, KEY_SCHEMA) == {"id": row[0][2]}
    after = read(record.value, VALUE_SCHEMA)["after"]
    names = [column.name for column in RELATION.columns]
    expected = {name: None if cell is None else cell[2] for name, cell in zip(names, row, strict=True)}
    if expected["num"] is not None:
        after["num"] = int("".join(map(str, after["num"].as_tuple().digits))) * (
            -1 if after["num"] < 0 else 1
        )
    if expected["span"] is not None:
        expected["span"] = f"P{expected['span']}D" if expected["span"] else "PT0S"
    assert after == expected
    if expected["dbl"] == 0:
        assert math.copysign(1, after["dbl"]) == math.copysign(1, expected["dbl"])


@given(longs)
def test_longs_are_encoded_as_fastavro_encodes_them(n: int) -> None:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema("long"), n)
    assert encode_long(n) == buffer.getvalue()
    assert decode_long(b"x" + buffer.getvalue() + b"x", 1) == (n, 1 + len(buffer.getvalue()))


@given(rows, st.data())
def test_a_damaged_row_is_refused_or_decodes(row: tuple[Cell | None, ...], data: st.DataObject) -> None:
    """The encoder raises an error of cdcd, or returns bytes that an independent reader accepts."""
    damaged = bytearray(insert(row, binary=False).frames)
    offset = data.draw(st.integers(12, len(damaged) - 1))
    damaged[offset] = data.draw(st.integers(0, 255))
    try:
        records = encode_batch(RowBatch(bytes(damaged), 1), {7: PLAN}, context())
    except CdcdError:
        return
    plain = fastavro.parse_schema(without_logical_types(SCHEMAS.value))
    for record in records:
        if record.value is not None:
            read(record.value, plain)


def without_logical_types(schema: Any) -> Any:
    """Remove the logical types: a damaged year may be outside Python's dates, so the reader reads numbers."""
    if isinstance(schema, dict):
        return {k: without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return [without_logical_types(s) for s in schema] if isinstance(schema, list) else schema
