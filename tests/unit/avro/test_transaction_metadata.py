"""BEGIN and END, decoded by fastavro: one id, and counts that match the sequence numbers."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from cdcd.avro.transaction import NULL, TransactionContext
from cdcd.avro.transaction_metadata import (
    Place,
    encode_metadata,
    encode_snapshot_metadata,
    metadata_key_schema,
    metadata_value_schema,
)
from cdcd.model import POSTGRES_EPOCH_US, Record, TransactionInfo
from cdcd.schema.envelope import transaction_schema

INFO = TransactionInfo(xid=981, commit_lsn=0x1_0000_0020, commit_pg_us=5_000_000)
ID = f"981:{0x1_0000_0020}"


def context(*, has_block: bool) -> TransactionContext:
    return TransactionContext(
        INFO, timeline=3, name="shop", database="d", now_us=1, version="0", has_block=has_block
    )


PLACE = Place(topic="shop.transaction", partitions=6, key_schema_id=7, value_schema_id=8)


def record(tx: TransactionContext, *, is_end: bool) -> Record:
    return encode_metadata(tx, PLACE, is_end=is_end)


def read(data: bytes | None, schema: dict[str, Any], schema_id: int) -> Any:
    assert data is not None
    assert data[:5] == b"\x00" + schema_id.to_bytes(4, "big")
    rest = io.BytesIO(data[5:])
    value = fastavro.schemaless_reader(rest, fastavro.parse_schema(schema))
    assert rest.read() == b""
    return value


def test_begin_and_end_have_one_id_one_partition_and_the_counts() -> None:
    tx = context(has_block=True)
    begin = record(tx, is_end=False)
    for table in ("public.a", "public.b", "public.a", "message"):
        tx.number(table)
    end = record(tx, is_end=True)
    assert begin.partition == end.partition
    assert begin.key == end.key
    assert read(begin.key, metadata_key_schema(), 7) == {"id": ID}
    commit_ms = (5_000_000 + POSTGRES_EPOCH_US) // 1000
    common = {"id": ID, "ts_ms": commit_ms, "timeline": 3, "commit_lsn": 0x1_0000_0020}
    assert read(begin.value, metadata_value_schema(), 8) == {
        "status": "BEGIN",
        "event_count": None,
        "data_collections": None,
        **common,
    }
    assert read(end.value, metadata_value_schema(), 8) == {
        "status": "END",
        "event_count": 4,
        "data_collections": [
            {"data_collection": "public.a", "event_count": 2},
            {"data_collection": "public.b", "event_count": 1},
            {"data_collection": "message", "event_count": 1},
        ],
        **common,
    }


def test_the_snapshot_of_a_table_has_the_same_form_with_an_id_of_its_own() -> None:
    tx = context(has_block=False)
    begin, end = (
        encode_snapshot_metadata(tx, PLACE, table="public.a", rows=rows, now_ms=77, name=None)
        for rows in (None, 5)
    )
    name = f"snapshot:{0x1_0000_0020}:public.a"
    assert (begin.key, begin.partition) == (end.key, end.partition)
    assert read(begin.key, metadata_key_schema(), 7) == {"id": name}
    common = {"id": name, "ts_ms": 77, "timeline": 3, "commit_lsn": 0x1_0000_0020}
    assert read(begin.value, metadata_value_schema(), 8) == {
        "status": "BEGIN",
        "event_count": None,
        "data_collections": None,
        **common,
    }
    assert read(end.value, metadata_value_schema(), 8) == {
        "status": "END",
        "event_count": 5,
        "data_collections": [{"data_collection": "public.a", "event_count": 5}],
        **common,
    }


def test_a_change_knows_its_place_in_the_transaction_and_in_its_table() -> None:
    tx = context(has_block=True)
    schema = fastavro.parse_schema(transaction_schema())
    blocks = [tx.number(table) for table in ("public.a", "public.b", "public.a")]
    decoded = [fastavro.schemaless_reader(io.BytesIO(block[1:]), schema) for block in blocks]
    assert all(block[:1] == b"\x02" for block in blocks)
    assert decoded == [
        {"id": ID, "total_order": 1, "data_collection_order": 1},
        {"id": ID, "total_order": 2, "data_collection_order": 1},
        {"id": ID, "total_order": 3, "data_collection_order": 2},
    ]


@pytest.mark.parametrize("has_block", [False, True])
def test_the_number_is_the_same_with_and_without(has_block: bool) -> None:
    tx = context(has_block=has_block)
    blocks = [tx.number("public.a") for _ in range(3)]
    assert tx.tx_seq == 3
    assert (blocks == [NULL] * 3) is not has_block
