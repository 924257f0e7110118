"""BEGIN and END of a transaction -> records of `<prefix>.transaction`, in Debezium's format.

In: the transaction's context, which has counted its changes.  Out: `Record`s with the transaction's id as key.
Invariant: both have the same id, `<xid>:<commit LSN>`, which is also in every change's `transaction` block, and go to
one partition in this order. A TRUNCATE counts once for each table, whatever the number of partitions; a tombstone is
not counted; transactional logical messages count under `message`.
"""

from __future__ import annotations

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


def encode_metadata(
    tx: TransactionContext,
    *,
    is_end: bool,
    topic: str,
    partitions: int,
    key_schema_id: int,
    value_schema_id: int,
) -> Record:
    """Return the BEGIN, or the END with the counts of the changes that the context has numbered."""
    transaction_id = encode_string(tx.id.encode())
    key = frame_header(key_schema_id) + transaction_id
    commit_us = tx.info.commit_pg_us + POSTGRES_EPOCH_US
    value = b"".join(
        (
            frame_header(value_schema_id),
            encode_string(b"END" if is_end else b"BEGIN"),
            transaction_id,
            optional_long(tx.tx_seq if is_end else None),
            _collections(tx) if is_end else NULL,
            encode_long(commit_us // 1000),
            encode_long(tx.timeline),
            encode_long(tx.info.commit_lsn),
        )
    )
    return Record(topic, partition_for(key, partitions), key, value)


def _collections(tx: TransactionContext) -> bytes:
    counts = tx.counts or {}
    items = b"".join(encode_string(name.encode()) + encode_long(count) for name, count in counts.items())
    return SOME + (encode_long(len(counts)) + items if counts else b"") + _END_OF_ARRAY
