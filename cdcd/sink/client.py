"""Client: one confluent producer, and the errors that its callbacks reported.

In: a producer's properties, calls of a sink.  Out: offsets of delivered records; every failure as a SinkError.
Invariant: the next call raises the error that a callback reported: none is lost, also where the client raises it in
the middle of its callbacks. A torn client, whose commit has an unknown result, refuses every call but `close` (F76).
A closed client holds no reference to the producer, which then ends.
Must not: know groups or progress records, choose the next step, log or raise anything of a record but topic and size.
`initialise`, `flush`, `commit`, `abort` and `close` block and belong in a thread; the other methods do not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.errors import BatchTooLarge, RecordTooLarge, Retry, SinkAuthorization, SinkError, SinkUnavailable
from cdcd.errors.frames import drop_frames
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.direct_producer import new_producer
from cdcd.sink.error_map import error_of, making_client, translate
from cdcd.sink.limits import Limits
from cdcd.sink.settings import RESENT_AFTER_S, SinkSettings
from cdcd.sink.too_large import of_own_topic, undelivered_error

__all__ = ["Client", "not_open"]

_REPORTS_WITHIN_S = 5.0
"""The reports of purged records come from the client itself, without a broker."""
_REPORT_WITHIN_S = 1.0
_PURGED = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_LOOK_AGAIN_S = 1.0
_STATE_WITHIN_S = 1.0
_GAVE_UP_REASON = (
    "the transaction was aborted, and the cause of the abort may have delayed its requests as well"
)
_TORN_HINT = "no action is needed: the next session reads the result of the commit from the progress topic"


class Client:
    """A producer from its creation until `close`; exactly once with one transaction at a time.

    `limits` records the batches that a broker refuses, except for `own_topics`: their records contain no row, so they
    need another hint.
    """

    def __init__(
        self,
        settings: SinkSettings,
        properties: Mapping[str, object],
        limits: Limits,
        own_topics: set[str],
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._own_topics = own_topics
        self.next_offsets: dict[tuple[str, int], int] = {}
        """By topic and partition, the offset after the last record delivered since `begin`."""
        self.first_offsets: dict[tuple[str, int], int] = {}
        """By topic and partition, the offset of the first record delivered since `begin`."""
        self._delivery_error: SinkError | None = None
        self._fatal_error: SinkError | None = None
        self._torn_error: SinkError | None = None
        self._broker_error: KafkaError | None = None
        self._is_begun = False
        self._producer: Producer | None = None
        self.direct: Any | None = None
        """Produces records that need no delivery report; None if `Producer.produce` has to."""
        self.reports_all = True
        """Whether each record needs a delivery report, or only the first and the last one of each partition.

        Without transactions only the report reveals an undelivered record (F63). With transactions the commit fails,
        and the next client, which begins with the same records, finds out which record it was. So each record needs a
        report until a commit moves the position from which the next client would begin. A snapshot may begin again
        from its first row: its later records need reports only if an error of an earlier client is unexplained.
        """
        self.renewal_reason = ""
        """Why a request of the last transaction may still arrive: no transaction may begin then (F77)."""
        with making_client():
            self._producer, self.direct = new_producer(
                {**properties, "error_cb": self._errored}, logger=CLIENT_LOG
            )

    # --- life --------------------------------------------------------------------------------------------

    def initialise(self) -> None:
        """Fence older producers. The call ends at the first refusal, although the client would retry.

        No local variable refers to the producer: an error holds the variables of its frames, and a client that
        survives in an error retries, and would one day fence the producer of the next session.
        """
        doing = "initialising transactions"
        deadline_s = time.monotonic() + self._settings.operation_timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                self._open_producer().init_transactions(max(0.1, min(left_s, _LOOK_AGAIN_S)))
                return
            except KafkaException as failure:
                refusal, error = self.translate(failure, doing), error_of(failure)
                goes_on = error.retriable() or error.code() == KafkaError._TIMED_OUT
                if not goes_on or left_s <= _LOOK_AGAIN_S or isinstance(refusal, SinkAuthorization):
                    raise refusal from failure

    def close(self) -> None:
        """Discard open work and release the producer. Never raises; may be called at any time."""
        # A producer that survives in their frames would continue its requests.
        drop_frames(self._fatal_error, self._torn_error, self._delivery_error)
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if self.direct is not None:
            self.direct.close()
        # Without the purge librdkafka would wait for the records. Each record refers to this client until its report
        # is served, invisible to the garbage collector, so the loop waits for all reports (fault 35).
        deadline_s = time.monotonic() + _REPORTS_WITHIN_S
        self._serve(producer.purge)
        while len(producer) and time.monotonic() < deadline_s:
            self._serve(producer.flush, _REPORTS_WITHIN_S)  # after a fatal error it returns at each report
        self._fatal_error = self._torn_error = self._delivery_error = (
            None  # their tracebacks refer to the producer
        )

    @property
    def queued(self) -> int:
        """Number of records produced and not yet reported as delivered."""
        return 0 if self._producer is None else len(self._producer)

    # --- calls -------------------------------------------------------------------------------------------

    def usable(self) -> Producer:
        """Return the producer. Raises a reported error, and SinkUnavailable when it is closed."""
        self.raise_pending()
        return self._open_producer()

    def poll(self, timeout_s: float) -> Producer:
        """Serve delivery reports for up to `timeout_s`; return the producer. Raises an error that they report."""
        producer = self.usable()
        self._serve(producer.poll, timeout_s)
        self.raise_pending()
        return producer

    def send_now(self, timeout_s: float) -> None:
        """Send lingering batches at once and serve delivery reports until all have come, or for `timeout_s`."""
        self._serve(self.usable().flush, timeout_s)
        self.raise_pending()

    def begin(self) -> None:
        """Begin a transaction in exactly-once mode. Raises a pending error of an earlier call."""
        producer = self.usable()
        self.forget()
        if self._settings.is_exactly_once:
            if self.renewal_reason:
                raise SinkUnavailable(
                    f"a request of the last Kafka transaction may still arrive: {self.renewal_reason}",
                    hint="no action is needed: cdcd creates a new producer",
                )
            try:
                producer.begin_transaction()
            except KafkaException as failure:
                raise self.translate(failure, "beginning a Kafka transaction") from failure
            self._is_begun = True

    def flush(self, doing: str) -> None:
        """Wait until all produced records are delivered. Raises as soon as one is known to be undelivered.

        The client no longer sends the rest of a transaction that has to be aborted: waiting for it would be in vain.
        """
        deadline_s = time.monotonic() + self._settings.operation_timeout_s
        while True:
            wait_s = min(_LOOK_AGAIN_S, max(0.0, deadline_s - time.monotonic()))
            left = self._serve(self.usable().flush, wait_s)
            self.usable()  # a client closed meanwhile has purged its records and dropped their reports
            if not left:
                return
            why = self._why_aborting(doing)
            if why is not None:
                raise why
            if time.monotonic() >= deadline_s:
                raise self._timed_out(f"{doing}: {left} records were not delivered in time")

    def commit(self) -> None:
        """Commit the transaction. When the result is unknown the client is torn from then on (F76).

        When it is known, `renewal_reason` says whether a request of it may still arrive: the client repeats the
        request when no answer comes, and then reports the answer to the second one.
        """
        producer = self.usable()
        begun_s = time.monotonic()
        try:
            producer.commit_transaction(self._settings.operation_timeout_s)
        except KafkaException as failure:
            error = error_of(failure)
            cause = self.translate(failure, "committing a Kafka transaction")
            if not error.txn_requires_abort():
                # The client cannot know whether the transaction is committed (F76).
                self._torn_error = cause
                if isinstance(cause, SinkUnavailable):
                    cause.advice = _TORN_HINT
            raise cause from failure
        took_s = time.monotonic() - begun_s
        self._is_begun = False
        self.renewal_reason = _renewal_reason(took_s)
        self.raise_pending()

    def abort(self) -> None:
        """Abort the transaction, or drop the queued records. `raise_pending` raises errors reported meanwhile."""
        if self._torn_error is not None:
            raise self._torn_error
        producer = self._open_producer()
        try:
            if self._settings.is_exactly_once:
                producer.abort_transaction(self._settings.operation_timeout_s)
            else:
                self._serve(producer.purge)
                self._serve(producer.flush, self._settings.operation_timeout_s)
        except KafkaException as failure:
            self._torn_error = self.translate(failure, "aborting a Kafka transaction")
            raise self._torn_error from failure
        if self._settings.is_exactly_once:
            self.renewal_reason = _GAVE_UP_REASON
        self.forget()
        self._is_begun = False

    def forget(self) -> None:
        """Discard the reports of the records since `begin`; an error that ended the producer remains."""
        self.next_offsets.clear()
        self.first_offsets.clear()
        self._delivery_error = self._broker_error = None

    def raise_pending(self) -> None:
        """Raise the error that a callback reported, or the error of a torn client."""
        pending = self._fatal_error or self._torn_error or self._delivery_error
        if pending is None:
            return
        if pending is self._delivery_error and _is_purged(pending):
            pending = self._delivery_error = self._why_purged(pending)
        raise pending

    def translate(self, failure: KafkaException, doing: str, **context: object) -> SinkError:
        """Translate a failure, preferring the cause that a callback reported to the state of the producer."""
        error = error_of(failure)
        failure.__traceback__ = (
            None  # the binding may hold a fatal one for ever, and its frames refer to the producer
        )
        producer = self._producer
        if producer is not None:
            self._serve(producer.poll, 0)
        if self._fatal_error is not None:
            return self._fatal_error
        if error.code() == KafkaError._TIMED_OUT:
            return self._timed_out(f"{doing}: no answer in time")
        found = translate(error, doing, **context)
        if error.code() == KafkaError._STATE:
            # `produce` gives no other reason for a transaction that has to be aborted.
            return self._delivery_failure() or self._why_aborting(doing) or found
        if isinstance(found, RecordTooLarge) and error.txn_requires_abort():
            return self._refused_batch(found)
        if self._delivery_error is not None and error.txn_requires_abort():
            return self._delivery_error
        if error.txn_requires_abort():
            found = self._from_afar(found)
        if isinstance(found, RecordTooLarge) and context.get("topic") in self._own_topics:
            return of_own_topic(found)
        return found

    # --- inside ------------------------------------------------------------------------------------------

    def _delivery_failure(self) -> SinkError | None:
        """Return the reported delivery error, None where there is none or the client itself purged the record."""
        pending = self._delivery_error
        return None if pending is None or _is_purged(pending) else pending

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise not_open()
        return self._producer

    def reported(self, error: KafkaError | None, message: Message) -> None:
        """Process a delivery report; it is called once a record, so it must be cheap."""
        if error is None:
            # Reports of one partition come in order of offset: the last one is the highest.
            offset = message.offset()
            if offset is None:  # the broker has the record already and no longer knows its offset
                self._delivery_error = self._delivery_error or _taken_somewhere(message)
            else:
                place = message.topic(), message.partition()
                self.next_offsets[place] = offset + 1
                self.first_offsets.setdefault(place, offset)
        elif self._delivery_failure() is None:
            refusal = undelivered_error(error, message)
            if isinstance(refusal, RecordTooLarge):
                is_own = message.topic() in self._own_topics
                refusal = of_own_topic(refusal) if is_own else self._limits.refused(message, refusal)
            self._delivery_error = refusal

    def _errored(self, error: KafkaError) -> None:
        """Error callback: a fatal error ends the producer, other errors only explain a later timeout."""
        if error.fatal():
            self._fatal_error = self._fatal_error or translate(error, "the producer")
        else:
            self._broker_error = error

    def _serve(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method that runs callbacks; store a fatal error that it raises for `raise_pending`.

        The client raises such an error in the middle of its callbacks: as itself, or as a SystemError when Python
        finds both a callback's result and an exception, or neither; or as a KafkaError.
        """
        try:
            return call(*arguments)
        except KafkaException as failure:
            failure.__traceback__ = None  # as in `translate`
            found: SinkError = translate(error_of(failure), "the producer")
        except SystemError as failure:
            cause = failure.__cause__
            if isinstance(cause, KafkaException):
                found = translate(error_of(cause), "the producer")
            else:
                found = self._state_after_crash()
        except:  # noqa: E722 - the client also raises a KafkaError, which is not an exception: no other clause catches it
            raised: object = sys.exc_info()[1]
            if not isinstance(raised, KafkaError):
                raise
            found = translate(raised, "the producer")
        self._fatal_error = self._fatal_error or found
        return None

    def _state_after_crash(self) -> SinkError:
        """Return the error that the binding of librdkafka has lost: every transactional call raises it again."""
        if self._producer is not None and self._settings.is_exactly_once:
            try:
                self._producer.abort_transaction(_STATE_WITHIN_S)  # the loop may be waiting (F14)
            except KafkaException as failure:
                return translate(error_of(failure), "the producer")
        return SinkUnavailable("the Kafka client failed inside a callback; cdcd creates a new producer")

    def _why_purged(self, pending: SinkError) -> SinkError:
        """Return the error of the transaction because of which the client purged this record."""
        return self._why_aborting("delivering records") or pending

    def _why_aborting(self, doing: str) -> SinkError | None:
        """Return the error for which the open transaction has to be aborted, None where it has no error.

        The client refuses every call for such a transaction with that error. A second `begin_transaction` is harmless
        as a probe, because the client refuses it in any case.
        """
        producer = self._producer  # another thread may close it
        if producer is None or not self._is_begun:
            return None
        try:
            producer.begin_transaction()
        except KafkaException as failure:
            error = error_of(failure)
            if error.code() != KafkaError._STATE:
                found = translate(error, doing)
                if isinstance(found, RecordTooLarge):
                    return self._refused_batch(found)
                return self._from_afar(found)
        return None

    def _from_afar(self, found: SinkError) -> SinkError:
        """Return an error that is retried where a record without a delivery report may have caused the abort.

        The next client gets an error that needs an operator again, and then knows the record.
        """
        if self.reports_all or found.retry is not Retry.OPERATOR:
            return found
        self._limits.is_cause_unknown = True
        return SinkUnavailable(
            found.message,
            hint="no action is needed: the next session finds out which record caused the error",
        )

    def _refused_batch(self, found: RecordTooLarge) -> SinkError:
        """Return the error of the refused batch's own report, which follows those of the records purged with it."""
        deadline_s = time.monotonic() + _REPORT_WITHIN_S
        while (pending := self._delivery_failure()) is None:
            if time.monotonic() > deadline_s:
                # The next session gets the error again, and then knows the topic.
                self._limits.is_cause_unknown = True
                return BatchTooLarge(found.message)
            self._serve(self._open_producer().poll, _REPORT_WITHIN_S)
        return pending

    def _timed_out(self, message: str) -> SinkError:
        """Return the error of an expired deadline, with the last error of the connections to the brokers."""
        producer = self._producer
        if producer is not None:
            self._serve(producer.poll, 0)
        if self._broker_error is None:
            return SinkUnavailable(message)
        return translate(self._broker_error, message)


def _renewal_reason(took_s: float) -> str:
    """Return why a request of a commit that took `took_s` may still arrive; empty where none can."""
    if took_s < RESENT_AFTER_S:
        return ""
    return f"its commit took {took_s:.1f} s, and the client sends EndTxn again after {RESENT_AFTER_S:g} s"


def not_open() -> SinkError:
    """Return the error of a call before a client was created, or after it was closed."""
    return SinkUnavailable("the sink is not open")


def _taken_somewhere(message: Message) -> SinkError:
    return SinkUnavailable(
        "a record was delivered at an unknown offset, because the broker had the record already",
        hint="no action is needed: cdcd writes the record again",
        topic=message.topic(),
        partition=message.partition(),
    )


def _is_purged(error: SinkError) -> bool:
    return error.context.get("kafka") in _PURGED
