"""Whether the principal may use the slot's Kafka transactions, asked without fencing a cdcd that is running (F79).

In: the sink's settings, the broker's longest transaction.  Out: a finding.
Invariant: the broker is asked with the slot's own id and a time-out that it does not allow: it looks at the rights
first, at the time-out then, and at the id's producer only after that, so the answer tells of the rights and nothing
is changed. Where the broker's limit is not known, or is the largest there is, that would be no question but a
takeover, and it is not asked.
"""

from __future__ import annotations

import dataclasses
import logging
import time

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.errors import SinkAuthorization, SinkError, SinkUnavailable
from cdcd.findings import Finding, failure
from cdcd.sink.error_map import error_of, making_client, translate
from cdcd.sink.producer import KafkaSink
from cdcd.sink.settings import SinkSettings, producer_properties

__all__ = ["check_by_another_id", "check_transactional_id"]

_NOBODY = logging.getLogger("cdcd.sink.refused_on_purpose")
_NOBODY.propagate = False
_NOBODY.addHandler(logging.NullHandler())
"""The client calls the answer that is wanted here a fatal error."""
_NEVER_ALLOWED_MS = 2**31 - 1 - 100
"""librdkafka compares a `socket.timeout.ms` that is given with this and 100 more, as an int of 32 bits."""
_LOOK_AGAIN_S = 1.0


def check_transactional_id(settings: SinkSettings, longest_ms: int | None) -> Finding | None:
    """Return whether the slot's transactions are allowed; None where that cannot be asked without a takeover.

    `longest_ms`: the broker's transaction.max.timeout.ms, None where it may not be read.
    """
    subject = _subject(settings)
    if longest_ms is not None and longest_ms < settings.transaction_timeout_ms:
        error = SinkError(
            f"sink.transaction_timeout_ms is {settings.transaction_timeout_ms}, the broker's longest is {longest_ms}",
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
    """Return what trying with `<transactional id>.check` finds: for a check, where the right way is not open.

    That changes nothing of the slot's own, but an ACL that names the slot's id literally refuses it.
    """
    probe_id = f"{settings.transactional_id}.check"
    sink = KafkaSink(dataclasses.replace(settings, transactional_id=probe_id, delivery="exactly_once"))
    try:
        sink.initialise_only()
    except SinkError as error:
        hint = (
            f"grant DescribeConfigs on the cluster, then the id itself is looked at; or grant Write and Describe on "
            f"transactional ids with the prefix {settings.transactional_id}"
        )
        return Finding("unknown", _subject(settings), f"tried with {probe_id}: {error.without_hint}", hint)
    finally:
        sink.close()
    return Finding("ok", _subject(settings), f"transactions are allowed (tried with {probe_id})")


def _subject(settings: SinkSettings) -> str:
    return f"transactional id {settings.transactional_id}"


def _ask(settings: SinkSettings) -> None:
    """Return when the broker refuses the time-out, and so not the principal. Raises Sink errors."""
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
            refusal = translate(error, "asking for the right to use transactions")
            if not goes_on or isinstance(refusal, SinkAuthorization) or time.monotonic() > deadline_s:
                raise refusal from failed
        else:
            raise SinkUnavailable("the broker's longest transaction has changed while it was asked")
