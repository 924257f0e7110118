"""The topic of signals: its committed records from an offset on, without a consumer group.

In: the sink's settings, a topic of one partition, the offset of the next record.  Out: records in their order.
Invariant: no record between the offset and the last record that was returned is missing, unless it was deleted from
the topic before; that is one line in the log. Memory is bounded, whatever others write to the topic.
Must not: interpret a record, join a consumer group, commit offsets, log the content of a record.
`open` and `close` block and belong in a thread; `take` does not block.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdcd.errors import SinkError, SinkUnavailable, TopicMissing
from cdcd.sink.admin import Admin
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import is_about_group, kafka_errors, making_client, translate
from cdcd.sink.reader import bounds
from cdcd.sink.settings import SinkSettings, reader_properties

__all__ = ["OffsetGone", "SignalRecord", "SignalTopic", "end_of_signals"]

_LOG = structlog.stdlib.get_logger("cdcd.sink.signals")
_PARTITION = 0
_DOING = "reading the topic of signals"
_LIMITS: dict[str, object] = {
    "queued.max.messages.kbytes": 1024,
    "fetch.message.max.bytes": 256 << 10,
    "fetch.max.bytes": 1 << 20,
    "enable.partition.eof": False,
    "auto.offset.reset": "error",  # a reset by the client itself would be silent
    "max.poll.interval.ms": 86_400_000,  # a command may run long, and there is no group to leave
}


@dataclass(frozen=True, slots=True)
class SignalRecord:
    """A record of the topic."""

    offset: int
    key: bytes | None
    value: bytes | None


def end_of_signals(settings: SinkSettings, topic: str) -> int:
    """Return the offset of the next record that a reader of committed records may get.

    Raises TopicMissing, SinkAuthorization, SinkUnavailable.
    """
    try:
        return bounds(settings, topic, is_committed=True)[1]
    except TopicMissing as error:
        raise _missing(topic) from error


def _missing(topic: str) -> TopicMissing:
    """Return the error for a topic that holds no changes: nothing is lost with it, unlike with other topics."""
    return TopicMissing(
        "the topic of signals does not exist",
        hint="create it with one partition, or remove snapshot.signals.topic and restart cdcd",
        topic=topic,
    )


class OffsetGone(Exception):
    """The topic does not have the next offset any more; `open` finds another one."""


class SignalTopic:
    """`next_offset`: None begins at the end of the topic, as of `open`; later the offset of the next record."""

    def __init__(self, settings: SinkSettings, topic: str, next_offset: int | None) -> None:
        self._settings = settings
        self._topic = topic
        self.next_offset = next_offset
        self._consumer: Consumer | None = None
        self._is_assigned = False

    def open(self) -> int:
        """Return the offset from which `take` reads.

        Raises TopicMissing, SinkAuthorization, SinkUnavailable, and SinkError for a topic of several partitions.
        """
        self.close()
        self._require_one_partition()
        self.next_offset = self._position()
        with making_client():
            self._consumer = Consumer(reader_properties(self._settings) | _LIMITS, logger=CLIENT_LOG)
        return self.next_offset

    def renew(self, settings: SinkSettings) -> None:
        """Use these settings at the next `open`."""
        self._settings = settings

    def take(self) -> SignalRecord | None:
        """Return the next record; None if there is none now.

        Raises OffsetGone, and errors that end the reading; a broker that does not answer is waited for.
        """
        consumer = self._consumer
        if consumer is None or self.next_offset is None:
            raise SinkUnavailable("the topic of signals is not open", topic=self._topic)
        if not self._is_assigned:
            with kafka_errors(_DOING, topic=self._topic):
                consumer.assign([TopicPartition(self._topic, _PARTITION, self.next_offset)])
            self._is_assigned = True
        message = consumer.poll(0)
        if message is None:
            return None
        error, offset = message.error(), message.offset()
        if error is not None:
            self._raise(error)
            return None
        if offset is None or offset < self.next_offset:
            return None
        self.next_offset = offset + 1
        return SignalRecord(offset, message.key(), message.value())

    def close(self) -> None:
        """Release the client. May be called at any time."""
        consumer, self._consumer = self._consumer, None
        self._is_assigned = False
        if consumer is not None:
            consumer.close()

    # --- inside ---

    def _require_one_partition(self) -> None:
        found = Admin(self._settings).metadata(self._topic, _DOING, topic=self._topic).topics[self._topic]
        if found.error is not None:
            error = translate(found.error, _DOING, topic=self._topic)
            if not isinstance(error, TopicMissing):
                raise error
            raise _missing(self._topic)
        if len(found.partitions) != 1:
            raise SinkError(
                f"the topic of signals has {len(found.partitions)} partitions, so its records have no order",
                hint="set snapshot.signals.topic to a topic with one partition, and restart cdcd",
                topic=self._topic,
            )

    def _position(self) -> int:
        """Return the next offset, if the topic still has it, otherwise the nearest record that was not read yet."""
        low, end = bounds(self._settings, self._topic, is_committed=True)
        wanted = self.next_offset
        if wanted is None:
            return end
        if low <= wanted <= end:
            return wanted
        # Below the start: the records were deleted. Above the end: the topic was created again, and its records may
        # be older than the last one that was read.
        found = low if wanted < low else end
        _LOG.warning(
            "snapshot_signals_skipped",
            topic=self._topic,
            from_offset=wanted,
            to_offset=found,
            hint="records were deleted, or the topic was recreated: send each signal that had no effect again",
        )
        return found

    def _raise(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise OffsetGone
        if is_about_group(error):
            return
        failure = translate(error, _DOING, topic=self._topic)
        if not isinstance(failure, SinkUnavailable):
            raise failure
