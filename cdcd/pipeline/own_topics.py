"""The records of cdcd's own topics: logical messages, BEGIN and END of transactions and of tables' snapshots.

In: messages and transactions.  Out: records in `<name>.message` and `<name>.transaction`.
Invariant: a topic and its schemas are ready before its first record; they are looked up once in a session.
Must not: touch the topics of tables.
"""

from __future__ import annotations

from collections.abc import Callable

from cdcd.avro.logical_message import encode_logical_message, message_key_schema, message_value_schema
from cdcd.avro.transaction import TransactionContext
from cdcd.avro.transaction_metadata import (
    Place,
    encode_metadata,
    encode_snapshot_metadata,
    metadata_key_schema,
    metadata_value_schema,
)
from cdcd.model import Record
from cdcd.pipeline.topic_schemas import TopicSchemas
from cdcd.schema.codec import AvroSchema
from cdcd.sink.names import message_topic, transaction_topic
from cdcd.threads import in_thread
from cdcd.txn.events import LogicalMessage


class OwnTopics:
    """The topics of one session that are not a table's."""

    def __init__(self, name: str, schemas: TopicSchemas, partitions_of: Callable[[str], int]) -> None:
        """`partitions_of` creates a topic if it is missing, and returns its number of partitions (blocking)."""
        self._name = name
        self._schemas = schemas
        self._partitions_of = partitions_of
        self._places: dict[str, Place] = {}

    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Record:
        """Return the record of a logical message, in `<name>.message`."""
        topic = message_topic(self._name)
        place = await self._own_place(topic, self.place_messages)
        return encode_logical_message(
            **place,
            prefix=message.prefix,
            content=message.content,
            transactional=message.transactional,
            lsn=message.lsn,
            tx=tx,
        )

    async def metadata(self, tx: TransactionContext, *, is_end: bool) -> Record:
        """Return the transaction's BEGIN or END, in `<name>.transaction`."""
        topic = transaction_topic(self._name)
        place = await self._own_place(topic, self.place_transactions)
        return encode_metadata(tx, place, is_end=is_end)

    async def snapshot_metadata(
        self, tx: TransactionContext, table: str, rows: int | None, now_ms: int, name: str | None = None
    ) -> Record:
        """Return the BEGIN of a table's snapshot, or its END with the number of rows, in `<name>.transaction`.

        `name`: the snapshot's id, None for the one at its commit LSN.
        """
        place = await self._own_place(transaction_topic(self._name), self.place_transactions)
        return encode_snapshot_metadata(tx, place, table=table, rows=rows, now_ms=now_ms, name=name)

    async def _own_place(self, topic: str, make: Callable[[], Place]) -> Place:
        """Prepare a topic that is not a table's, once in a session; return its partitions and schema ids."""
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = await in_thread(make)
        return place

    def place_messages(self) -> Place:
        """Prepare the topic of logical messages (blocking). Raises the registry's error for its schemas."""
        key, value = message_key_schema(self._name), message_value_schema(self._name)
        return self._ready_topic(message_topic(self._name), key, value)

    def place_transactions(self) -> Place:
        """Prepare the topic of transactions (blocking). Raises the registry's error for its schemas."""
        return self._ready_topic(
            transaction_topic(self._name), metadata_key_schema(), metadata_value_schema()
        )

    def _ready_topic(self, topic: str, key: AvroSchema, value: AvroSchema) -> Place:
        return Place(
            topic=topic,
            partitions=self._partitions_of(topic),
            key_schema_id=self._schemas.register(topic, "key", key),
            value_schema_id=self._schemas.register(topic, "value", value),
        )
