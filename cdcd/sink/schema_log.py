"""The log of a schema topic, read forward into a book.

In: the sink's settings, the topic.  Out: its records in a `Book`, from the log's beginning on.
Invariant: `position` is how far everything has been taken: committed records alone, or (`is_committed` False) what
open and aborted transactions have written as well, which is what a writer has to know before it gives out an id.
Must not: write, join a consumer group, pass over a record that it cannot read.
Everything here blocks and belongs in a thread.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from cdcd.errors import SchemasUnreadable
from cdcd.schema.schema_index import Registered, SchemaIndex
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import making_client
from cdcd.sink.reader import bounds, position_of
from cdcd.sink.settings import SinkSettings, reader_properties

__all__ = ["SchemaLog"]

_PARTITION = 0
_POLL_S = 0.2


class SchemaLog:
    """A place in the log. Errors: SinkUnavailable, TopicMissing, SinkAuthorization, SchemasUnreadable."""

    def __init__(self, settings: SinkSettings, topic: str, *, is_committed: bool) -> None:
        self._topic = topic
        self._level = "read_committed" if is_committed else "read_uncommitted"
        self._consumer: Consumer | None = None
        self.renew(settings)
        self.position, _ = bounds(settings, topic)

    def renew(self, settings: SinkSettings) -> None:
        """Read on with these settings, from the same place."""
        self.close()
        self._settings = settings
        self._properties = reader_properties(settings) | {"isolation.level": self._level}

    def end(self) -> int:
        """Return where the log ends now, beyond every open transaction."""
        return bounds(self._settings, self._topic)[1]

    def read(
        self, schema_index: SchemaIndex, upto: int, deadline_s: float, *, is_stable_enough: bool = False
    ) -> list[tuple[int, Registered]]:
        """Take what is in the log below `upto`; return what it says, each with the offset after it.

        Ends at the deadline (seconds from now) as well, and with `is_stable_enough` where a transaction that is
        still open begins: `position` tells.
        """
        consumer = self._opened()
        # Assigned again each time: the client tells the end of a partition only once.
        consumer.assign([TopicPartition(self._topic, _PARTITION, self.position)])
        ends_s = time.monotonic() + deadline_s
        taken: list[tuple[int, Registered]] = []
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

    def _taken(self, schema_index: SchemaIndex, key: bytes, message: Message) -> Registered | None:
        try:
            return schema_index.take(key, message.value())
        except SchemasUnreadable as error:
            error.context |= {"topic": self._topic, "offset": message.offset()}
            raise

    def close(self) -> None:
        """Let the connection go. May be called at any time."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _opened(self) -> Consumer:
        if self._consumer is None:
            with making_client():
                self._consumer = Consumer(self._properties, logger=CLIENT_LOG)
        return self._consumer
