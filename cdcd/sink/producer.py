"""KafkaSink: records in, one atomic and durable group at a time out, with the progress record inside it.

In: `begin`, records, `commit(progress)` or `abort`.  Out: the progress with the offsets that were written.
Invariant: `commit` returns only when every record of the group and its progress record are durable; any
failed delivery makes it raise (F63). When the result of a commit is unknown it raises and the sink refuses
everything but `close`: the next `open` reads what is durable from the progress topic alone (F76).
Must not: choose partitions, retry a failed group, log or raise anything of a record but topic and size.
`commit`, `abort`, `open`, `renew` and `close` block and belong in a thread; the others do not.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.crash_points import reach
from cdcd.errors import (
    BatchTooLarge,
    CdcdError,
    RecordTooLarge,
    SinkAuthorization,
    SinkError,
    SinkFenced,
    SinkUnavailable,
)
from cdcd.errors.frames import drop_frames
from cdcd.model import Progress, Record
from cdcd.sink.faults import error_of, making_client, translate
from cdcd.sink.kept_topics import KeptTopics, key_of_topics
from cdcd.sink.limits import Limits
from cdcd.sink.progress import dump, key_of
from cdcd.sink.reader import Last, read_last
from cdcd.sink.settings import SinkSettings, is_compressed, producer_properties
from cdcd.sink.too_large import larger_than_producer, never_fits, undelivered

__all__ = ["KafkaSink"]

_LOG = logging.getLogger("cdcd.sink.librdkafka")
_ONE_PARTITION = 0
_REPORTS_WITHIN_S = 5.0
"""The reports of purged records come from the client itself: nobody else is waited for."""
_REPORT_WITHIN_S = 1.0
_PURGED = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_LOOK_AGAIN_S = 1.0
_TORN_HINT = "the sink is opened again and the progress topic decides"


class KafkaSink:
    """One producer for one slot. Open it, then for each group: begin, produce..., commit or abort."""

    def __init__(self, settings: SinkSettings, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = Limits() if limits is None else limits
        self._own_topics = {settings.progress_topic}
        self._properties = producer_properties(settings)
        self._producer: Producer | None = None
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._delivery_error: SinkError | None = None
        self._fatal_error: SinkError | None = None
        self._torn_error: SinkError | None = None
        self._broker_error: KafkaError | None = None
        self._begun_s: float | None = None
        self.kept: KeptTopics | None = None
        """What the records count on in their topics; None: the progress record keeps what it says of it."""
        self.progress_offset = -1
        """Of the last progress record that was read or written here; whose is beyond it is somebody else's."""

    # --- life --------------------------------------------------------------------------------------------

    def open(self) -> Progress | None:
        """Create the producer, fence older ones, and return the slot's last durable progress (F64, F69, F76).

        Raises SinkUnavailable after the operation timeout, SinkAuthorization, TopicMissing,
        ProgressUnreadable, SinkError for properties that librdkafka refuses.
        """
        try:
            self.initialise_only()
            last = self._fence_predecessor(read_last(self._settings))
            self.progress_offset = -1 if last is None else last.offset
            return None if last is None else last.progress
        except CdcdError:
            self.close()
            raise

    def initialise_only(self) -> None:
        """Do what `open` does without reading the progress: create the producer and fence older ones."""
        self.close()
        self._forget()
        self._fatal_error = self._torn_error = None
        with making_client():
            self._producer = Producer(self._properties | self._callbacks(), logger=_LOG)
        if self._settings.is_exactly_once:
            self._initialise()

    def _fence_predecessor(self, last: Last | None) -> Last | None:
        """Fence who wrote last under another id (F69): `initialise_only` has not. Return what is last then."""
        other = "" if last is None or last.progress is None else last.progress.transactional_id
        if other in ("", self._settings.transactional_id) or not self._settings.is_exactly_once:
            return last
        predecessor = KafkaSink(dataclasses.replace(self._settings, transactional_id=other))
        try:
            predecessor.initialise_only()
        except SinkAuthorization as error:
            error.advice = (
                f"grant this principal Write on the transactional id {other} too: whoever has it wrote last"
            )
            raise
        finally:
            predecessor.close()
        return read_last(self._settings)

    def renew(self, settings: SinkSettings) -> None:
        """Go on with a new producer under `settings`, which differ in credentials alone. No group may be open.

        Raises what `open` does, and SinkFenced where somebody else has written since: initialising would have
        fenced him, and what is to be written next may stand in his records already (F69).
        """
        self._usable()
        self._settings, self._properties = settings, producer_properties(settings)
        self.initialise_only()
        last = read_last(settings) if settings.is_exactly_once else None
        if last is not None and last.offset > self.progress_offset:
            raise SinkFenced("another producer has written while this one was made anew")

    def close(self) -> None:
        """Give up whatever is open and let the producer go. Never raises; may be called at any time."""
        # A producer that lives on in their frames would go on with what it has begun.
        drop_frames(self._fatal_error, self._torn_error, self._delivery_error)
        producer, self._producer = self._producer, None
        if producer is None:
            return
        # Without this the client would wait for records that nobody wants any more. Each of them refers to this sink
        # until its report is served, where no garbage collector sees it, so all reports are waited for (fault 35).
        give_up_s = time.monotonic() + _REPORTS_WITHIN_S
        self._serve(producer.purge)
        while len(producer) and time.monotonic() < give_up_s:
            self._serve(producer.flush, _REPORTS_WITHIN_S)  # a fatal error ends it after each report
        self._fatal_error = self._torn_error = self._delivery_error = (
            None  # their tracebacks lead to the producer
        )

    @property
    def queued(self) -> int:
        """Records produced and not yet reported as delivered."""
        return 0 if self._producer is None else len(self._producer)

    @property
    def age_s(self) -> float:
        """How long the open Kafka transaction has been open, 0 without one; a suspended machine counts too."""
        return 0.0 if self._begun_s is None else _now_s() - self._begun_s

    # --- a group -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a group. Raises what an earlier call left behind."""
        producer = self._usable()
        self._forget()
        if self._settings.is_exactly_once:
            try:
                producer.begin_transaction()
            except KafkaException as failure:
                raise self._translated(failure, "beginning a Kafka transaction") from failure
        self._begun_s = _now_s()

    def produce(self, records: Sequence[Record], start: int) -> int:
        """Hand over `records[start:]` without blocking; return the index of the first one not taken.

        An index below `len(records)` means that the queue is full, or that the record there has to wait until it is
        empty (F65): call `poll` and come back.
        Raises RecordTooLarge, TopicMissing, TopicMismatch, or what a delivery of this group met.
        """
        producer = self._usable()
        self._serve(producer.poll, 0)
        self._raise_kept()
        produce = producer.produce
        at = start - 1
        try:
            for at in self._admitted(producer, records, start):
                record = records[at]
                produce(record.topic, record.value, record.key, record.partition)
        except BufferError:
            if len(producer) == 0:
                raise never_fits(records[at], at) from None
            return at
        except KafkaException as failure:
            raise self._refused(failure, records[at], at) from failure
        self._raise_kept()
        return at + 1

    def _admitted(self, producer: Producer, records: Sequence[Record], start: int) -> Iterable[int]:
        if not self._limits:
            return range(start, len(records))
        queued = partial(len, producer)
        return self._limits.admitted(records, start, queued, is_compressed=is_compressed(self._settings))

    def write_ahead(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Write records to a topic's one partition within the open group and wait until they are in the log.

        Returns the offset after the last of them. They are no part of the group's offsets. Blocks.
        """
        producer = self._usable()
        self._own_topics.add(topic)
        for key, value in records:
            try:
                producer.produce(topic, value, key, _ONE_PARTITION)
            except BufferError as failure:
                raise SinkUnavailable("no room for a schema", topic=topic) from failure
            except KafkaException as failure:
                raise self._translated(failure, "producing a schema", topic=topic) from failure
        self._flush(producer, "flushing schemas")
        return self._next_offsets.pop((topic, _ONE_PARTITION))

    def poll(self, timeout_s: float) -> None:
        """Serve delivery reports for up to `timeout_s`. Raises what they told."""
        self._serve(self._usable().poll, timeout_s)
        self._raise_kept()

    def commit(self, progress: Progress) -> Progress:
        """Make the group durable with its progress record; return the progress with the group's offsets.

        Raises before anything is visible, except when the result is unknown; then the sink is torn (F76).
        """
        producer = self._usable()
        reach("produced")
        self._flush(producer, "flushing a group")
        reach("flushed")
        own_id = self._settings.transactional_id if self._settings.is_exactly_once else ""
        progress = dataclasses.replace(progress, offsets=self._offsets(), transactional_id=own_id)
        if self.kept is not None:
            progress = dataclasses.replace(progress, topics_at=self._write_topics(self.kept))
        self._produce_progress(producer, progress)
        reach("progress_produced")
        if self._settings.is_exactly_once:
            try:
                self._commit_transaction(producer)
            finally:
                self._note_progress()
        else:
            self._flush(producer, "flushing the progress record")
            self._note_progress()
        self._forget()
        self._begun_s = None
        return progress

    def abort(self) -> None:
        """Give the group up: exactly once leaves nothing visible. Raises when that cannot be promised."""
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
            self._torn_error = self._translated(failure, "aborting a Kafka transaction")
            raise self._torn_error from failure
        self._forget()
        self._begun_s = None
        self._raise_kept()

    # --- inside ------------------------------------------------------------------------------------------

    def _callbacks(self) -> dict[str, object]:
        return {"on_delivery": self._delivered, "error_cb": self._errored}

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report: runs once for each record, so it does next to nothing."""
        if error is None:
            # Reports of one partition come in order of offset: the last one is the highest.
            self._next_offsets[message.topic(), message.partition()] = message.offset() + 1
        elif self._delivery_error is None or _is_purged(self._delivery_error):
            refusal = undelivered(error, message)
            if isinstance(refusal, RecordTooLarge) and message.topic() not in self._own_topics:
                refusal = self._limits.refused(message, refusal)
            self._delivery_error = refusal

    def _errored(self, error: KafkaError) -> None:
        """Error callback: a fatal one ends the producer, others only explain a later timeout."""
        if error.fatal():
            self._fatal_error = self._fatal_error or translate(error, "the producer")
        else:
            self._broker_error = error

    def _initialise(self) -> None:
        """Fence older producers. The client asks on while it is refused: who is refused need not wait for that.

        The producer has no name here, because an error keeps what its frames name: a client that lives on in an error
        goes on asking, and would one day fence the next session's.
        """
        doing = "initialising transactions"
        give_up_s = time.monotonic() + self._settings.operation_timeout_s
        while True:
            left_s = give_up_s - time.monotonic()
            try:
                self._open_producer().init_transactions(max(0.1, min(left_s, _LOOK_AGAIN_S)))
                return
            except KafkaException as failure:
                refusal, error = self._translated(failure, doing), error_of(failure)
                goes_on = error.retriable() or error.code() == KafkaError._TIMED_OUT
                if not goes_on or left_s <= _LOOK_AGAIN_S or isinstance(refusal, SinkAuthorization):
                    raise refusal from failure

    def _flush(self, producer: Producer, doing: str) -> None:
        left = self._serve(producer.flush, self._settings.operation_timeout_s)
        self._raise_kept()
        if left:
            raise self._timed_out(f"{doing}: {left} records were not delivered in time")

    def _serve(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call what runs callbacks; a fatal error that comes out of it is kept for `_raise_kept`.

        The client raises such an error in the middle of its callbacks: as itself, or as a SystemError when
        Python finds a callback's result and an exception at once, or neither.
        """
        try:
            return call(*arguments)
        except KafkaException as failure:
            failure.__traceback__ = None  # as in `_translated`
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
                self._producer.abort_transaction(self._settings.operation_timeout_s)
            except KafkaException as failure:
                return translate(error_of(failure), "the producer")
        return SinkUnavailable("the Kafka client failed inside a callback; a new producer is made")

    def _produce_progress(self, producer: Producer, progress: Progress) -> None:
        topic, slot = self._settings.progress_topic, self._settings.slot
        try:
            producer.produce(topic, dump(progress), key_of(slot), _ONE_PARTITION)
        except (KafkaException, BufferError) as failure:
            if isinstance(failure, BufferError):
                raise SinkUnavailable("no room for the progress record", topic=topic) from failure
            raise self._translated(failure, "producing the progress record", topic=topic) from failure

    def _commit_transaction(self, producer: Producer) -> None:
        try:
            producer.commit_transaction(self._settings.operation_timeout_s)
        except KafkaException as failure:
            error = error_of(failure)
            cause = self._translated(failure, "committing a Kafka transaction")
            if not error.txn_requires_abort():
                # Neither committed nor aborted as far as anyone here can know (F76).
                self._torn_error = cause
                if isinstance(cause, SinkUnavailable):
                    cause.advice = _TORN_HINT
            raise cause from failure
        self._raise_kept()

    def _write_topics(self, kept: KeptTopics) -> int:
        """Write down what is new about the topics, within the group; return the offset where it stands."""
        if kept.is_changed:
            key, topic = key_of_topics(self._settings.slot), self._settings.progress_topic
            kept.at = self.write_ahead(topic, [(key, kept.dump())]) - 1
        return kept.at

    def _note_progress(self) -> None:
        """Remember how far the progress topic is known to be our own: also when the result is unknown (F76)."""
        next_offset = self._next_offsets.get((self._settings.progress_topic, _ONE_PARTITION), 0)
        self.progress_offset = max(self.progress_offset, next_offset - 1)

    def _offsets(self) -> dict[str, dict[int, int]]:
        offsets: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in self._next_offsets.items():
            offsets.setdefault(topic, {})[partition] = offset
        return offsets

    def _forget(self) -> None:
        self._next_offsets.clear()
        self._delivery_error = self._broker_error = None

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise SinkUnavailable("the sink is not open")
        return self._producer

    def _usable(self) -> Producer:
        self._raise_kept()
        return self._open_producer()

    def _raise_kept(self) -> None:
        kept = self._fatal_error or self._torn_error or self._delivery_error
        if kept is None:
            return
        if kept is self._delivery_error and _is_purged(kept):
            kept = self._delivery_error = self._why_purged(kept)
        raise kept

    def _why_purged(self, kept: SinkError) -> SinkError:
        """Return what the transaction met for which the client itself has dropped this record.

        Whatever is asked of a transaction that has to be aborted is refused with the reason for that; and a second
        beginning is refused in any case.
        """
        if self._producer is not None and self._settings.is_exactly_once and self._begun_s is not None:
            try:
                self._producer.begin_transaction()
            except KafkaException as failure:
                error = error_of(failure)
                if error.code() != KafkaError._STATE:
                    found = translate(error, "delivering records")
                    return self._refused_batch(found) if isinstance(found, RecordTooLarge) else found
        return kept

    def _refused_batch(self, found: RecordTooLarge) -> SinkError:
        """Return what the refused batch's own report says: it comes behind those of what is dropped because of it."""
        give_up_s = time.monotonic() + _REPORT_WITHIN_S
        while (kept := self._delivery_error) is None or _is_purged(kept):
            if time.monotonic() > give_up_s:
                # The next session meets it again, and may learn of its topic.
                return BatchTooLarge(found.message)
            self._serve(self._open_producer().poll, _REPORT_WITHIN_S)
        return kept

    def _refused(self, failure: KafkaException, record: Record, at: int) -> SinkError:
        topic, partition = record.topic, record.partition
        refusal = self._translated(failure, "producing a record", topic=topic, partition=partition)
        is_here = isinstance(refusal, RecordTooLarge) and not error_of(failure).txn_requires_abort()
        return larger_than_producer(record, at) if is_here else refusal

    def _translated(self, failure: KafkaException, doing: str, **context: object) -> SinkError:
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
        if isinstance(found, RecordTooLarge) and error.txn_requires_abort():
            return self._refused_batch(found)
        if self._delivery_error is not None and error.txn_requires_abort():
            return self._delivery_error
        return found

    def _timed_out(self, message: str) -> SinkError:
        """Return the error of a deadline that passed, with what the brokers' connections last said."""
        producer = self._producer
        if producer is not None:
            self._serve(producer.poll, 0)
        if self._broker_error is None:
            return SinkUnavailable(message)
        return translate(self._broker_error, message)


def _is_purged(error: SinkError) -> bool:
    return error.context.get("kafka") in _PURGED


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
