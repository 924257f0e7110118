"""The one table from Kafka's error codes to cdcd's errors.

In: a KafkaError of any client, and the operation that failed.  Out: the cdcd error that says who can resolve it.
Invariant: a code that is not in the table waits for an operator, unless Kafka reports it as retriable or says that
only this transaction is lost. Each code is in one row. A test lists the codes that no client of cdcd can meet, and
finds a code that a new librdkafka adds.
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
from cdcd.property_names import FILE_PROPERTIES
from cdcd.sink.hints import hint_for

__all__ = ["error_of", "is_about_group", "kafka_errors", "making_client", "translate"]

_UNAVAILABLE = (
    "_ALL_BROKERS_DOWN",
    "_BAD_MSG",
    "_CONFLICT",
    "_CRIT_SYS_RESOURCE",
    "_DESTROY",
    "_DESTROY_BROKER",
    "_FAIL",
    "_FATAL",
    "_IN_PROGRESS",
    "_INTR",
    "_ISR_INSUFF",
    "_MSG_TIMED_OUT",
    "_NODE_UPDATE",
    "_OUTDATED",
    "_PREV_IN_PROGRESS",
    "_PURGE_INFLIGHT",
    "_PURGE_QUEUE",
    "_QUEUE_FULL",
    "_RESOLVE",
    "_RETRY",
    "_SSL",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_TRANSPORT",
    "_UNDERFLOW",
    "_UNKNOWN_BROKER",
    "_WAIT_CACHE",
    "_WAIT_COORD",
    "BROKER_NOT_AVAILABLE",
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "DUPLICATE_SEQUENCE_NUMBER",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "INVALID_MSG",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TXN_STATE",
    "KAFKA_STORAGE_ERROR",
    "LEADER_NOT_AVAILABLE",
    "LOG_DIR_NOT_FOUND",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "REBOOTSTRAP_REQUIRED",
    "REPLICA_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "STALE_BROKER_EPOCH",
    "STALE_CTRL_EPOCH",
    "THROTTLING_QUOTA_EXCEEDED",
    "TRANSACTION_ABORTABLE",
    "UNKNOWN",
    "UNKNOWN_CONTROLLER_ID",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_PRODUCER_ID",
)
_FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "TRANSACTION_COORDINATOR_FENCED")
_AUTHORIZATION = (
    "_AUTHENTICATION",
    "CLUSTER_AUTHORIZATION_FAILED",
    "DELEGATION_TOKEN_AUTH_DISABLED",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    "DELEGATION_TOKEN_EXPIRED",
    "DELEGATION_TOKEN_NOT_FOUND",
    "DELEGATION_TOKEN_OWNER_MISMATCH",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    "GROUP_AUTHORIZATION_FAILED",
    "ILLEGAL_SASL_STATE",
    "PRINCIPAL_DESERIALIZATION_FAILURE",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
)
_TOO_LARGE = ("INVALID_MSG_SIZE", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_MISSING = ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PART")
_MISMATCH = ("_UNKNOWN_PARTITION", "INCONSISTENT_TOPIC_ID")
_REFUSED = (
    # The configuration or the broker's rules do not allow the operation, or the cause must not be guessed.
    "_APPLICATION",
    "_AUTO_OFFSET_RESET",
    "_BAD_COMPRESSION",
    "_FS",
    "_GAPLESS_GUARANTEE",
    "_INCONSISTENT",
    "_INVALID_ARG",
    "_LOG_TRUNCATION",
    "_NO_OFFSET",
    "_NOENT",
    "_NOT_CONFIGURED",
    "_NOT_IMPLEMENTED",
    "_READ_ONLY",
    "_STATE",
    "_UNKNOWN_PROTOCOL",
    "_UNSUPPORTED_FEATURE",
    "INVALID_CONFIG",
    "INVALID_PARTITIONS",
    "INVALID_RECORD",
    "INVALID_REPLICA_ASSIGNMENT",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_REQUEST",
    "INVALID_REQUIRED_ACKS",
    "INVALID_TIMESTAMP",
    "INVALID_TRANSACTION_TIMEOUT",
    "OFFSET_OUT_OF_RANGE",
    "POLICY_VIOLATION",
    "TOPIC_ALREADY_EXISTS",
    "TOPIC_EXCEPTION",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "UNSUPPORTED_VERSION",
)


def _by_code() -> dict[int, type[SinkError]]:
    rows: tuple[tuple[type[SinkError], tuple[str, ...]], ...] = (
        (SinkUnavailable, _UNAVAILABLE),
        (SinkFenced, _FENCED),
        (SinkAuthorization, _AUTHORIZATION),
        (RecordTooLarge, _TOO_LARGE),
        (TopicMissing, _MISSING),
        (TopicMismatch, _MISMATCH),
        (SinkError, _REFUSED),
    )
    # A client too old to name a code reports it as an unknown number.
    return {
        getattr(KafkaError, name): cls for cls, names in rows for name in names if hasattr(KafkaError, name)
    }


_CLASSES = _by_code()


def translate(error: KafkaError, doing: str, **context: object) -> SinkError:
    """Return the cdcd error for a Kafka error of the operation `doing`."""
    cls = _CLASSES.get(error.code())
    if cls is None:
        cls = SinkUnavailable if error.retriable() or error.txn_requires_abort() else SinkError
    return cls(f"{doing}: {error.str()}", hint=hint_for(error) or None, kafka=error.name(), **context)


def is_about_group(error: KafkaError) -> bool:
    """Whether a consumer reports only that its principal has no right on its `group.id`.

    librdkafka looks for the coordinator of the group although cdcd reads assigned partitions and commits no offsets;
    the refusals, which it repeats, come among the records, and the records do not depend on them.
    """
    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)


def error_of(failure: KafkaException) -> KafkaError:
    """Return the KafkaError inside an exception, `_APPLICATION` when it holds none."""
    inner = failure.args[0] if failure.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._APPLICATION, str(failure))


@contextmanager
def kafka_errors(doing: str, **context: object) -> Iterator[None]:
    """Translate a KafkaException that is raised inside the block."""
    try:
        yield
    except KafkaException as failure:
        raise translate(error_of(failure), doing, **context) from failure


@contextmanager
def making_client() -> Iterator[None]:
    """Translate librdkafka's error about the properties of a client that is created inside the block.

    An unusable file is AUTO: it may be half of a pair that is being replaced (a certificate and its key).
    """
    try:
        yield
    except KafkaException as failure:
        text = error_of(failure).str()
        if any(f"{name} failed" in text for name in FILE_PROPERTIES):
            raise SinkAuthorization(
                f"librdkafka cannot use a file that sink.properties names: {text}",
                hint="correct the file or its owner; cdcd tries again, and reads the file at each attempt",
            ) from failure
        raise SinkError(
            f"librdkafka refuses sink.properties: {text}", hint="correct sink.properties, and restart cdcd"
        ) from failure
