"""The log of a schema topic, read forward into a schema index.

In: the sink's settings, the topic.  Out: its records in a `SchemaIndex`, from the start of the log.
Invariant: every record below `position` is in the index: only committed records, or (`is_committed` False) also those
of open and aborted transactions, which a writer has to know before it assigns an id.
Must not: write, join a consumer group, skip a record that it cannot read.
Every function here blocks and belongs in a thread.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdcd.errors import SchemasUnreadable
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import making_client
from cdcd.sink.reader import bounds, position_of
from cdcd.sink.settings import SinkSettings, reader_properties

__all__ = ["SchemaLog"]

_PARTITION = 0
_POLL_S = 0.2


class SchemaLog:
    """A position in the log. Errors: SinkUnavailable, TopicMissing, SinkAuthorization, SchemasUnreadable."""

    def __init__(self, settings: SinkSettings, topic: str, *, is_committed: bool) -> None:
        self._topic = topic
        self._level = "read_committed" if is_committed else "read_uncommitted"
        self._consumer: Consumer | None = None
        self.renew(settings)
        self.position, _ = bounds(settings, topic)

    def renew(self, settings: SinkSettings) -> None:
        """Continue to read with these settings, from the same position."""
        self.close()
        self._settings = settings
        self._properties = reader_properties(settings) | {"isolation.level": self._level}

    def end(self) -> int:
        """Return the current end of the log, which is after every open transaction."""
        return bounds(self._settings, self._topic)[1]

    def read(
        self, schema_index: SchemaIndex, upto: int, deadline_s: float, *, is_stable_enough: bool = False
    ) -> list[tuple[int, RegisteredVersion]]:
        """Add the records below `upto` to the index; return them, each with the offset after it.

        Ends also after `deadline_s` seconds, and with `is_stable_enough` at the start of an open transaction;
        `position` shows how far.
        """
        consumer = self._opened()
        # Assigned again each time: the client reports the end of a partition only once.
        consumer.assign([TopicPartition(self._topic, _PARTITION, self.position)])
        ends_s = time.monotonic() + deadline_s
        taken: list[tuple[int, RegisteredVersion]] = []
        while self.position < upto and (left_s := ends_s - time.monotonic()) > 0:
            message = consumer.poll(min(left_s, _POLL_S))
            if message is None or (position := position_of(message, self._topic)) is None:
                continue
            error, key = message.error(), message.key()
            if (
                error is None
                and key is not None
                and (one := self._taken(schema_index, key, message)) is not None
            ):
                taken.append((position, one))
            self.position = max(self.position, position)
            if is_stable_enough and error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
        return taken

    def _taken(self, schema_index: SchemaIndex, key: bytes, message: Message) -> RegisteredVersion | None:
        try:
            return schema_index.take(key, message.value())
        except SchemasUnreadable as error:
            error.context |= {"topic": self._topic, "offset": message.offset()}
            raise

    def close(self) -> None:
        """Close the connection. May be called at any time."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _opened(self) -> Consumer:
        if self._consumer is None:
            with making_client():
                self._consumer = Consumer(self._properties, logger=CLIENT_LOG)
        return self._consumer
