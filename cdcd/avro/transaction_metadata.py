"""BEGIN and END of a transaction, or of a table's snapshot -> records of `<prefix>.transaction`, in Debezium's form.

In: the transaction's context, which has counted its changes.  Out: `Record`s with the transaction's id as key.
Invariant: both have the same id, `<xid>:<commit LSN>`, which is also in every change's `transaction` block, and go to
one partition in this order. A TRUNCATE counts once for each table, whatever the number of partitions; a tombstone is
not counted; transactional logical messages count under `message`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from cdcd.avro.murmur2 import partition_for
from cdcd.avro.plan import frame_header
from cdcd.avro.transaction import NULL, SOME, TransactionContext, optional_long
from cdcd.model import POSTGRES_EPOCH_US, Record
from cdcd.schema.codec import AvroSchema
from cdcd.schema.envelope import TIMELINE_DEFAULT
from cdcd.schema.varint import encode_long, encode_string

_KEY = "io.debezium.connector.common.TransactionMetadataKey"
_VALUE = "io.debezium.connector.common.TransactionMetadataValue"
_END_OF_ARRAY = b"\x00"


def metadata_key_schema() -> AvroSchema:
    """Return the schema of the key: the transaction's id."""
    return {
        "type": "record",
        "name": _KEY,
        "connect.name": _KEY,
        "fields": [{"name": "id", "type": "string"}],
    }


def metadata_value_schema() -> AvroSchema:
    """Return the schema of the value; `event_count` and `data_collections` are null in a BEGIN."""
    collection = {
        "type": "record",
        "name": "event.collection",
        "connect.name": "event.collection",
        "fields": [
            {"name": "data_collection", "type": "string"},
            {"name": "event_count", "type": "long"},
        ],
    }
    fields = [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {
            "name": "data_collections",
            "type": ["null", {"type": "array", "items": collection}],
            "default": None,
        },
        {"name": "ts_ms", "type": "long"},
        {"name": "timeline", "type": "long", "default": TIMELINE_DEFAULT},
        {"name": "commit_lsn", "type": "long"},
    ]
    return {"type": "record", "name": _VALUE, "connect.name": _VALUE, "fields": fields}


class Place(TypedDict):
    """A topic with its partitions and schema ids."""

    topic: str
    partitions: int
    key_schema_id: int
    value_schema_id: int


def encode_metadata(tx: TransactionContext, place: Place, *, is_end: bool) -> Record:
    """Return the BEGIN, or the END with the counts of the changes that the context has numbered."""
    commit_us = tx.info.commit_pg_us + POSTGRES_EPOCH_US
    counts = (tx.counts or {}) if is_end else None
    return _encoded(tx, place, tx.id, tx.tx_seq, counts, commit_us // 1000)


def snapshot_id(tx: TransactionContext, table: str, tx_seq: int = 0) -> str:
    """Return the id of a table's snapshot. `tx_seq`: the number before its rows, if others have its commit LSN."""
    return f"snapshot:{tx.info.commit_lsn}{f'.{tx_seq}' if tx_seq else ''}:{table}"


def table_of(snapshot_id: str) -> str:
    """Return the table of a snapshot's id."""
    return snapshot_id.split(":", 2)[-1]


def encode_snapshot_metadata(
    tx: TransactionContext, place: Place, *, table: str, rows: int | None, now_ms: int, name: str | None
) -> Record:
    """Return the BEGIN of a table's snapshot, or its END with the number of `rows`. `tx`: the snapshot's context.

    `name`: its id, None for the one at its commit LSN.
    """
    counts = None if rows is None else {table: rows}
    return _encoded(tx, place, name or snapshot_id(tx, table), rows or 0, counts, now_ms)


def _encoded(
    tx: TransactionContext,
    place: Place,
    name: str,
    total: int,
    counts: Mapping[str, int] | None,
    ts_ms: int,
) -> Record:
    """Return an END with the total and its counts by table, or a BEGIN without counts."""
    encoded_id = encode_string(name.encode())
    key = frame_header(place["key_schema_id"]) + encoded_id
    value = b"".join(
        (
            frame_header(place["value_schema_id"]),
            encode_string(b"BEGIN" if counts is None else b"END"),
            encoded_id,
            optional_long(None if counts is None else total),
            NULL if counts is None else _collections(counts),
            encode_long(ts_ms),
            encode_long(tx.timeline),
            encode_long(tx.info.commit_lsn),
        )
    )
    return Record(place["topic"], partition_for(key, place["partitions"]), key, value)


def _collections(counts: Mapping[str, int]) -> bytes:
    items = b"".join(encode_string(name.encode()) + encode_long(count) for name, count in counts.items())
    return SOME + (encode_long(len(counts)) + items if counts else b"") + _END_OF_ARRAY
