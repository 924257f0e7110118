"""The table from Kafka's error codes to cdcd's error classes."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.errors import (
    RecordTooLarge,
    Retry,
    SinkAuthorization,
    SinkError,
    SinkFenced,
    SinkUnavailable,
    TopicMismatch,
    TopicMissing,
)
from cdcd.sink import error_map
from cdcd.sink.error_map import kafka_errors, translate


@pytest.mark.parametrize(
    ("name", "cls", "retry"),
    [
        ("_TRANSPORT", SinkUnavailable, Retry.AUTO),
        ("_MSG_TIMED_OUT", SinkUnavailable, Retry.AUTO),
        ("NOT_ENOUGH_REPLICAS", SinkUnavailable, Retry.AUTO),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", SinkUnavailable, Retry.AUTO),
        ("_FENCED", SinkFenced, Retry.NEVER),
        ("PRODUCER_FENCED", SinkFenced, Retry.NEVER),
        ("INVALID_PRODUCER_EPOCH", SinkFenced, Retry.NEVER),
        ("_AUTHENTICATION", SinkAuthorization, Retry.AUTO),
        ("TOPIC_AUTHORIZATION_FAILED", SinkAuthorization, Retry.AUTO),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", SinkAuthorization, Retry.AUTO),
        ("MSG_SIZE_TOO_LARGE", RecordTooLarge, Retry.OPERATOR),
        ("UNKNOWN_TOPIC_OR_PART", TopicMissing, Retry.OPERATOR),
        ("_UNKNOWN_TOPIC", TopicMissing, Retry.OPERATOR),
        ("_UNKNOWN_PARTITION", TopicMismatch, Retry.OPERATOR),
        ("INVALID_TXN_STATE", SinkUnavailable, Retry.AUTO),
        ("_FATAL", SinkUnavailable, Retry.AUTO),
        ("DELEGATION_TOKEN_EXPIRED", SinkAuthorization, Retry.AUTO),
        ("POLICY_VIOLATION", SinkError, Retry.OPERATOR),
    ],
)
def test_a_code_has_one_class(name: str, cls: type[SinkError], retry: Retry) -> None:
    error = translate(KafkaError(getattr(KafkaError, name)), "delivering a record", topic="t", partition=3)
    assert type(error) is cls
    assert error.retry is retry
    assert "delivering a record" in str(error)
    assert "topic=t partition=3" in str(error)


UNKNOWN_CODE = 9999


@pytest.mark.parametrize(
    ("fatal", "retriable", "abortable", "cls"),
    [
        (False, True, False, SinkUnavailable),  # Kafka marks it as retriable
        (False, False, True, SinkUnavailable),  # only this transaction must be aborted
        (True, False, False, SinkError),
        (False, False, False, SinkError),
    ],
)
def test_a_code_without_a_row_is_judged_by_its_flags(
    fatal: bool, retriable: bool, abortable: bool, cls: type[SinkError]
) -> None:
    error = KafkaError(UNKNOWN_CODE, "of a broker newer than the client", fatal, retriable, abortable)
    assert type(translate(error, "asking")) is cls


ROWS = (
    error_map._UNAVAILABLE,
    error_map._FENCED,
    error_map._AUTHORIZATION,
    error_map._TOO_LARGE,
    error_map._MISSING,
    error_map._MISMATCH,
    error_map._REFUSED,
)
CANNOT_BE_MET = {
    "no error": {"NO_ERROR", "_PARTITION_EOF", "_NOOP", "_ASSIGN_PARTITIONS", "_REVOKE_PARTITIONS"},
    "consumer groups": {
        "FENCED_INSTANCE_ID",
        "FENCED_MEMBER_EPOCH",
        "GROUP_ID_NOT_FOUND",
        "GROUP_MAX_SIZE_REACHED",
        "GROUP_SUBSCRIBED_TO_TOPIC",
        "ILLEGAL_GENERATION",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_COMMIT_OFFSET_SIZE",
        "INVALID_GROUP_ID",
        "INVALID_REGULAR_EXPRESSION",
        "INVALID_SESSION_TIMEOUT",
        "MEMBER_ID_REQUIRED",
        "NON_EMPTY_GROUP",
        "OFFSET_METADATA_TOO_LARGE",
        "REBALANCE_IN_PROGRESS",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
        "UNRELEASED_INSTANCE_ID",
        "UNSTABLE_OFFSET_COMMIT",
        "UNSUPPORTED_ASSIGNOR",
        "_ASSIGNMENT_LOST",
        "_EXISTING_SUBSCRIPTION",
        "_MAX_POLL_EXCEEDED",
        "_UNKNOWN_GROUP",
    },
    "share groups and streams groups": {
        "FENCED_STATE_EPOCH",
        "INVALID_RECORD_STATE",
        "INVALID_SHARE_SESSION_EPOCH",
        "SHARE_SESSION_LIMIT_REACHED",
        "SHARE_SESSION_NOT_FOUND",
        "STREAMS_INVALID_TOPOLOGY",
        "STREAMS_INVALID_TOPOLOGY_EPOCH",
        "STREAMS_TOPOLOGY_FENCED",
    },
    "administration that cdcd never does": {
        "DUPLICATE_RESOURCE",
        "ELECTION_NOT_NEEDED",
        "FEATURE_UPDATE_FAILED",
        "INVALID_PRINCIPAL_TYPE",
        "INVALID_UPDATE_VERSION",
        "NO_REASSIGNMENT_IN_PROGRESS",
        "REASSIGNMENT_IN_PROGRESS",
        "RESOURCE_NOT_FOUND",
        "SECURITY_DISABLED",
        "TOPIC_DELETION_DISABLED",
        "UNACCEPTABLE_CREDENTIAL",
    },
    "between brokers and controllers": {
        "DUPLICATE_VOTER",
        "INCONSISTENT_VOTER_SET",
        "INVALID_REGISTRATION",
        "INVALID_VOTER_KEY",
        "LISTENER_NOT_FOUND",
        "MISMATCHED_ENDPOINT_TYPE",
        "OPERATION_NOT_ATTEMPTED",
        "UNSUPPORTED_ENDPOINT_TYPE",
        "VOTER_NOT_FOUND",
    },
    "fetch sessions, which the client mends itself": {
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
    },
    "telemetry": {"TELEMETRY_TOO_LARGE", "UNKNOWN_SUBSCRIPTION_ID"},
    "serializers of the client, which cdcd does not use": {
        "_INVALID_DIFFERENT_RECORD",
        "_INVALID_TYPE",
        "_KEY_DESERIALIZATION",
        "_KEY_SERIALIZATION",
        "_PARTIAL",
        "_VALUE_DESERIALIZATION",
        "_VALUE_SERIALIZATION",
    },
}
"""Error codes of the installed client that producers, readers of one partition and admin requests never get."""


def test_every_code_of_the_client_is_in_the_table_or_cannot_be_met() -> None:
    """A new librdkafka may add codes: each needs a row, or a reason for having none."""
    known = {name for row in ROWS for name in row}
    impossible = {name for names in CANNOT_BE_MET.values() for name in names}
    codes = {
        name
        for name in vars(KafkaError)
        if name.strip("_").isupper() and isinstance(getattr(KafkaError, name), int)
    }
    assert codes - known - impossible == set()
    assert known & impossible == set()
    assert impossible - codes == set()


def test_no_code_is_in_two_rows() -> None:
    names = [name for row in ROWS for name in row]
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(KafkaError, name)] == []


def test_a_clients_exception_is_translated_in_a_block() -> None:
    with pytest.raises(SinkAuthorization), kafka_errors("asking"):
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
