"""The one table from Kafka's error codes to cdcd's errors.

In: a KafkaError of any client, and what was being done.  Out: the cdcd error that says who can mend it.
Invariant: a code that the table does not know waits for an operator, unless Kafka itself says that it may be
tried again or that only this transaction is lost.
Must not: put anything of a record but its topic, partition and size into a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from cdcd.errors import (
    RecordTooLarge,
    SinkAuthorization,
    SinkError,
    SinkFenced,
    SinkUnavailable,
    TopicMismatch,
    TopicMissing,
)

__all__ = ["error_of", "kafka_errors", "translate"]

_UNAVAILABLE = (
    "_ALL_BROKERS_DOWN",
    "_DESTROY",
    "_FAIL",
    "_ISR_INSUFF",
    "_MSG_TIMED_OUT",
    "_PURGE_INFLIGHT",
    "_PURGE_QUEUE",
    "_QUEUE_FULL",
    "_RESOLVE",
    "_SSL",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_WAIT_COORD",
    "BROKER_NOT_AVAILABLE",
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "INVALID_PRODUCER_ID_MAPPING",
    "KAFKA_STORAGE_ERROR",
    "LEADER_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "THROTTLING_QUOTA_EXCEEDED",
    "TRANSACTION_ABORTABLE",
    "UNKNOWN_PRODUCER_ID",
)
_FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "TRANSACTION_COORDINATOR_FENCED")
_AUTHORIZATION = (
    "_AUTHENTICATION",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
)
_TOO_LARGE = ("INVALID_MSG_SIZE", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_MISSING = ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PART")
_MISMATCH = ("_UNKNOWN_PARTITION",)


def _by_code() -> dict[int, type[SinkError]]:
    rows: tuple[tuple[type[SinkError], tuple[str, ...]], ...] = (
        (SinkUnavailable, _UNAVAILABLE),
        (SinkFenced, _FENCED),
        (SinkAuthorization, _AUTHORIZATION),
        (RecordTooLarge, _TOO_LARGE),
        (TopicMissing, _MISSING),
        (TopicMismatch, _MISMATCH),
    )
    # A code that the installed client is too old to name is met as an unknown number.
    return {
        getattr(KafkaError, name): cls for cls, names in rows for name in names if hasattr(KafkaError, name)
    }


_CLASSES = _by_code()
_HINTS: dict[type[SinkError], str] = {
    SinkAuthorization: "grant the principal what `cdcd check` lists, or mend its credentials",
    TopicMissing: "create the topic, or set sink.topics.create",
    TopicMismatch: "the number of partitions changed while cdcd ran; restart it",
}
COLLISION_HINT = (
    "Kafka takes . and _ in topic names for one character: put another between schema and table in "
    "sink.topics.template, such as {name}.{schema}-{table}"
)


def translate(error: KafkaError, doing: str, **context: object) -> SinkError:
    """Return the cdcd error for a Kafka error that came up while `doing` something."""
    cls = _CLASSES.get(error.code())
    if cls is None:
        cls = SinkUnavailable if error.retriable() or error.txn_requires_abort() else SinkError
    # Names are legal by their escapes, so what is wrong with one is that another is too near to it.
    hint = COLLISION_HINT if error.code() == KafkaError.TOPIC_EXCEPTION else _HINTS.get(cls)
    return cls(f"{doing}: {error.str()}", hint=hint, kafka=error.name(), **context)


def error_of(failure: KafkaException) -> KafkaError:
    """Return the KafkaError inside an exception, `_APPLICATION` when it holds none."""
    inner = failure.args[0] if failure.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._APPLICATION, str(failure))


@contextmanager
def kafka_errors(doing: str, **context: object) -> Iterator[None]:
    """Translate what a client of Kafka raises inside the block."""
    try:
        yield
    except KafkaException as failure:
        raise translate(error_of(failure), doing, **context) from failure
