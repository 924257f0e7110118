"""The placeholder of a row that is too large (F65). fastavro checks the bytes."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pytest

from cdcd.avro.encode import encode_batch, encode_gap, encode_truncate
from cdcd.avro.field_offsets import field_offsets, named_types
from cdcd.avro.placeholder import Change, RowRecord
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import SchemaError
from cdcd.model import Attribute, Column, PgType, Record, Relation, ReplicaIdentity, RowBatch, TransactionInfo
from cdcd.schema.policy import Policies, Policy
from cdcd.schema.relation_schema import relation_schemas

LSN, COMMIT_LSN = 0x16B374D848, 0x16B374E000
SECRET = "s3cret" * 1000
SAID = {"from_lsn": b"16/B374E000", "reason": b"CDCD-RECORD-TOO-LARGE"}
TYPES = {
    23: PgType(23, "pg_catalog", "int4", "b"),
    25: PgType(25, "pg_catalog", "text", "b"),
    1009: PgType(1009, "pg_catalog", "_text", "b", 25),
    90: PgType(90, "public", "pair", "c", attributes=(Attribute("a", 23, -1), Attribute("b", 25, -1))),
    91: PgType(91, "public", "hstore", "b", extension="hstore"),
}
COLUMNS = (
    Column("id", 23, -1, True),
    Column("note", 25, -1, False),
    Column("tags", 1009, -1, False),
    Column("pair", 90, -1, False),
    Column("other", 90, -1, False),
    Column("map", 91, -1, False),
    Column("at", 1114, -1, False),
    Column("real", 701, -1, False),
    Column("is", 16, -1, False),
)
ROW = ["42", SECRET, '{a,NULL,"b c"}', "(1,x)", "(,)", '"k"=>"v", "n"=>NULL', "infinity", "1.5", "t"]
BEFORE = ["42", "old", "{}", None, "(2,y)", "", "2024-02-29 01:02:03", "NaN", None]


def tuple_data(values: list[Any]) -> bytes:
    parts = [b"n" if v is None else b"t" + struct.pack(">I", len(v.encode())) + v.encode() for v in values]
    return struct.pack(">H", len(values)) + b"".join(parts)


class Table:
    """A relation with a column of each kind of Avro type, with an envelope or flat."""

    def __init__(self, *, is_flat: bool = False, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> None:
        self.relation = Relation(7, "public", "orders", identity, COLUMNS)
        policies = Policies(Policy(value="flat" if is_flat else "envelope"))
        self.schemas = relation_schemas(self.relation, TYPES, ("id",), "shop", policies)
        self.plan: RelationPlan = compile_plan(
            self.relation,
            self.schemas,
            topic="shop.public.orders",
            partitions=3,
            key_schema_id=11,
            value_schema_id=12,
            tombstones=True,
        )
        info = TransactionInfo(771, COMMIT_LSN, 820_454_400_123_456)
        self.tx = TransactionContext(
            info, timeline=3, name="shop", database="shopdb", now_us=5, version="1", has_block=True
        )

    def records(self, kind: str, body: bytes) -> list[Record]:
        payload = kind.encode() + struct.pack(">I", 7) + body
        frame = struct.pack(">IQ", len(payload), LSN) + payload
        return encode_batch(RowBatch(frame, 1), {7: self.plan}, self.tx)

    def read(self, record: Record) -> Any:
        assert record.value is not None
        body = io.BytesIO(record.value[5:])
        value = fastavro.schemaless_reader(body, fastavro.parse_schema(self.schemas.value), None)
        assert body.read() == b""
        return value


KINDS = {
    "c": ("I", b"N" + tuple_data(ROW)),
    "u": ("U", b"O" + tuple_data(BEFORE) + b"N" + tuple_data(ROW)),
    "d": ("D", b"O" + tuple_data(ROW)),
}


@pytest.mark.parametrize("op", KINDS)
def test_an_envelope_keeps_all_but_the_row(op: str) -> None:
    table = Table(identity=ReplicaIdentity.FULL)
    table.records("I", b"N" + tuple_data(BEFORE))
    record = table.records(*KINDS[op])[0]
    row = RowRecord(record, table.plan)
    assert row.is_of_a_row
    size = len(record.key or b"") + len(record.value or b"")
    assert row.change == Change(
        "shop.public.orders",
        record.partition,
        "public",
        "orders",
        op,
        771,
        3,
        COMMIT_LSN,
        2,
        LSN,
        ("id",),
        size,
    )
    marker = row.placeholder(SAID)
    assert (marker.topic, marker.partition, marker.key) == (record.topic, record.partition, record.key)
    assert b"s3cret" not in (marker.value or b"")
    was, now = table.read(record), table.read(marker)
    special = {f"gap.{name}": text.decode() for name, text in SAID.items()}
    assert now["source"].pop("special") == special
    assert now["source"].pop("unchanged") == []
    del was["source"]["special"], was["source"]["unchanged"]
    assert now == was | {"before": None, "after": None, "op": "g"}
    assert now["transaction"] == {
        "id": f"771:{COMMIT_LSN}",
        "total_order": 2,
        "data_collection_order": 2,
    }


@pytest.mark.parametrize("op", ["c", "d"])
def test_a_flat_value_keeps_all_but_the_row(op: str) -> None:
    table = Table(is_flat=True)
    record = table.records(*KINDS[op])[0]
    row = RowRecord(record, table.plan)
    assert (row.change.op, row.change.xid, row.change.lsn) == (op, None, None)
    was, now = table.read(record), table.read(row.placeholder(SAID))
    assert {now[column] for column in ("id", "note", "tags", "pair", "other", "map", "at", "real", "is")} == {
        None
    }
    unchanged = ("__timeline", "__commit_lsn", "__tx_seq", "__ts_ms")
    assert [now[name] for name in unchanged] == [was[name] for name in unchanged]
    assert (now["__op"], now["__deleted"], now["__unchanged"]) == ("g", False, [])
    assert now["__special"] == {f"gap.{name}": text.decode() for name, text in SAID.items()}


def test_the_marker_is_the_same_each_time_and_only_for_rows() -> None:
    table = Table()
    record = table.records(*KINDS["c"])[0]
    assert RowRecord(record, table.plan).placeholder(SAID) == RowRecord(record, table.plan).placeholder(SAID)
    marker = RowRecord(record, table.plan).placeholder(SAID)
    gap = encode_gap(table.plan, lsn=1, details=SAID, tx=table.tx)[0]
    truncate = encode_truncate(table.plan, lsn=1, cascade=True, restart_identity=False, tx=table.tx)[0]
    assert [RowRecord(one, table.plan).is_of_a_row for one in (marker, gap, truncate)] == [False] * 3


def test_bytes_of_another_schema_are_an_error() -> None:
    table = Table()
    (record,) = table.records(*KINDS["c"])
    assert record.value is not None
    for value in (record.value[:-3], record.value[:300], b"\x00" * 40):
        with pytest.raises(SchemaError):
            RowRecord(Record("t", 0, None, value), table.plan)


def test_blocks_that_say_their_size_are_passed_over() -> None:
    """Avro specification, arrays: a negative count is followed by the block's size in bytes."""
    schema: dict[str, Any] = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": {"type": "array", "items": "long"}},
            {"name": "b", "type": "long"},
        ],
    }
    data = bytes([3, 4, 2, 4, 2, 6, 0, 8])  # 2 items in 2 bytes, 1 item, the end, and b
    assert field_offsets(schema, data, 0, named_types(schema)) == {"a": (0, 7), "b": (7, 8)}
    read = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)
    assert read == {"a": [1, 2, 3], "b": 4}
