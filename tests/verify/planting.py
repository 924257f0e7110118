"""Differences between source and topics, planted by kind.

In: a source, a daemon that ignores changes with an origin, its topics.  Out: changes that only one side has.
How: a session with a replication origin changes rows, and with `origin: none` PostgreSQL does not send its changes;
or a producer writes a record that cdcd has not written, under a later number of the last change.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import psycopg2
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.avro.murmur2 import partition_for
from cdcd.demo.stack.postgres import PostgresServer

ORIGIN = "planted"


@contextlib.contextmanager
def unseen(server: PostgresServer, database: str) -> Iterator[Any]:
    """Return a cursor whose changes the stream does not have."""
    with contextlib.closing(psycopg2.connect(server.dsn(database))) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT count(*) FROM pg_replication_origin WHERE roname = %s", (ORIGIN,))
        if cursor.fetchone() == (0,):
            cursor.execute("SELECT pg_replication_origin_create(%s)", (ORIGIN,))
        cursor.execute("SELECT pg_replication_origin_session_setup(%s)", (ORIGIN,))
        connection.commit()
        yield cursor
        connection.commit()


class Forger:
    """Writes records into a topic as if they were cdcd's."""

    def __init__(self, bootstrap: str, registry_url: str, topic: str) -> None:
        self._topic = topic
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._registry = SchemaRegistryClient({"url": registry_url})
        self._serial = 1_000_000

    def record_of(self, row_id: int) -> tuple[bytes, bytes]:
        """Return key and value of the last record of a row."""
        found = [
            (key, value)
            for key, value in self._records()
            if key is not None and value is not None and self._decoded(key)["id"] == row_id
        ]
        return found[-1]

    def _records(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "planting",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        described = consumer.list_topics(self._topic, timeout=30).topics[self._topic]
        left = set(described.partitions)
        consumer.assign([TopicPartition(self._topic, number, 0) for number in left])
        while left:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is None:
                yield message.key(), message.value()
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
        consumer.close()

    def write(self, key: bytes, value: bytes, row_id: int | None = None, **over: Any) -> None:
        """Write the value with other fields. `row_id`: another key; `source`: other fields of the source block."""
        fields = self._decoded(value)
        self._serial += 1
        fields["source"] |= {"tx_seq": self._serial, **over.pop("source", {})}
        fields |= over
        if row_id is not None:
            key = self._encoded(key[:5], {"id": row_id})
        self.write_raw(key, self._encoded(value[:5], fields))

    def write_raw(self, key: bytes, value: bytes) -> None:
        """Write a record of these bytes."""
        number = len(self._producer.list_topics(self._topic, timeout=30).topics[self._topic].partitions)
        self._producer.produce(self._topic, value, key, partition_for(key, number))
        assert self._producer.flush(30) == 0

    def row(self, value: bytes) -> dict[str, Any]:
        """Return the row of a value."""
        found: dict[str, Any] = self._decoded(value)["after"]
        return found

    def commit_lsn(self, value: bytes) -> int:
        """Return the commit LSN of a value."""
        return int(self._decoded(value)["source"]["commit_lsn"])

    def _schema(self, header: bytes) -> Any:
        text = self._registry.get_schema(struct.unpack(">bI", header)[1]).schema_str
        return fastavro.parse_schema(json.loads(text))

    def _decoded(self, data: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), self._schema(data[:5]), None)

    def _encoded(self, header: bytes, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema(header), value)
        return header + out.getvalue()
