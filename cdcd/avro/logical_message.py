"""pg_logical_emit_message -> a record of `<prefix>.message`.

In: the message's fields and, for a transactional one, its transaction.  Out: one `Record`, whose key is the message's
own prefix.
Invariant: a transactional message takes a number of its transaction, as a row does; a non-transactional message is
durable on its own and has no number.
Wire source: protocol message Message (flags, LSN, prefix, content).
"""

from __future__ import annotations

from cdcd.avro.murmur2 import partition_for
from cdcd.avro.plan import frame_header
from cdcd.avro.transaction import NULL, TransactionContext, encode_lsn, optional_long, optional_of_origin
from cdcd.errors import ProtocolError
from cdcd.model import POSTGRES_EPOCH_US, Record
from cdcd.schema.codec import AvroSchema
from cdcd.schema.names import full_name
from cdcd.schema.varint import encode_bytes, encode_string

_OF_TRANSACTION = ("timeline", "commit_lsn", "tx_seq", "txId", "ts_us")


def message_key_schema(prefix: str) -> AvroSchema:
    """Return the schema of a message record's key: the message's own prefix."""
    name = full_name(prefix, "message", "Key")
    return {
        "type": "record",
        "name": name,
        "connect.name": name,
        "fields": [{"name": "prefix", "type": "string"}],
    }


def message_value_schema(prefix: str) -> AvroSchema:
    """Return the schema of a message record's value."""
    name = full_name(prefix, "message", "Value")
    optional = [{"name": field, "type": ["null", "long"], "default": None} for field in _OF_TRANSACTION]
    fields = [
        {"name": "prefix", "type": "string"},
        {"name": "content", "type": "bytes"},
        {"name": "transactional", "type": "boolean"},
        {"name": "lsn", "type": "long"},
        *optional,
    ]
    return {"type": "record", "name": name, "connect.name": name, "fields": fields}


COLLECTION = "message"
"""The collection under which transactional messages are counted; a table's name always has a dot."""

MESSAGE_KEY_SCHEMA = message_key_schema
MESSAGE_VALUE_SCHEMA = message_value_schema


def encode_logical_message(
    *,
    topic: str,
    partitions: int,
    key_schema_id: int,
    value_schema_id: int,
    prefix: str,
    content: bytes,
    transactional: bool,
    lsn: int,
    tx: TransactionContext | None,
) -> Record:
    """Return the record of a logical message; a transactional one increases `tx.tx_seq` by 1.

    `prefix` is the message's own. `tx` is ignored for a message that is not transactional. Raises
    ProtocolError for a transactional message without a transaction.
    """
    of_transaction = NULL * len(_OF_TRANSACTION)
    if transactional:
        if tx is None:
            raise ProtocolError("a transactional message is outside a transaction", lsn=lsn)
        tx.number(COLLECTION)
        commit_us = tx.info.commit_pg_us + POSTGRES_EPOCH_US
        numbers = (tx.timeline, tx.info.commit_lsn, tx.tx_seq, tx.info.xid)
        of_transaction = b"".join(optional_long(n) for n in numbers) + optional_of_origin(commit_us)
    encoded_prefix = encode_string(prefix.encode())
    key = frame_header(key_schema_id) + encoded_prefix
    flag = b"\x01" if transactional else b"\x00"
    body = encoded_prefix + encode_bytes(content) + flag + encode_lsn(lsn) + of_transaction
    return Record(topic, partition_for(key, partitions), key, frame_header(value_schema_id) + body)
