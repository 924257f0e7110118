"""The errors of a record that is too large: for the client, for its queue, or for the broker (F65).

In: the record, or the message of a delivery report.  Out: RecordTooLarge, which names the limit.
Invariant: the error has the topic and the size, and where the record is known its index in the produced batch.
Must not: carry a key or a value.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from cdcd.errors import RecordTooLarge, SinkError, TopicMissing
from cdcd.model import Record
from cdcd.sink.error_map import translate

__all__ = [
    "larger_than_producer",
    "larger_than_topic",
    "never_fits",
    "of_own_topic",
    "size_of",
    "undelivered_error",
]

_GONE_HINT = (
    "the topic was deleted while cdcd wrote to it; `cdcd resume` retries, and names the commands if the topic had "
    "records"
)
_OR_A_MARKER = "or set sink.too_large: dead_letter, so that a marker replaces the row"
OWN_HINT = (
    "raise sink.properties.message.max.bytes and the topic's max.message.bytes, or the broker's message.max.bytes "
    "if the topic has none. sink.too_large: dead_letter does not help, because the record contains no row"
)


def size_of(record: Record) -> int:
    """Return the size of key and value in bytes."""
    return len(record.key or b"") + len(record.value or b"")


def larger_than_producer(record: Record, at: int) -> RecordTooLarge:
    """Return the error of a record that the client refuses."""
    message = "producing a record: larger than message.max.bytes"
    hint = (
        "raise sink.properties.message.max.bytes, and max.message.bytes of the topic if that is lower, and restart "
        f"cdcd; {_OR_A_MARKER}"
    )
    return _with_place(RecordTooLarge(message, hint=hint, topic=record.topic, size_bytes=size_of(record)), at)


def never_fits(record: Record, at: int) -> RecordTooLarge:
    """Return the error of a record that does not fit even in an empty queue."""
    refusal = RecordTooLarge(
        "producing a record: larger than the client's whole queue",
        hint="raise sink.properties.queue.buffering.max.kbytes above the record's size, and the limits of a record: "
        + RecordTooLarge.hint.removeprefix("raise "),
        topic=record.topic,
        size_bytes=size_of(record),
    )
    return _with_place(refusal, at)


def larger_than_topic(record: Record, at: int) -> RecordTooLarge:
    """Return the error of a record that the broker refuses even in its own batch."""
    message = "producing a record: larger than the topic's max.message.bytes"
    return _with_place(RecordTooLarge(message, topic=record.topic, size_bytes=size_of(record)), at)


def undelivered_error(error: KafkaError, message: Message) -> SinkError:
    """Return the error of an undelivered record; if the record is too large, the message names the limit."""
    place = {"topic": message.topic(), "partition": message.partition()}
    failure = translate(error, "delivering a record", **place)
    if isinstance(failure, TopicMissing):
        failure.advice = _GONE_HINT
    if not isinstance(failure, RecordTooLarge):
        return failure
    size_bytes = len(message.key() or b"") + len(message.value() or b"")
    return RecordTooLarge(
        "delivering a record: the broker refuses its batch, which is larger than the topic's max.message.bytes, or "
        "than the broker's message.max.bytes if the topic has none",
        **place,
        size_bytes=size_bytes,
    )


def of_own_topic(refusal: RecordTooLarge) -> RecordTooLarge:
    """Return the refusal with the hint for one of cdcd's own records: of schemas, topics or progress."""
    refusal.advice = OWN_HINT
    return refusal


def _with_place(refusal: RecordTooLarge, at: int) -> RecordTooLarge:
    refusal.at = at
    return refusal
