"""Rows become records: envelope, keys, sequence numbers, TOAST, truncate. fastavro checks the bytes."""

from __future__ import annotations

import copy
import io
import struct
from typing import Any

import fastavro
import pytest

from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.logical_message import MESSAGE_KEY_SCHEMA, MESSAGE_VALUE_SCHEMA, encode_logical_message
from cdcd.avro.murmur2 import murmur2, partition_for
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import (
    BinaryUnreadable,
    MessageTrailing,
    MessageTruncated,
    MessageUnknown,
    ProtocolError,
    RelationUnknown,
    SchemaError,
    TextUnreadable,
    ValueUnencodable,
)
from cdcd.model import Column, Record, Relation, ReplicaIdentity, RowBatch, SnapshotMarker, TransactionInfo
from cdcd.schema.relation_schema import RelationSchemas, relation_schemas

LSN, COMMIT_LSN = 0x1_6B374D848, 0x1_6B374E000
TIMELINE = 2**32 - 1  # the highest timeline of PostgreSQL
COMMIT_PG_US = 820_454_400_123_456  # 2026-01-01 00:00:00.123456 UTC
COMMIT_US = 1_767_139_200_123_456
U = object()


def tuple_data(values: list[Any]) -> bytes:
    """Return tuple data: `U` unchanged, None null, str text, bytes binary."""
    out = struct.pack(">H", len(values))
    for value in values:
        if value is U:
            out += b"u"
        elif value is None:
            out += b"n"
        elif isinstance(value, str):
            out += b"t" + struct.pack(">I", len(value.encode())) + value.encode()
        else:
            out += b"b" + struct.pack(">I", len(value)) + value
    return out


def insert(new: list[Any]) -> bytes:
    return b"N" + tuple_data(new)


def update(new: list[Any], *, key: list[Any] | None = None, old: list[Any] | None = None) -> bytes:
    before = b"K" + tuple_data(key) if key is not None else b"O" + tuple_data(old) if old is not None else b""
    return before + b"N" + tuple_data(new)


def delete(*, key: list[Any] | None = None, old: list[Any] | None = None) -> bytes:
    return b"K" + tuple_data(key) if key is not None else b"O" + tuple_data(old or [])


def batch(*messages: tuple[str, bytes], xid: int | None = None, relid: int = 7) -> RowBatch:
    frames = b""
    for kind, body in messages:
        payload = kind.encode() + (b"" if xid is None else struct.pack(">I", xid))
        payload += struct.pack(">I", relid) + body
        frames += struct.pack(">IQ", len(payload), LSN) + payload
    return RowBatch(frames, len(messages), xid)


ID, NOTE, BODY, DAY = (
    Column("id", 23, -1, True),
    Column("note", 25, -1, False),
    Column("body", 25, -1, False),
    Column("day", 1082, -1, False),
)


def relation(identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> Relation:
    return Relation(7, "public", "orders", identity, (ID, NOTE, BODY, DAY))


class Table:
    """A relation with its plan, and fastavro as the reader of its records."""

    def __init__(
        self,
        relation: Relation,
        key_columns: tuple[str, ...] | None = None,
        *,
        partitions: int = 6,
        tombstones: bool = True,
    ) -> None:
        self.schemas: RelationSchemas = relation_schemas(relation, {}, key_columns, "shop")
        self.plan: RelationPlan = compile_plan(
            relation,
            self.schemas,
            topic="shop.public.orders",
            partitions=partitions,
            key_schema_id=None if self.schemas.key is None else 11,
            value_schema_id=12,
            tombstones=tombstones,
        )
        self.value_schema = fastavro.parse_schema(self.schemas.value)
        self.key_schema = self.schemas.key and fastavro.parse_schema(self.schemas.key)

    def encode(
        self, *messages: tuple[str, bytes], tx: TransactionContext | None = None, **kw: Any
    ) -> list[Record]:
        return encode_batch(batch(*messages, **kw), {7: self.plan}, tx or context())

    def value(self, record: Record) -> Any:
        return decoded(record.value, 12, self.value_schema)

    def key(self, record: Record) -> Any:
        return decoded(record.key, 11, self.key_schema)


def decoded(framed: bytes | None, schema_id: int, schema: Any) -> Any:
    assert framed is not None
    assert framed[:5] == b"\x00" + struct.pack(">I", schema_id)
    buffer = io.BytesIO(framed[5:])
    value = fastavro.schemaless_reader(buffer, schema, None)
    assert buffer.read() == b""
    return value


def context(*, snapshot: str = "", origin: str | None = None) -> TransactionContext:
    info = TransactionInfo(771, COMMIT_LSN, COMMIT_PG_US, origin, 99 if origin else None, snapshot)
    return TransactionContext(
        info, timeline=TIMELINE, name="shop", database="shopdb", now_us=COMMIT_US + 5_000_000, version="1.2.3"
    )


def test_an_insert_is_a_whole_debezium_envelope() -> None:
    table = Table(relation())
    (record,) = table.encode(("I", insert(["42", "héllo", None, "2024-02-29"])))
    assert record.topic == "shop.public.orders"
    assert table.key(record) == {"id": 42}
    assert record.key is not None
    assert record.partition == partition_for(record.key, 6)
    value = table.value(record)
    assert str(value["after"].pop("day")) == "2024-02-29"
    assert value == {
        "before": None,
        "after": {"id": 42, "note": "héllo", "body": None},
        "source": {
            "version": "1.2.3",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": COMMIT_US // 1000,
            "snapshot": "false",
            "db": "shopdb",
            "sequence": f'["{COMMIT_LSN}","{LSN}"]',
            "ts_us": COMMIT_US,
            "ts_ns": COMMIT_US * 1000,
            "schema": "public",
            "table": "orders",
            "txId": 771,
            "lsn": LSN,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
            "timeline": TIMELINE,
            "commit_lsn": COMMIT_LSN,
            "tx_seq": 1,
            "special": None,
            "unchanged": [],
        },
        "transaction": None,
        "op": "c",
        "ts_ms": (COMMIT_US + 5_000_000) // 1000,
        "ts_us": COMMIT_US + 5_000_000,
        "ts_ns": (COMMIT_US + 5_000_000) * 1000,
    }


@pytest.mark.parametrize("marker", SnapshotMarker)
def test_snapshot_rows_are_reads_and_origins_are_named(marker: SnapshotMarker) -> None:
    table, tx = Table(relation()), context(snapshot=marker, origin="east")
    (record,) = table.encode(("I", insert(["1", None, None, None])), tx=tx)
    value = table.value(record)
    assert (value["op"], value["source"]["snapshot"]) == ("r", marker.value)
    assert (value["source"]["origin"], value["source"]["origin_lsn"]) == ("east", 99)


@pytest.mark.parametrize("origin_lsn", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_an_origins_lsn_that_a_long_cannot_hold_is_null(origin_lsn: int) -> None:
    """pg_replication_origin_xact_setup accepts any LSN: the origin need not be PostgreSQL."""
    table = Table(relation())
    info = TransactionInfo(771, COMMIT_LSN, COMMIT_PG_US, "east", origin_lsn)
    tx = TransactionContext(
        info, timeline=TIMELINE, name="shop", database="shopdb", now_us=COMMIT_US, version="1.2.3"
    )
    (record,) = table.encode(("I", insert(["1", None, None, None])), tx=tx)
    source = table.value(record)["source"]
    assert source["origin_lsn"] == (origin_lsn if origin_lsn < 1 << 63 else None)
    assert source["commit_lsn"] == COMMIT_LSN


@pytest.mark.parametrize("commit_pg_us", [COMMIT_PG_US, 10**16, (1 << 63) - 1])
def test_a_commit_time_that_a_long_cannot_hold_is_null(commit_pg_us: int) -> None:
    """pg_replication_origin_xact_setup accepts any time: nanoseconds end in 2262, microseconds in 294247."""
    table = Table(relation())
    info = TransactionInfo(771, COMMIT_LSN, commit_pg_us, "east", 99)
    tx = TransactionContext(
        info, timeline=TIMELINE, name="shop", database="shopdb", now_us=COMMIT_US, version="1.2.3"
    )
    (record,) = table.encode(("I", insert(["1", None, None, None])), tx=tx)
    source = table.value(record)["source"]
    commit_us = commit_pg_us + 946_684_800_000_000
    assert source["ts_ms"] == commit_us // 1000
    assert source["ts_us"] == (commit_us if commit_us < 1 << 63 else None)
    assert source["ts_ns"] == (commit_us * 1000 if commit_us * 1000 < 1 << 63 else None)


def test_an_lsn_that_a_long_cannot_hold_is_damage() -> None:
    table = Table(relation())
    one = batch(("I", insert(["1", None, None, None])))
    damaged = one.frames[:4] + b"\x80" + one.frames[5:]
    with pytest.raises(ProtocolError, match="63 bits"):
        encode_batch(RowBatch(damaged, 1), {7: table.plan}, context())
    with pytest.raises(ProtocolError, match="63 bits"):
        TransactionContext(
            TransactionInfo(771, 1 << 63, COMMIT_PG_US),
            timeline=TIMELINE,
            name="shop",
            database="shopdb",
            now_us=COMMIT_US,
            version="1.2.3",
        )


def test_rows_of_a_stream_segment_carry_their_xid() -> None:
    table = Table(relation())
    records = table.encode(
        ("I", insert(["1", "a", "b", None])), ("I", insert(["2", "a", "b", None])), xid=900
    )
    assert [table.value(r)["after"]["id"] for r in records] == [1, 2]
    wrong = batch(("I", insert(["1", "a", "b", None])), xid=900)
    with pytest.raises(ProtocolError):
        encode_batch(RowBatch(wrong.frames, 1, 901), {7: table.plan}, context())


def test_changes_are_numbered_over_runs_and_a_tombstone_takes_no_number() -> None:
    table, tx = Table(relation()), context()
    first = table.encode(
        ("I", insert(["1", "a", "b", None])), ("D", delete(key=["1", None, None, None])), tx=tx
    )
    second = table.encode(("I", insert(["2", "a", "b", None])), tx=tx)
    assert [r.value and table.value(r)["source"]["tx_seq"] for r in first] == [1, 2, None]
    assert table.value(second[0])["source"]["tx_seq"] == 3
    assert tx.tx_seq == 3


def test_a_delete_by_key_carries_the_key_and_then_a_tombstone() -> None:
    """F45: the other columns of a K tuple are absent, not NULL."""
    table = Table(relation())
    gone, tombstone = table.encode(("D", delete(key=["5", None, None, None])))
    value = table.value(gone)
    assert value["op"] == "d"
    assert value["before"] == {"id": 5, "note": None, "body": None, "day": None}
    assert value["after"] is None
    assert tombstone == Record(gone.topic, gone.partition, gone.key, None)
    assert len(Table(relation(), tombstones=False).encode(("D", delete(key=["5", None, None, None])))) == 1


def test_an_update_of_the_key_is_a_delete_then_a_create() -> None:
    """F47."""
    table = Table(relation())
    change = update(["6", "n", U, None], key=["5", None, None, None])
    gone, tombstone, created = table.encode(("U", change))
    assert (table.value(gone)["op"], table.key(gone), table.value(gone)["after"]) == ("d", {"id": 5}, None)
    assert (tombstone.key, tombstone.value) == (gone.key, None)
    value = table.value(created)
    assert (value["op"], table.key(created), value["before"]) == ("c", {"id": 6}, None)
    assert value["source"]["unchanged"] == ["body"]
    assert [table.value(r)["source"]["tx_seq"] for r in (gone, created)] == [1, 2]


def test_an_unchanged_toast_is_marked_where_the_old_value_is_not_there() -> None:
    """F46: never as a null that readers take for NULL."""
    table = Table(relation())
    (record,) = table.encode(("U", update(["5", None, U, None])))
    value = table.value(record)
    assert (value["op"], value["before"]) == ("u", None)
    assert value["after"] == {"id": 5, "note": None, "body": None, "day": None}
    assert value["source"]["unchanged"] == ["body"]


def test_an_unchanged_toast_is_filled_from_a_full_old_tuple() -> None:
    """F46."""
    table = Table(relation(ReplicaIdentity.FULL), ("id",))
    (record,) = table.encode(("U", update(["5", "new", U, None], old=["5", "old", "long text", None])))
    value = table.value(record)
    assert value["before"]["note"] == "old"
    assert value["after"] == {"id": 5, "note": "new", "body": "long text", "day": None}
    assert value["source"]["unchanged"] == []


def test_an_unchanged_toasted_key_is_filled_from_the_key_tuple() -> None:
    columns = (Column("k", 25, -1, True), BODY)
    table = Table(Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, columns))
    (record,) = table.encode(("U", update([U, U], key=["a long key", None])))
    assert table.key(record) == {"k": "a long key"}
    assert table.value(record)["op"] == "u"
    assert table.value(record)["source"]["unchanged"] == ["body"]
    with pytest.raises(ValueUnencodable):
        table.encode(("U", update([U, "x"])))


def test_an_old_tuple_with_an_unsent_value_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        Table(relation(ReplicaIdentity.FULL)).encode(("D", delete(old=["1", "a", U, None])))


def test_full_with_a_primary_key_compares_the_key_columns() -> None:
    table = Table(relation(ReplicaIdentity.FULL), ("id",))
    (same,) = table.encode(("U", update(["5", "b", "c", None], old=["5", "a", "c", None])))
    assert table.value(same)["op"] == "u"
    gone, _, created = table.encode(("U", update(["6", "b", "c", None], old=["5", "a", "c", None])))
    assert table.value(gone)["before"] == {"id": 5, "note": "a", "body": "c", "day": None}
    assert table.value(created)["after"]["id"] == 6


@pytest.mark.parametrize("identity", [ReplicaIdentity.FULL, ReplicaIdentity.NOTHING])
def test_without_a_key_all_records_go_to_one_partition(identity: ReplicaIdentity) -> None:
    table = Table(relation(identity))
    records = table.encode(*[("I", insert([str(n), "a", "b", None])) for n in range(20)])
    assert table.schemas.key is None
    assert {r.key for r in records} == {None}
    assert {r.partition for r in records} == {(murmur2(b"shop.public.orders") & 0x7FFFFFFF) % 6}


def test_full_without_a_primary_key_has_no_tombstones() -> None:
    table = Table(relation(ReplicaIdentity.FULL), ())
    (record,) = table.encode(("D", delete(old=[None, "a", "b", None])))
    assert table.value(record)["before"] == {"id": None, "note": "a", "body": "b", "day": None}


def test_key_columns_are_in_the_order_of_the_key() -> None:
    columns = (Column("a", 23, -1, True), NOTE, Column("b", 25, -1, True))
    pair = Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, columns)
    table = Table(pair, ("b", "a"))
    (record,) = table.encode(("I", insert(["1", None, "x"])))
    assert record.key == b"\x00\x00\x00\x00\x0b" + b"\x02x" + b"\x02"
    assert list(table.key(record)) == ["b", "a"]
    flagged = Table(pair)
    (record,) = flagged.encode(("I", insert(["1", None, "x"])))
    assert list(flagged.key(record)) == ["a", "b"]


def test_a_value_the_type_cannot_hold_is_null_and_its_text_is_in_special() -> None:
    table = Table(relation(ReplicaIdentity.FULL), ("id",))
    (record,) = table.encode(("U", update(["1", "a", U, "infinity"], old=["1", "a", "b", "-infinity"])))
    value = table.value(record)
    assert (value["before"]["day"], value["after"]["day"]) == (None, None)
    assert value["source"]["special"] == {"before.day": "-infinity", "after.day": "infinity"}
    assert value["after"]["body"] == "b"


def test_a_special_value_in_a_key_column_halts_and_says_nothing_of_the_value() -> None:
    columns = (Column("day", 1082, -1, True),)
    table = Table(Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, columns))
    with pytest.raises(ValueUnencodable) as caught:
        table.encode(("I", insert(["infinity"])))
    assert "infinity" not in str(caught.value)
    assert "format.special: string" in caught.value.advice


def test_an_unreadable_value_names_its_place_and_never_itself() -> None:
    table = Table(relation())
    with pytest.raises(TextUnreadable) as caught:
        table.encode(("I", insert(["1", "a", "b", None])), ("I", insert(["2", "a", "b", "top-secret"])))
    error = caught.value
    assert error.context == {
        "table": "public.orders",
        "column": "day",
        "type": "oid 1082",
        "lsn": LSN,
        "row": 1,
    }
    seen: BaseException | None = error
    while seen is not None:
        assert "secret" not in str(seen)
        seen = seen.__cause__ or seen.__context__


def test_null_in_a_key_column_halts() -> None:
    with pytest.raises(ValueUnencodable) as caught:
        Table(relation()).encode(("I", insert([None, "a", "b", None])))
    assert caught.value.advice


def test_binary_values_give_the_bytes_of_their_text() -> None:
    table = Table(relation())
    binary = insert([struct.pack(">i", 42), "héllo".encode(), None, struct.pack(">i", 8825)])  # 2024-02-29
    assert table.encode(("I", binary)) == table.encode(("I", insert(["42", "héllo", None, "2024-02-29"])))


def test_a_binary_value_of_a_type_without_an_exact_encoder_names_the_setting() -> None:
    columns = (ID, Column("class", 2205, -1, False))
    table = Table(Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, columns))
    with pytest.raises(BinaryUnreadable, match=r"set source\.protocol\.binary: false"):
        table.encode(("I", insert(["1", b"\x00" * 4])))


def test_a_sent_value_that_is_not_understood_may_be_read_as_text() -> None:
    table = Table(relation())
    with pytest.raises(BinaryUnreadable) as caught:
        table.encode(("I", insert(["1", "a", "b", b"\x00" * 3])))
    assert caught.value.context["column"] == "day"


def test_a_row_that_cannot_be_read_names_its_table() -> None:
    with pytest.raises(ProtocolError) as caught:
        Table(relation()).encode(("I", insert(["1", "a"])))
    assert (caught.value.context["table"], caught.value.context["lsn"]) == ("public.orders", LSN)


def test_a_relation_that_was_not_described_is_an_error() -> None:
    """F43."""
    with pytest.raises(RelationUnknown) as caught:
        Table(relation()).encode(("I", insert(["1", "a", "b", None])), relid=8)
    assert caught.value.context["lsn"] == LSN


def test_a_tuple_of_another_width_is_a_protocol_error() -> None:
    for width in (0, 3, 5):
        with pytest.raises(ProtocolError):
            Table(relation()).encode(("I", insert(["1"] * width)))


def test_a_message_cut_at_any_length_or_with_more_after_it_is_refused() -> None:
    table = Table(relation(ReplicaIdentity.FULL), ("id",))
    for kind, body in (
        ("I", insert(["1", "a", "b", None])),
        ("U", update(["1", "a", U, None], old=["1", "a", "b", None])),
        ("D", delete(old=["1", "a", "b", None])),
    ):
        for size in range(len(body)):
            with pytest.raises((MessageTruncated, MessageUnknown)):
                table.encode((kind, body[:size]))
        with pytest.raises(MessageTrailing):
            table.encode((kind, body + b"\x00"))
    whole = batch(("I", insert(["1", "a", "b", None])))
    for size in range(1, len(whole.frames)):
        with pytest.raises(MessageTruncated):
            encode_batch(RowBatch(whole.frames[:size], 1), {7: table.plan}, context())


def test_a_length_beyond_the_message_is_refused() -> None:
    huge = b"N\x00\x04t\xff\xff\xff\xff1nnn"
    with pytest.raises(MessageTruncated):
        Table(relation()).encode(("I", huge), ("I", insert(["1", "a", "b", None])))


def test_unknown_kinds_are_refused() -> None:
    table = Table(relation())
    for kind, body in (
        ("X", insert(["1", "a", "b", None])),
        ("I", b"Z" + tuple_data(["1", "a", "b", None])),
        ("D", insert(["1", "a", "b", None])),
        ("I", b"N\x00\x04xnnn"),
    ):
        with pytest.raises(MessageUnknown):
            table.encode((kind, body))


def test_a_run_whose_count_is_wrong_is_refused() -> None:
    good = batch(("I", insert(["1", "a", "b", None])))
    with pytest.raises(ProtocolError):
        encode_batch(RowBatch(good.frames, 2), {7: Table(relation()).plan}, context())


def test_truncate_is_a_barrier_in_every_partition_under_one_number() -> None:
    """F51."""
    table, tx = Table(relation(), partitions=3), context()
    records = encode_truncate(table.plan, lsn=LSN, cascade=True, restart_identity=False, tx=tx)
    assert [(r.partition, r.key) for r in records] == [(0, None), (1, None), (2, None)]
    values = [table.value(r) for r in records]
    assert {v["source"]["tx_seq"] for v in values} == {1}
    assert [(v["op"], v["before"], v["after"]) for v in values] == [("t", None, None)] * 3
    assert values[0]["source"]["special"] == {"truncate.cascade": "true"}
    (plain, *_) = encode_truncate(table.plan, lsn=LSN, cascade=False, restart_identity=False, tx=tx)
    assert table.value(plain)["source"]["special"] is None
    assert table.value(plain)["source"]["tx_seq"] == 2


def test_logical_messages() -> None:
    key_schema = fastavro.parse_schema(MESSAGE_KEY_SCHEMA("shop"))
    value_schema = fastavro.parse_schema(MESSAGE_VALUE_SCHEMA("shop"))
    tx = context()
    common: dict[str, Any] = {
        "topic": "shop.message",
        "partitions": 4,
        "key_schema_id": 1,
        "value_schema_id": 2,
        "prefix": "outbox",
        "content": b"\x00\xff",
        "lsn": LSN,
    }
    inside = encode_logical_message(**common, transactional=True, tx=tx)
    assert decoded(inside.key, 1, key_schema) == {"prefix": "outbox"}
    assert decoded(inside.value, 2, value_schema) == {
        "prefix": "outbox",
        "content": b"\x00\xff",
        "transactional": True,
        "lsn": LSN,
        "timeline": TIMELINE,
        "commit_lsn": COMMIT_LSN,
        "tx_seq": 1,
        "txId": 771,
        "ts_us": COMMIT_US,
    }
    alone = decoded(encode_logical_message(**common, transactional=False, tx=None).value, 2, value_schema)
    assert alone["transactional"] is False
    assert [alone[name] for name in ("timeline", "commit_lsn", "tx_seq")] == [None] * 3
    assert tx.tx_seq == 1
    with pytest.raises(ProtocolError):
        encode_logical_message(**common, transactional=True, tx=None)
    late = TransactionContext(
        TransactionInfo(771, COMMIT_LSN, (1 << 63) - 1, "east", 99),
        timeline=TIMELINE,
        name="shop",
        database="shopdb",
        now_us=COMMIT_US,
        version="1.2.3",
    )
    found = encode_logical_message(**common, transactional=True, tx=late)
    assert decoded(found.value, 2, value_schema)["ts_us"] is None, "an origin's commit time may be infinity"


def test_a_plan_refuses_what_does_not_fit_together() -> None:
    schemas = relation_schemas(relation(), {}, None, "shop")
    other = Relation(7, "public", "orders", ReplicaIdentity.DEFAULT, (ID,))
    common: dict[str, Any] = {"topic": "t", "partitions": 1, "value_schema_id": 1, "tombstones": True}
    with pytest.raises(SchemaError):
        compile_plan(other, schemas, key_schema_id=1, **common)
    with pytest.raises(SchemaError):
        compile_plan(relation(), schemas, key_schema_id=None, **common)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(text: bytes, expected: int) -> None:
    assert murmur2(text) == expected
    assert partition_for(text, 7) == (expected & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("writes_timeline", [True, False])
def test_readers_go_on_over_the_record_that_first_has_a_timeline(writes_timeline: bool) -> None:
    """The new schema reads old records with timeline 0, and old readers ignore the field."""
    table = Table(relation())
    now = table.schemas.value
    before = copy.deepcopy(now)
    source = next(one for one in before["fields"] if one["name"] == "source")["type"]
    source["fields"] = [one for one in source["fields"] if one["name"] != "timeline"]
    (record,) = table.encode(("I", insert(["42", "n", None, None])))
    value = table.value(record)
    writer, reader = (now, before) if writes_timeline else (before, now)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(copy.deepcopy(writer)), value)
    written.seek(0)
    found = fastavro.schemaless_reader(written, copy.deepcopy(writer), copy.deepcopy(reader))
    expected = {**value["source"], "timeline": 0}
    if writes_timeline:
        del expected["timeline"]
    assert found["source"] == expected
