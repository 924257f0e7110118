"""The flat value: the row with its operation, and keys that may be null. fastavro checks the bytes."""

from __future__ import annotations

import io
import re
import struct
from typing import Any

import fastavro
import pytest

from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import SchemaError, ValueUnencodable
from cdcd.model import Column, Record, Relation, ReplicaIdentity, RowBatch, TransactionInfo
from cdcd.schema.flat import FLAT_PROPERTY
from cdcd.schema.policy import FlatNames, Policies, Policy, Rule
from cdcd.schema.relation_schema import relation_schemas

LSN, COMMIT_LSN = 0x16B374D848, 0x16B374E000
COMMIT_PG_US = 820_454_400_123_456
COMMIT_MS = 1_767_139_200_123
FLAT = Policies(Policy(value="flat"))
ADDED = {
    "__timeline": 3,
    "__commit_lsn": COMMIT_LSN,
    "__ts_ms": COMMIT_MS,
    "__special": None,
    "__unchanged": [],
}
U = object()


def columns(*flagged: str) -> tuple[Column, ...]:
    kinds = {"id": 23, "price": (1700, (10 << 16 | 2) + 4), "note": 25}
    made = []
    for name, kind in kinds.items():
        oid, typmod = kind if isinstance(kind, tuple) else (kind, -1)
        made.append(Column(name, oid, typmod, name in flagged))
    return tuple(made)


ORDERS = Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, columns("id"))
WHOLE = Relation(7, "public", "orders", ReplicaIdentity.FULL, columns("id", "price", "note"))


def row(*values: Any) -> bytes:
    parts = [
        b"u"
        if value is U
        else b"n"
        if value is None
        else b"t" + struct.pack(">I", len(value)) + value.encode()
        for value in values
    ]
    return struct.pack(">H", len(parts)) + b"".join(parts)


class Table:
    def __init__(
        self,
        relation: Relation,
        keys: tuple[str, ...] | None,
        policies: Policies = FLAT,
        *,
        is_key_required: bool = True,
    ) -> None:
        self.schemas = relation_schemas(relation, {}, keys, "shop", policies, is_key_required=is_key_required)
        self.plan: RelationPlan = compile_plan(
            relation,
            self.schemas,
            topic="shop.public.orders",
            partitions=3,
            key_schema_id=None if self.schemas.key is None else 11,
            value_schema_id=12,
            tombstones=True,
        )
        self.tx = TransactionContext(
            TransactionInfo(771, COMMIT_LSN, COMMIT_PG_US),
            timeline=3,
            name="shop",
            database="shopdb",
            now_us=0,
            version="1",
        )

    def records(self, kind: str, body: bytes) -> list[Record]:
        payload = kind.encode() + struct.pack(">I", 7) + body
        frame = struct.pack(">IQ", len(payload), LSN) + payload
        return encode_batch(RowBatch(frame, 1), {7: self.plan}, self.tx)

    def encode(self, kind: str, body: bytes) -> list[tuple[Any, Any]]:
        return [self.read(record) for record in self.records(kind, body)]

    def read(self, record: Record) -> tuple[Any, Any]:
        return decoded(record.key, self.schemas.key), decoded(record.value, self.schemas.value)


def decoded(framed: bytes | None, schema: Any) -> Any:
    if framed is None:
        return None
    buffer = io.BytesIO(framed[5:])
    value = fastavro.schemaless_reader(buffer, fastavro.parse_schema(schema), None)
    assert buffer.read() == b""
    return value


def test_a_row_and_what_became_of_it() -> None:
    table = Table(ORDERS, ("id",))
    ((key, value),) = table.encode("I", b"N" + row("1", "9.50", "n"))
    assert key == {"id": 1}
    assert str(value.pop("price")) == "9.50"
    assert value == {"id": 1, "note": "n", "__op": "c", "__deleted": False, "__tx_seq": 1, **ADDED}
    ((_, value),) = table.encode("U", b"N" + row("1", None, "m"))
    assert (value["note"], value["__op"], value["__tx_seq"]) == ("m", "u", 2)


def test_a_delete_has_the_key_and_says_so_and_a_tombstone_follows() -> None:
    (key, value), tombstone = Table(ORDERS, ("id",)).encode("D", b"K" + row("1", None, None))
    assert key == {"id": 1}
    assert value == {
        "id": 1, "price": None, "note": None, "__op": "d", "__deleted": True, "__tx_seq": 1, **ADDED
    }  # fmt: skip
    assert tombstone == ({"id": 1}, None)


def test_a_key_that_changes_ends_one_row_and_begins_another() -> None:
    """F47."""
    first, tombstone, second = Table(ORDERS, ("id",)).encode(
        "U", b"K" + row("1", None, None) + b"N" + row("2", None, "n")
    )
    assert (first[0], first[1]["__op"], first[1]["__tx_seq"]) == ({"id": 1}, "d", 1)
    assert tombstone == ({"id": 1}, None)
    assert (second[0], second[1]["__op"], second[1]["__tx_seq"]) == ({"id": 2}, "c", 2)


def test_what_the_row_cannot_hold_is_said_in_it() -> None:
    """F46 and F54: NaN and an unchanged TOASTed value must be distinguishable from NULL."""
    ((_, value),) = Table(ORDERS, ("id",)).encode("U", b"N" + row("1", "NaN", U))
    assert (value["price"], value["note"]) == (None, None)
    assert (value["__special"], value["__unchanged"]) == ({"price": "NaN"}, ["note"])


def test_the_row_before_is_left_out_and_what_it_has_is_filled_in() -> None:
    old, new = row("1", "NaN", "long"), row("1", "1", U)
    ((_, value),) = Table(WHOLE, ("id",)).encode("U", b"O" + old + b"N" + new)
    assert (value["note"], value["__special"], value["__unchanged"]) == ("long", None, [])


def test_a_truncate_is_a_row_of_nulls_in_every_partition() -> None:
    table = Table(ORDERS, ("id",))
    records = encode_truncate(table.plan, lsn=LSN, cascade=True, restart_identity=False, tx=table.tx)
    assert [record.partition for record in records] == [0, 1, 2]
    for key, value in map(table.read, records):
        assert key is None
        assert (value["id"], value["__op"], value["__deleted"]) == (None, "t", False)
        assert value["__special"] == {"truncate.cascade": "true"}


def test_the_added_fields_have_the_names_that_were_chosen() -> None:
    names = FlatNames(op="_op", deleted="_gone", special="_odd")
    table = Table(ORDERS, ("id",), Policies(Policy(value="flat"), flat=names))
    ((_, value),) = table.encode("I", b"N" + row("1", None, None))
    assert {"_op", "_gone", "_odd", "__commit_lsn"} < value.keys()
    assert table.schemas.value[FLAT_PROPERTY]["deleted"] == "_gone"


def test_a_column_with_the_name_of_an_added_field_is_refused() -> None:
    named = Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, (Column("__op", 25, -1, True),))
    with pytest.raises(SchemaError, match="the flat format adds") as caught:
        relation_schemas(named, {}, ("__op",), "shop", FLAT)
    assert caught.value.context["column"] == "__op"


def test_one_table_is_flat_and_another_is_not() -> None:
    policies = Policies(rules=(Rule(re.compile(r"public\.ord.*"), None, {"value": "flat"}),))
    assert relation_schemas(ORDERS, {}, ("id",), "shop", policies).is_flat
    other = Relation(8, "public", "items", ReplicaIdentity.DEFAULT, columns("id"))
    assert not relation_schemas(other, {}, ("id",), "shop", policies).is_flat


@pytest.mark.parametrize("policies", [FLAT, Policies()])
def test_a_key_that_is_the_whole_row_may_hold_nulls(policies: Policies) -> None:
    table = Table(WHOLE, ("id", "price", "note"), policies, is_key_required=False)
    ((key, _),) = table.encode("I", b"N" + row("1", None, "n"))
    assert key == {"id": 1, "price": None, "note": "n"}
    old, new = row("1", None, "n"), row("1", "2", "n")
    changed = table.encode("U", b"O" + old + b"N" + new)
    assert [(key["price"] and str(key["price"]), value is None) for key, value in changed] == [
        (None, False),
        (None, True),
        ("2.00", False),
    ]


@pytest.mark.parametrize("policies", [FLAT, Policies()])
@pytest.mark.parametrize("is_required", [True, False])
def test_a_value_that_a_key_cannot_hold_halts(policies: Policies, is_required: bool) -> None:
    table = Table(WHOLE, ("id", "price"), policies, is_key_required=is_required)
    with pytest.raises(ValueUnencodable, match="the Avro type of a key column") as caught:
        table.encode("I", b"N" + row("1", "NaN", "secret"))
    assert caught.value.context["column"] == "price"
    assert "NaN" not in str(caught.value)


def test_null_in_a_key_that_cannot_be_null_halts() -> None:
    with pytest.raises(ValueUnencodable, match="null in a key column") as caught:
        Table(ORDERS, ("id",)).encode("I", b"N" + row(None, None, "n"))
    assert "cdcd resnapshot" in caught.value.advice, "the row in the WAL keeps its null"
