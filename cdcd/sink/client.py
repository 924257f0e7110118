"""Client: one confluent producer, and what its callbacks have told of it.

In: a producer's properties, calls of a sink.  Out: offsets of what was delivered; every failure as a SinkError.
Invariant: what a callback tells is kept and raised by the next call: nothing of it is lost, also where the client
raises it in the middle of its callbacks. A torn client, whose commit has no known result, refuses everything but
`close` (F76). Nothing leads from a closed client to the producer, which ends then.
Must not: know what a group or its progress record is, choose what is done next, log or raise anything of a record but
topic and size.
`initialise`, `flush`, `commit`, `abort` and `close` block and belong in a thread; the others do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.errors import BatchTooLarge, RecordTooLarge, Retry, SinkAuthorization, SinkError, SinkUnavailable
from cdcd.errors.frames import drop_frames
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import error_of, making_client, translate
from cdcd.sink.limits import Limits
from cdcd.sink.settings import RESENT_AFTER_S, SinkSettings
from cdcd.sink.too_large import of_own_topic, undelivered

__all__ = ["Client", "not_open"]

_REPORTS_WITHIN_S = 5.0
"""The reports of purged records come from the client itself: nobody else is waited for."""
_REPORT_WITHIN_S = 1.0
_PURGED = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_LOOK_AGAIN_S = 1.0
_STATE_WITHIN_S = 1.0
_GAVE_UP_REASON = "it was aborted, and what it was aborted for may have kept its requests as well"
_TORN_HINT = "the sink is opened again and the progress topic decides"


class Client:
    """A producer from its making until `close`; exactly once with one transaction at a time.

    `limits` hears of batches that a broker refuses, but for records of `own_topics`, which no row is in: what mends
    those is another thing.
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
        """By topic and partition, the offset after the last record that was delivered since `begin`."""
        self._delivery_error: SinkError | None = None
        self._fatal_error: SinkError | None = None
        self._torn_error: SinkError | None = None
        self._broker_error: KafkaError | None = None
        self._is_begun = False
        self._producer: Producer | None = None
        self.reports_all = True
        """Whether each record's delivery has to be told, or that of the last one of each partition.

        Without transactions nothing else tells of a record that was not delivered (F63). With them the commit fails,
        and the next client, which begins with the same records again, tells which of them it was: so it is each
        one's until a commit has come behind which the next client would begin.
        """
        self.renewal_reason = ""
        """Why a request of the last transaction may still arrive: nothing is to be begun then (F77)."""
        with making_client():
            self._producer = Producer({**properties, "error_cb": self._errored}, logger=CLIENT_LOG)

    # --- life --------------------------------------------------------------------------------------------

    def initialise(self) -> None:
        """Fence older producers. The client asks on while it is refused: who is refused need not wait for that.

        The producer has no name here, because an error keeps what its frames name: a client that lives on in an error
        goes on asking, and would one day fence the next session's.
        """
        doing = "initialising transactions"
        deadline_s = time.monotonic() + self._settings.operation_timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                self._open_producer().init_transactions(max(0.1, min(left_s, _LOOK_AGAIN_S)))
                return
            except KafkaException as failure:
                refusal, error = self.translated(failure, doing), error_of(failure)
                goes_on = error.retriable() or error.code() == KafkaError._TIMED_OUT
                if not goes_on or left_s <= _LOOK_AGAIN_S or isinstance(refusal, SinkAuthorization):
                    raise refusal from failure

    def close(self) -> None:
        """Give up whatever is open and let the producer go. Never raises; may be called at any time."""
        # A producer that lives on in their frames would go on with what it has begun.
        drop_frames(self._fatal_error, self._torn_error, self._delivery_error)
        producer, self._producer = self._producer, None
        if producer is None:
            return
        # Without this librdkafka would wait for records that nobody wants any more. Each of them refers to this one
        # until its report is served, where no garbage collector sees it, so all reports are waited for (fault 35).
        deadline_s = time.monotonic() + _REPORTS_WITHIN_S
        self._serve(producer.purge)
        while len(producer) and time.monotonic() < deadline_s:
            self._serve(producer.flush, _REPORTS_WITHIN_S)  # a fatal error ends it after each report
        self._fatal_error = self._torn_error = self._delivery_error = (
            None  # their tracebacks lead to the producer
        )

    @property
    def queued(self) -> int:
        """Records produced and not yet reported as delivered."""
        return 0 if self._producer is None else len(self._producer)

    # --- calls -------------------------------------------------------------------------------------------

    def usable(self) -> Producer:
        """Return the producer. Raises what was told of it, and SinkUnavailable when it is closed."""
        self.raise_pending()
        return self._open_producer()

    def poll(self, timeout_s: float) -> Producer:
        """Serve delivery reports for up to `timeout_s`; return the producer. Raises what they told."""
        producer = self.usable()
        self._serve(producer.poll, timeout_s)
        self.raise_pending()
        return producer

    def send_now(self, timeout_s: float) -> None:
        """As `poll`, until all is told; what waits for more to go with it is sent at once."""
        self._serve(self.usable().flush, timeout_s)
        self.raise_pending()

    def begin(self) -> None:
        """Begin a transaction, where there are any. Raises what an earlier call left behind."""
        producer = self.usable()
        self.forget()
        if self._settings.is_exactly_once:
            if self.renewal_reason:
                raise SinkUnavailable(
                    f"a request of the last Kafka transaction may still arrive: {self.renewal_reason}",
                    hint="no action is needed: a new producer is made",
                )
            try:
                producer.begin_transaction()
            except KafkaException as failure:
                raise self.translated(failure, "beginning a Kafka transaction") from failure
            self._is_begun = True

    def flush(self, doing: str) -> None:
        """Wait until everything that was produced is delivered. Raises what was not, as soon as it is known.

        Of a transaction that has to be aborted the rest is not sent any more: it would be waited for in vain.
        """
        deadline_s = time.monotonic() + self._settings.operation_timeout_s
        while True:
            wait_s = min(_LOOK_AGAIN_S, max(0.0, deadline_s - time.monotonic()))
            left = self._serve(self.usable().flush, wait_s)
            self.usable()  # closed meanwhile, it has purged what was under way, and has forgotten what that told
            if not left:
                return
            why = self._why_aborting(doing)
            if why is not None:
                raise why
            if time.monotonic() >= deadline_s:
                raise self._timed_out(f"{doing}: {left} records were not delivered in time")

    def commit(self) -> None:
        """Commit the transaction. When the result is unknown the client is torn from then on (F76).

        When it is known, `renewal_reason` says whether something of it may still arrive: the client sends the request
        again when its answer does not come, and reports the second one's.
        """
        producer = self.usable()
        begun_s = time.monotonic()
        try:
            producer.commit_transaction(self._settings.operation_timeout_s)
        except KafkaException as failure:
            error = error_of(failure)
            cause = self.translated(failure, "committing a Kafka transaction")
            if not error.txn_requires_abort():
                # Neither committed nor aborted as far as anyone here can know (F76).
                self._torn_error = cause
                if isinstance(cause, SinkUnavailable):
                    cause.advice = _TORN_HINT
            raise cause from failure
        took_s = time.monotonic() - begun_s
        self._is_begun = False
        self.renewal_reason = _renewal_reason(took_s)
        self.raise_pending()

    def abort(self) -> None:
        """Abort the transaction, or drop what is still queued. What was told meanwhile waits for `raise_pending`."""
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
            self._torn_error = self.translated(failure, "aborting a Kafka transaction")
            raise self._torn_error from failure
        if self._settings.is_exactly_once:
            self.renewal_reason = _GAVE_UP_REASON
        self.forget()
        self._is_begun = False

    def forget(self) -> None:
        """Forget what was told of the records since `begin`; what ended the producer stays."""
        self.next_offsets.clear()
        self._delivery_error = self._broker_error = None

    def raise_pending(self) -> None:
        """Raise what the callbacks have told, or an unknown result has left behind."""
        pending = self._fatal_error or self._torn_error or self._delivery_error
        if pending is None:
            return
        if pending is self._delivery_error and _is_purged(pending):
            pending = self._delivery_error = self._why_purged(pending)
        raise pending

    def translated(self, failure: KafkaException, doing: str, **context: object) -> SinkError:
        """Translate, preferring the cause that a callback has told over the state it left the producer in."""
        error = error_of(failure)
        failure.__traceback__ = (
            None  # the binding may keep a fatal one for ever, and its frames lead to the producer
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
            # All that producing says of a transaction that has to be aborted.
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
        """Return why a record was not delivered, where that was told, and not that the client itself dropped it."""
        pending = self._delivery_error
        return None if pending is None or _is_purged(pending) else pending

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise not_open()
        return self._producer

    def reported(self, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report: what a record is produced with, so it does next to nothing."""
        if error is None:
            # Reports of one partition come in order of offset: the last one is the highest.
            offset = message.offset()
            if offset is None:  # a broker that has it already, and no longer knows where
                self._delivery_error = self._delivery_error or _taken_somewhere(message)
            else:
                self.next_offsets[message.topic(), message.partition()] = offset + 1
        elif self._delivery_failure() is None:
            refusal = undelivered(error, message)
            if isinstance(refusal, RecordTooLarge):
                is_own = message.topic() in self._own_topics
                refusal = of_own_topic(refusal) if is_own else self._limits.refused(message, refusal)
            self._delivery_error = refusal

    def _errored(self, error: KafkaError) -> None:
        """Error callback: a fatal one ends the producer, others only explain a later timeout."""
        if error.fatal():
            self._fatal_error = self._fatal_error or translate(error, "the producer")
        else:
            self._broker_error = error

    def _serve(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call what runs callbacks; a fatal error that comes out of it is kept for `raise_pending`.

        The client raises such an error in the middle of its callbacks: as itself, or as a SystemError when
        Python finds a callback's result and an exception at once, or neither.
        """
        try:
            return call(*arguments)
        except KafkaException as failure:
            failure.__traceback__ = None  # as in `translated`
            found: SinkError = translate(error_of(failure), "the producer")
        except SystemError as failure:
            cause = failure.__cause__
            if isinstance(cause, KafkaException):
                found = translate(error_of(cause), "the producer")
            else:
                found = self._state_after_crash()
        self._fatal_error = self._fatal_error or found
        return None

    def _state_after_crash(self) -> SinkError:
        """Ask librdkafka for the error that its binding has lost: every transactional call answers with it."""
        if self._producer is not None and self._settings.is_exactly_once:
            try:
                self._producer.abort_transaction(_STATE_WITHIN_S)  # the loop may be waiting (F14)
            except KafkaException as failure:
                return translate(error_of(failure), "the producer")
        return SinkUnavailable("the Kafka client failed inside a callback; a new producer is made")

    def _why_purged(self, pending: SinkError) -> SinkError:
        """Return what the transaction met for which the client itself has dropped this record."""
        return self._why_aborting("delivering records") or pending

    def _why_aborting(self, doing: str) -> SinkError | None:
        """Return what the open transaction has met for which it has to be aborted, None where it has met nothing.

        Whatever is asked of such a transaction is refused with the reason for that; and a second beginning is
        refused in any case.
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
        """Return why the transaction has to be aborted, where it may be for a record whose delivery nobody tells of.

        What would halt is met again by the next client, which tells of which record it is.
        """
        if self.reports_all or found.retry is not Retry.OPERATOR:
            return found
        return SinkUnavailable(
            found.message, hint="cdcd tries again: the next session finds which record it is"
        )

    def _refused_batch(self, found: RecordTooLarge) -> SinkError:
        """Return what the refused batch's own report says: it comes behind those of what is dropped because of it."""
        deadline_s = time.monotonic() + _REPORT_WITHIN_S
        while (pending := self._delivery_failure()) is None:
            if time.monotonic() > deadline_s:
                # The next session meets it again, and may learn of its topic.
                return BatchTooLarge(found.message)
            self._serve(self._open_producer().poll, _REPORT_WITHIN_S)
        return pending

    def _timed_out(self, message: str) -> SinkError:
        """Return the error of a deadline that passed, with what the brokers' connections last said."""
        producer = self._producer
        if producer is not None:
            self._serve(producer.poll, 0)
        if self._broker_error is None:
            return SinkUnavailable(message)
        return translate(self._broker_error, message)


def _renewal_reason(took_s: float) -> str:
    """Return why a request of a commit that took so long may still arrive; empty where none can."""
    if took_s < RESENT_AFTER_S:
        return ""
    return f"its commit took {took_s:.1f} s, and the client sends EndTxn again after {RESENT_AFTER_S:g} s"


def not_open() -> SinkError:
    """Return the error of a call that came before a client was made, or after it was closed."""
    return SinkUnavailable("the sink is not open")


def _taken_somewhere(message: Message) -> SinkError:
    return SinkUnavailable(
        "a record was delivered, and where is not known: a broker had it already",
        hint="no action is needed: it is written again",
        topic=message.topic(),
        partition=message.partition(),
    )


def _is_purged(error: SinkError) -> bool:
    return error.context.get("kafka") in _PURGED
