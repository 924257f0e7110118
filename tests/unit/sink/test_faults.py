"""The table from Kafka's error codes to who can mend them."""

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
from cdcd.sink import faults
from cdcd.sink.faults import kafka_errors, translate


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
        ("_AUTHENTICATION", SinkAuthorization, Retry.OPERATOR),
        ("TOPIC_AUTHORIZATION_FAILED", SinkAuthorization, Retry.OPERATOR),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", SinkAuthorization, Retry.OPERATOR),
        ("MSG_SIZE_TOO_LARGE", RecordTooLarge, Retry.OPERATOR),
        ("UNKNOWN_TOPIC_OR_PART", TopicMissing, Retry.OPERATOR),
        ("_UNKNOWN_TOPIC", TopicMissing, Retry.OPERATOR),
        ("_UNKNOWN_PARTITION", TopicMismatch, Retry.OPERATOR),
        ("POLICY_VIOLATION", SinkError, Retry.OPERATOR),
    ],
)
def test_a_code_has_one_class(name: str, cls: type[SinkError], retry: Retry) -> None:
    error = translate(KafkaError(getattr(KafkaError, name)), "delivering a record", topic="t", partition=3)
    assert type(error) is cls
    assert error.retry is retry
    assert "delivering a record" in str(error)
    assert "topic=t partition=3" in str(error)


def test_an_unlisted_code_that_kafka_calls_retriable_is_tried_again() -> None:
    error = translate(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, "later", False, True), "asking")
    assert type(error) is SinkUnavailable


def test_no_code_is_in_two_rows() -> None:
    rows = (
        faults._UNAVAILABLE,
        faults._FENCED,
        faults._AUTHORIZATION,
        faults._TOO_LARGE,
        faults._MISSING,
        faults._MISMATCH,
    )
    names = [name for row in rows for name in row]
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(KafkaError, name)] == []


def test_a_clients_exception_is_translated_in_a_block() -> None:
    with pytest.raises(SinkAuthorization), kafka_errors("asking"):
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
