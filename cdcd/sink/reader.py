"""Read the last committed progress record of a slot (F64, F76).

In: the sink's settings, after init_transactions has fenced older writers.  Out: the slot's Progress or None.
`peek` reads without fencing (F79), and says whether a later record may still be committed.
Invariant: `read_last` returns only when every record below the end of the log, as of the fencing, is decided and
read. It waits for the end of another slot's open transaction in the same topic, because our record may follow it.
The topic is compacted late and has one record per group, so it is read backwards from its end in growing windows.
Must not: join a consumer group, commit offsets, return None because of an error.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import ProgressUnreadable, SinkUnavailable
from cdcd.model import Progress
from cdcd.sink.admin import Admin
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import is_about_group, making_client, translate
from cdcd.sink.listed_offset import listed_offset
from cdcd.sink.progress import key_of, load
from cdcd.sink.settings import READS_TO_END, SinkSettings, reader_properties
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics

__all__ = [
    "Last",
    "bounds",
    "last_committed",
    "last_in",
    "next_messages",
    "peek",
    "position_of",
    "read_last",
    "read_topic_identities",
]

_FIRST_WINDOW = 1_000
_WINDOW_GROWTH = 20
_PARTITION = 0


@dataclass(frozen=True, slots=True)
class Last:
    """The slot's last committed record; a `value` of None is a tombstone: the slot has no progress."""

    offset: int
    value: bytes | None

    @property
    def progress(self) -> Progress | None:
        """The record's progress. Raises ProgressUnreadable."""
        return None if self.value is None else load(self.value)


def read_last(settings: SinkSettings) -> Last | None:
    """Return the slot's last committed progress record, None without one. Blocks up to the operation timeout.

    Raises SinkUnavailable at the deadline, TopicMissing, SinkAuthorization.
    """
    low, end = bounds(settings, settings.progress_topic)
    consumer = _consumer(settings)
    try:
        return _last_below(consumer, settings, low, end, settings.operation_timeout_s)
    finally:
        consumer.close()


def last_committed(settings: SinkSettings, low: int, stable: int) -> Progress | None:
    """Return the slot's last committed progress in these offsets, which end at the last stable offset or before.

    Raises the errors of `read_last`, and ProgressUnreadable.
    """
    consumer = _consumer(settings)
    try:
        last = _last_below(consumer, settings, low, stable, settings.operation_timeout_s)
    finally:
        consumer.close()
    return None if last is None else last.progress


def peek(
    settings: SinkSettings, timeout_s: float, admin: Admin | None = None
) -> tuple[Progress | None, bool]:
    """Return the slot's last committed progress, and whether it is final: no later one can be committed.

    No writer was fenced. An open transaction, as a running or a killed daemon leaves one, is waited for up to
    `timeout_s`; after that only the records before it count. Raises TopicMissing, SinkAuthorization,
    ProgressUnreadable, SinkUnavailable.
    """
    low, end = bounds(settings, settings.progress_topic, admin=admin)
    consumer = _consumer(settings)
    try:
        try:
            last, is_final = _last_below(consumer, settings, low, end, timeout_s), True
        except SinkUnavailable as error:
            upper = error.context.get("reached")
            if not isinstance(upper, int):
                raise
            last, is_final = _last_below(consumer, settings, low, upper, settings.operation_timeout_s), False
    finally:
        consumer.close()
    return (None if last is None else last.progress), is_final


def _last_below(
    consumer: Consumer, settings: SinkSettings, low: int, end: int, timeout_s: float
) -> Last | None:
    deadline = time.monotonic() + timeout_s
    window, upper = _FIRST_WINDOW, end
    while True:
        lower = max(low, upper - window)
        last = last_in(consumer, settings, lower, upper, deadline, key_of(settings.slot))
        if last is not None or lower == low:
            return last
        upper, window = lower, window * _WINDOW_GROWTH


def read_topic_identities(settings: SinkSettings, at: int) -> TopicIdentities:
    """Return the slot's topic identities, from the offset that its progress names (-1: none).

    Raises SinkUnavailable at the deadline, ProgressUnreadable, TopicMissing, SinkAuthorization.
    """
    if at < 0:
        return TopicIdentities()
    deadline = time.monotonic() + settings.operation_timeout_s
    consumer = _consumer(settings)
    try:
        key = key_of_topics(settings.slot)
        last = last_in(consumer, settings, at, at + 1, deadline, key, is_decided=True)
    finally:
        consumer.close()
    if last is None or last.value is None:
        raise ProgressUnreadable(
            "the record of the topics is not at the offset that the progress names",
            hint="the progress topic was recreated, or records in it were deleted: run `cdcd resnapshot` to copy the "
            "tables again",
            offset=at,
        )
    return TopicIdentities.load(last.value, at)


def bounds(
    settings: SinkSettings, topic: str, *, is_committed: bool = False, admin: Admin | None = None
) -> tuple[int, int]:
    """Return the start of the log of a topic's one partition, and its end, which is after every open transaction.

    `admin`: a client that is connected; without it the lookup connects one of its own.
    `is_committed`: return the last stable offset instead, below which a reader of committed records may read now.
    Raises SinkUnavailable, TopicMissing, SinkAuthorization.
    """
    admin = admin or Admin(settings)
    timeout_s = settings.operation_timeout_s
    doing = "looking up the end of a topic"
    error = admin.metadata(topic, doing, topic=topic).topics[topic].error
    if error is not None:
        raise translate(error, doing, topic=topic)
    partition = TopicPartition(topic, _PARTITION)
    level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
    asked = [
        admin.client.list_offsets(
            {partition: spec},
            isolation_level=level,
            request_timeout=timeout_s,
        )
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    ]
    low, end = (listed_offset(futures[partition], doing, topic) for futures in asked)
    if low > end:  # the answers are about two logs: the topic was recreated, or has a new leader
        raise SinkUnavailable(
            f"{doing}: the start of its log is after the end", topic=topic, low=low, end=end
        )
    return low, end


def _consumer(settings: SinkSettings) -> Consumer:
    with making_client():
        return Consumer(READS_TO_END | reader_properties(settings), logger=CLIENT_LOG)


def last_in(
    consumer: Consumer,
    settings: SinkSettings,
    lower: int,
    upper: int,
    deadline: float,
    key: bytes,
    *,
    is_decided: bool = False,
) -> Last | None:
    """Return the last record under this key in [lower, upper), as far as `consumer` may see it.

    Raises SinkUnavailable at the deadline, with the offset that was reached.
    `is_decided`: the caller knows that all of them are committed, so a log that ends earlier does not have them.
    """
    last, reached = None, lower
    consumer.assign([TopicPartition(settings.progress_topic, _PARTITION, lower)])
    while reached < upper:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise SinkUnavailable(
                "the progress topic could not be read to its end in time",
                hint="an open transaction, or a committed one whose marker a killed broker did not write, may "
                "block the topic (docs/kafka.md; kafka-transactions find-hanging); cdcd tries again",
                topic=settings.progress_topic,
                reached=reached,
                end=upper,
            )
        for message in next_messages(consumer, min(remaining_s, 1.0)):
            position = position_of(message, settings.progress_topic)
            if position is None:
                continue
            reached = max(reached, position)
            if is_decided and message.error() is not None:  # the end
                return last
            # A consumer at an offset that does not exist gets the log from its start.
            if message.error() is None and lower < position <= upper and message.key() == key:
                last = Last(position - 1, message.value())
    return last


def next_messages(consumer: Consumer, timeout_s: float) -> list[Message]:
    """Return the available messages, at the latest after the timeout; `consume` would wait for a full batch."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(num_messages=499, timeout=0)]


def position_of(message: Message, topic: str) -> int | None:
    """Return the offset up to which the log is read after this message, None for a transient error.

    Raises an error that ends the read: TopicMissing, SinkAuthorization, SinkError.
    """
    error = message.error()
    offset = message.offset()
    if error is None:
        return None if offset is None else int(offset) + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return None if offset is None else int(offset)
    if is_about_group(error):
        return None
    failure = translate(error, "reading a topic", topic=topic)
    if isinstance(failure, SinkUnavailable):
        return None  # the consumer retries by itself, until the caller's deadline
    raise failure
