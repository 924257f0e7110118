"""Check the ACLs on the transactional id without fencing a running cdcd (F79).

In: the sink's settings, the broker's longest transaction.  Out: a finding.
Invariant: the request has the slot's own id and a timeout that the broker does not allow. The broker checks the ACLs
first, then the timeout, and only after that the id's producer: so the reply shows the ACLs, and nothing changes.
Where the broker's limit is unknown or the maximum, the request would fence the running producer, so it is not sent.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.errors import SinkAuthorization, SinkError, SinkUnavailable
from cdcd.findings import Finding, failure
from cdcd.sink.error_map import error_of, making_client, translate
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.settings import SinkSettings, producer_properties

__all__ = ["check_by_another_id", "check_transactional_id"]

_NOBODY = logging.getLogger("cdcd.sink.refused_on_purpose")
_NOBODY.propagate = False
_NOBODY.addHandler(logging.NullHandler())
"""The client logs the expected reply as a fatal error."""
_NEVER_ALLOWED_MS = 2**31 - 1 - 100
"""librdkafka adds 100 to it, as an int of 32 bits, when it compares it with a given `socket.timeout.ms`."""
_LOOK_AGAIN_S = 1.0


def check_transactional_id(settings: SinkSettings, longest_ms: int | None) -> Finding | None:
    """Return a finding on the ACLs of the slot's transactional id; None where a request would fence a producer.

    `longest_ms`: the broker's transaction.max.timeout.ms, None where it cannot be read.
    """
    subject = _subject(settings)
    if longest_ms is not None and longest_ms < settings.transaction_timeout_ms:
        error = SinkError(
            f"sink.transaction_timeout_ms is {settings.transaction_timeout_ms}, the broker's maximum is {longest_ms}",
            hint=f"lower sink.transaction_timeout_ms to {longest_ms} or less, or raise the broker's "
            "transaction.max.timeout.ms",
        )
        return failure(subject, error)
    if longest_ms is None or longest_ms >= _NEVER_ALLOWED_MS:
        return None
    try:
        _ask(settings)
    except SinkError as error:
        if isinstance(error, SinkAuthorization):
            error.advice = f"grant Write and Describe on the transactional id {settings.transactional_id}"
        return failure(subject, error)
    return Finding("ok", subject, "transactions are allowed")


def check_by_another_id(settings: SinkSettings) -> Finding:
    """Return a finding from a test with the id `<transactional id>.check`, for when the slot's own id cannot be used.

    The test does not affect the slot's producer, but an ACL that names the slot's id literally refuses it.
    """
    probe_id = f"{settings.transactional_id}.check"
    sink = KafkaSink(dataclasses.replace(settings, transactional_id=probe_id, delivery="exactly_once"))
    try:
        sink.initialise_only()
    except SinkError as error:
        hint = (
            f"grant DescribeConfigs on the cluster, so that the check can use the id itself; or grant Write and "
            f"Describe on transactional ids with the prefix {settings.transactional_id}"
        )
        return Finding("unknown", _subject(settings), f"tried with {probe_id}: {error.without_hint}", hint)
    finally:
        sink.close()
    return Finding("ok", _subject(settings), f"transactions are allowed (tried with {probe_id})")


def _subject(settings: SinkSettings) -> str:
    return f"transactional id {settings.transactional_id}"


def _ask(settings: SinkSettings) -> None:
    """Return when the broker refuses the timeout, which means that the ACLs allow the id. Raises Sink errors."""
    properties = producer_properties(settings) | {"transaction.timeout.ms": _NEVER_ALLOWED_MS, "log_level": 0}
    with making_client():
        producer = Producer(properties, logger=_NOBODY)
    deadline_s = time.monotonic() + settings.operation_timeout_s
    while True:
        try:
            producer.init_transactions(_LOOK_AGAIN_S)
        except KafkaException as failed:
            error = error_of(failed)
            if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                return
            goes_on = error.retriable() or error.code() == KafkaError._TIMED_OUT
            refusal = translate(error, "checking the ACLs of the transactional id")
            if not goes_on or isinstance(refusal, SinkAuthorization) or time.monotonic() > deadline_s:
                raise refusal from failed
        else:
            raise SinkUnavailable("the broker's transaction.max.timeout.ms changed during the check")
