"""Read the last committed progress record of a slot (F64, F76).

In: the sink's settings, after init_transactions has fenced older writers.  Out: the slot's Progress or None.
`peek` reads without fencing (F79), and says whether a later record may still be committed.
A record that the request of an ended session has written late is not the last one, if the slot proves it (F77).
Invariant: `read_last` returns only when every record below the end of the log, as of the fencing, is decided and
read. It waits for the end of another slot's open transaction in the same topic, because our record may follow it.
The topic is compacted late and has one record per group, so it is read backwards from its end in growing windows.
Other slots may have written any number of records since: the read fails where it does not get on, not after a time.
Must not: join a consumer group, commit offsets, return None because of an error.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import ProgressUnreadable, SinkUnavailable
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import Progress
from cdcd.sink.admin import Admin
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import is_about_group, making_client, translate
from cdcd.sink.late_progress import Overtaken, may_be_late
from cdcd.sink.listed_offset import listed_offset
from cdcd.sink.progress import key_of, load
from cdcd.sink.settings import READS_TO_END, SinkSettings, reader_properties
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics

__all__ = [
    "Last",
    "ReadTimeout",
    "bounds",
    "last_committed",
    "last_in",
    "next_messages",
    "overtaken_by",
    "peek",
    "position_of",
    "read_last",
    "read_topic_identities",
]

_FIRST_WINDOW = 1_000
_WINDOW_GROWTH = 4
_LATE_WITHIN = 20_000
"""How many records before a late one may be those of later positions: a slot is confirmed seconds after a commit."""
_PARTITION = 0
_SILENT_HINT = (
    "the broker sends no more records of the topic: look for errors in its log, and for quotas of consumers; cdcd "
    "tries again"
)


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
    """Return the slot's last committed progress record, None without one. Blocks while the broker sends records.

    Raises SinkUnavailable if none arrives for the operation timeout, TopicMissing, SinkAuthorization.
    """
    low, end = bounds(settings, settings.progress_topic)
    consumer = _consumer(settings)
    try:
        return _last_below(consumer, settings, low, end, settings.operation_timeout_s)
    finally:
        consumer.close()


def overtaken_by(settings: SinkSettings, last: Last | None, confirmed_lsn: Callable[[], Lsn]) -> Last | None:
    """Return the record that is the position instead of the last one, because that one is late; None if it is not.

    `confirmed_lsn` returns the LSN that the slot is confirmed up to. Raises SinkUnavailable, SinkAuthorization,
    ProgressUnreadable.
    """
    late = None if last is None else last.progress
    if last is None or late is None or late.transactional_id:
        return None
    proof_lsn = confirmed_lsn()
    if not may_be_late(late, proof_lsn):
        return None
    low, _ = bounds(settings, settings.progress_topic)
    overtaken = Overtaken[Last](late, proof_lsn)
    lower = max(low, last.offset - _LATE_WITHIN)

    def take(record: Last) -> None:
        progress = None
        with contextlib.suppress(ProgressUnreadable):
            progress = record.progress
        overtaken.take(progress, record)

    timeout = ReadTimeout.of_silence(settings.operation_timeout_s)
    consumer = _consumer(settings)
    try:
        _read(consumer, settings, lower, last.offset, timeout, key_of(settings.slot), take)
    finally:
        consumer.close()
    return overtaken.found


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
    settings: SinkSettings,
    timeout_s: float,
    admin: Admin | None = None,
    confirmed_lsn: Lsn = INVALID_LSN,
) -> tuple[Progress | None, bool]:
    """Return the slot's last committed progress, and whether it is final: no later one can be committed.

    No writer was fenced. An open transaction, as a running or a killed daemon leaves one, is waited for up to
    `timeout_s`; after that only the records before it count. `confirmed_lsn`: what the slot is confirmed up to, if
    known. Raises TopicMissing, SinkAuthorization, ProgressUnreadable, SinkUnavailable.
    """
    low, end = bounds(settings, settings.progress_topic, admin=admin)
    consumer = _consumer(settings)
    try:
        try:
            last, is_final = _last_below(consumer, settings, low, end, timeout_s), True
        except SinkUnavailable as error:
            upper = error.context.get("reached")
            if not isinstance(upper, int) or error.context.get("end") != end:
                raise
            last, is_final = _last_below(consumer, settings, low, upper, settings.operation_timeout_s), False
    finally:
        consumer.close()
    last = overtaken_by(settings, last, lambda: confirmed_lsn) or last
    return (None if last is None else last.progress), is_final


def _last_below(
    consumer: Consumer, settings: SinkSettings, low: int, end: int, timeout_s: float
) -> Last | None:
    """Return the slot's last record below `end`. `timeout_s`: how long to wait in the newest window, see `peek`."""
    found: deque[Last] = deque(maxlen=1)
    key, window, upper = key_of(settings.slot), _FIRST_WINDOW, end
    while True:
        lower = max(low, upper - window)
        try:
            _read(consumer, settings, lower, upper, ReadTimeout.of_silence(timeout_s), key, found.append)
        except SinkUnavailable as error:
            if upper != end:  # below the end of the log as far as it is committed
                error.advice = _SILENT_HINT
            raise
        if found or lower == low:
            return found[0] if found else None
        upper, window, timeout_s = lower, window * _WINDOW_GROWTH, settings.operation_timeout_s


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


class ReadTimeout:
    """How long a read may wait for the next record: until a time, or for so long after each one that arrived."""

    def __init__(self, deadline: float, silence_s: float = 0.0) -> None:
        self._deadline = deadline
        self._silence_s = silence_s

    @classmethod
    def of_silence(cls, silence_s: float) -> ReadTimeout:
        """Return one for a read of any length, which ends where no record arrives for so long."""
        return cls(time.monotonic() + silence_s, silence_s)

    @property
    def left_s(self) -> float:
        """How long to wait for the next record; not above 0 at the end."""
        return self._deadline - time.monotonic()

    def renew(self) -> None:
        """Note that the read has got on."""
        if self._silence_s:
            self._deadline = time.monotonic() + self._silence_s


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
    found: deque[Last] = deque(maxlen=1)
    timeout = ReadTimeout(deadline)
    _read(consumer, settings, lower, upper, timeout, key, found.append, is_decided=is_decided)
    return found[0] if found else None


def _read(
    consumer: Consumer,
    settings: SinkSettings,
    lower: int,
    upper: int,
    timeout: ReadTimeout,
    key: bytes,
    take: Callable[[Last], None],
    *,
    is_decided: bool = False,
) -> None:
    """Pass each record under this key in [lower, upper) to `take`. See `last_in`."""
    reached = lower
    consumer.assign([TopicPartition(settings.progress_topic, _PARTITION, lower)])
    while reached < upper:
        remaining_s = timeout.left_s
        if remaining_s <= 0:
            raise _not_read(settings.progress_topic, reached, upper)
        before = reached
        for message in next_messages(consumer, min(remaining_s, 1.0)):
            position = position_of(message, settings.progress_topic)
            if position is None:
                continue
            reached = max(reached, position)
            if is_decided and message.error() is not None:  # the end
                return
            # A consumer at an offset that does not exist gets the log from its start.
            if message.error() is None and lower < position <= upper and message.key() == key:
                take(Last(position - 1, message.value()))
        if reached > before:
            timeout.renew()


def _not_read(topic: str, reached: int, end: int) -> SinkUnavailable:
    return SinkUnavailable(
        "the progress topic could not be read to its end in time",
        hint="an open transaction, or a committed one whose marker a killed broker did not write, may "
        "block the topic (docs/kafka.md; kafka-transactions find-hanging); cdcd tries again",
        topic=topic,
        reached=reached,
        end=end,
    )


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
