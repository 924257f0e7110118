"""KafkaSink: records in, one atomic and durable group at a time out, with the progress record inside it.

In: `begin`, records, `commit(progress)` or `abort`.  Out: the progress with the offsets that were written.
Invariant: `commit` returns only when every record of the group and its progress record are durable; any
failed delivery makes it raise (F63). When the result of a commit is unknown it raises and the sink refuses
everything but `close`: the next `open` reads what is durable from the progress topic alone (F76).
Must not: choose partitions, retry a failed group, log or raise anything of a record but topic and size. What one
producer has told and what it can still do is its Client's.
`commit`, `abort`, `open`, `renew` and `close` block and belong in a thread; the others do not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Container, Iterable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.errors import CdcdError, RecordTooLarge, SinkAuthorization, SinkError, SinkFenced, SinkUnavailable
from cdcd.failpoints import hit
from cdcd.model import Progress, Record
from cdcd.sink.client import Client, not_open
from cdcd.sink.error_map import error_of
from cdcd.sink.limits import Limits
from cdcd.sink.produce_batch import by_partition, last_of_each, produce_batch
from cdcd.sink.progress import dump, key_of, key_of_joining
from cdcd.sink.reader import Last, read_last
from cdcd.sink.settings import SinkSettings, is_compressed, producer_properties
from cdcd.sink.too_large import larger_than_producer, never_fits
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics
from cdcd.sink.topic_ownership import TopicOwnership

__all__ = ["KafkaSink"]

_ONE_PARTITION = 0
_WRITING_TOPICS = "writing the record of the topics"


class KafkaSink:
    """One producer for one slot. Open it, then for each group: begin, produce..., commit or abort."""

    def __init__(self, settings: SinkSettings, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = Limits() if limits is None else limits
        self._own_topics = {settings.progress_topic}
        self._properties = producer_properties(settings)
        self._client: Client | None = None
        self._begun_s: float | None = None
        self._has_joined = False
        self.identities: TopicIdentities | None = None
        """What the records count on in their topics; None: the progress record keeps what it says of it."""
        self.ownership: TopicOwnership | None = None
        """Checks whether another slot claims a topic at the same moment; None: no check."""
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
        self._client = Client(self._settings, self._properties, self._limits, self._own_topics)
        if self._settings.is_exactly_once:
            self._client.initialise()

    def _fence_predecessor(self, last: Last | None) -> Last | None:
        """Fence who wrote last under another id (F69): `initialise_only` has not. Return what is last then.

        Our own id is written down before anything is written under it: else who goes on under the other one again
        would not know of us.
        """
        if last is None or last.progress is None or not self._settings.is_exactly_once:
            return last
        other = last.progress.transactional_id
        if other == self._settings.transactional_id:
            return last
        if other:
            self._fence(other)
            last = read_last(self._settings)
        if last is not None and last.progress is not None:
            self.begin()
            progress = self.commit(last.progress)
            last = Last(self.progress_offset, dump(progress))
            if self.renewal_reason:
                self.renew_epoch()
        return last

    def _fence(self, other: str) -> None:
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

    def renew(self, settings: SinkSettings) -> None:
        """Go on with a new producer under `settings`, which differ in credentials alone. No group may be open.

        Raises what `open` does, and SinkFenced where somebody else has written since: initialising would have
        fenced him, and what is to be written next may stand in his records already (F69).
        """
        self._opened().usable()
        self._settings, self._properties = settings, producer_properties(settings)
        self._go_on_anew()

    @property
    def renewal_reason(self) -> str:
        """Why a request of the last group may still arrive (F77): then `renew_epoch` comes first; else empty."""
        return "" if self._client is None else self._client.renewal_reason

    def renew_epoch(self) -> None:
        """Go on as a producer of a new epoch: the broker refuses what comes late of the one before. No group is open.

        What became of the last commit is read back (F76). Raises what `renew` does, and SinkUnavailable where the
        commit is not there.
        """
        self._go_on_anew()

    def _go_on_anew(self) -> None:
        self.initialise_only()
        if not self._settings.is_exactly_once:
            return
        last = read_last(self._settings)
        offset = -1 if last is None else last.offset
        if offset > self.progress_offset:
            raise SinkFenced("another producer has written while this one was made again")
        if offset < self.progress_offset:
            raise SinkUnavailable(
                "Kafka has reported a commit that cannot be read back",
                hint="no action is needed: the next session begins behind what can be read",
                topic=self._settings.progress_topic,
                offset=self.progress_offset,
            )

    def close(self) -> None:
        """Give up whatever is open and let the producer go. Never raises; may be called at any time."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def queued(self) -> int:
        """Records produced and not yet reported as delivered."""
        return 0 if self._client is None else self._client.queued

    @property
    def age_s(self) -> float:
        """How long the open Kafka transaction has been open, 0 without one; a suspended machine counts too."""
        return 0.0 if self._begun_s is None else _now_s() - self._begun_s

    # --- a group -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a group. Raises what an earlier call left behind."""
        self._opened().begin()
        self._has_joined = False
        self._begun_s = _now_s()

    def by_partition(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records in the order in which they are to be produced: each partition keeps its own."""
        return by_partition(records)

    def produce(self, records: Sequence[Record], start: int) -> int:
        """Hand over `records[start:]` without blocking; return the index of the first one not taken.

        An index below `len(records)` means that the queue is full, or that the record there has to wait until it is
        empty (F65): call `send_now` and come back.
        Raises RecordTooLarge, TopicMissing, TopicMismatch, or what a delivery of this group met.
        """
        client = self._opened()
        producer = client.poll(0)
        at, failure = self._given(client, producer, records, start)
        if isinstance(failure, BufferError):
            if len(producer) == 0:
                raise never_fits(records[at], at) from None
            return at
        if isinstance(failure, KafkaException):
            raise _refused(client, failure, records[at], at) from failure
        if failure is not None:
            raise failure
        client.raise_pending()
        return at

    def write_ahead(self, topic: str, records: Sequence[tuple[bytes, bytes | None]], doing: str) -> int:
        """Write records of cdcd's own to a topic's one partition, within the open group, and wait for their delivery.

        Returns the offset after the last of them. They are no part of the group's offsets. `doing` is what an error
        says of it. Blocks.
        """
        client = self._opened()
        producer = client.usable()
        self._own_topics.add(topic)
        for key, value in records:
            try:
                producer.produce(topic, value, key, _ONE_PARTITION, client.reported)
            except BufferError as failure:
                raise SinkUnavailable(f"{doing}: no room in the client's queue", topic=topic) from failure
            except KafkaException as failure:
                raise client.translated(failure, doing, topic=topic) from failure
        client.flush(doing)
        return client.next_offsets.pop((topic, _ONE_PARTITION))

    def poll(self, timeout_s: float) -> None:
        """Serve delivery reports for up to `timeout_s`. Raises what they told."""
        self._opened().poll(timeout_s)

    def send_now(self, timeout_s: float) -> None:
        """As `poll`, until all is told; what waits for more to go with it is sent at once."""
        self._opened().send_now(timeout_s)

    def commit_soon(self) -> None:
        """Prepare for the commit while the first rows are on their way. May be called again; not for an open end.

        The progress topic joins the transaction by the same request as they do. Who reads that topic at a start
        waits while it has joined.
        """
        client = self._opened()
        if self._settings.is_exactly_once and client.queued and not self._has_joined:
            self._join_progress(client)

    def commit(self, progress: Progress) -> Progress:
        """Make the group durable with its progress record; return the progress with the group's offsets.

        Raises before anything is visible, except when the result is unknown; then the sink is torn (F76). Who goes on
        asks `renewal_reason` before.
        """
        client = self._opened()
        client.usable()
        hit("produced")
        self.commit_soon()
        client.flush("flushing a group")
        hit("flushed")
        client.next_offsets.pop((self._settings.progress_topic, _ONE_PARTITION), None)
        own_id = self._settings.transactional_id if self._settings.is_exactly_once else ""
        progress = dataclasses.replace(progress, offsets=_offsets(client), transactional_id=own_id)
        if self.identities is not None:
            progress = dataclasses.replace(progress, topics_at=self._write_topics(self.identities))
        self._produce_progress(client, progress)
        hit("progress_produced")
        if self._settings.is_exactly_once:
            try:
                client.commit()
            finally:
                self._note_progress(client)
            # What is copied before a snapshot is complete is copied again from its beginning, whatever is durable.
            client.reports_all = client.reports_all and not (
                progress.phase == "streaming" and progress.offsets
            )
        else:
            client.flush("flushing the progress record")
            self._note_progress(client)
        client.forget()
        self._begun_s = None
        return progress

    def abort(self) -> None:
        """Give the group up: exactly once leaves nothing visible. Raises when that cannot be promised."""
        client = self._opened()
        client.abort()
        self._begun_s = None
        client.raise_pending()

    # --- inside ------------------------------------------------------------------------------------------

    def _admitted(self, producer: Producer, records: Sequence[Record], start: int) -> Iterable[int]:
        if not self._limits.known:
            return range(start, len(records))
        queued, packed = partial(len, producer), is_compressed(self._settings)
        return self._limits.admitted(records, start, queued, is_compressed=packed)

    def _given(
        self, client: Client, producer: Producer, records: Sequence[Record], start: int
    ) -> tuple[int, Exception | None]:
        """Hand over `records[start:]`; return the first index that was not taken, and what was raised there."""
        if not client.reports_all and not self._limits.known:
            return produce_batch(producer.produce, client.reported, records, start)
        produce, reported = producer.produce, client.reported
        reported_error: Container[int] = (
            range(len(records)) if client.reports_all else last_of_each(records, 0)
        )
        at = start - 1
        try:
            for at in self._admitted(producer, records, start):
                topic, partition, key, value = records[at]
                if at in reported_error:
                    produce(topic, value, key, partition, reported)
                else:
                    produce(topic, value, key, partition)
        except (BufferError, KafkaException) as failure:
            return at, failure
        return at + 1, None

    def _opened(self) -> Client:
        if self._client is None:
            raise not_open()
        return self._client

    def _join_progress(self, client: Client) -> None:
        """Have the progress topic join the transaction while the group's records are on their way.

        A partition joins by its first record, which waits more than a millisecond for that; the progress record,
        which says their offsets, comes after them. Not where none is on its way: there is nothing to wait for.
        """
        key, doing = key_of_joining(self._settings.slot), "joining the progress topic"
        # Without room behind the records the progress record is the first one.
        with contextlib.suppress(BufferError):
            self._produce_own(client, key, None, doing)
            self._has_joined = True

    def _produce_progress(self, client: Client, progress: Progress) -> None:
        key, doing = key_of(self._settings.slot), "producing the progress record"
        try:
            self._produce_own(client, key, dump(progress), doing)
        except BufferError as failure:
            topic = self._settings.progress_topic
            raise SinkUnavailable("no room for the progress record", topic=topic) from failure

    def _produce_own(self, client: Client, key: bytes, value: bytes | None, doing: str) -> None:
        topic = self._settings.progress_topic
        try:
            client.usable().produce(topic, value, key, _ONE_PARTITION, client.reported)
        except KafkaException as failure:
            raise client.translated(failure, doing, topic=topic) from failure

    def _write_topics(self, identities: TopicIdentities) -> int:
        """Write down what is new about the topics, within the group; return the offset where it stands."""
        if identities.is_changed:
            key, topic = key_of_topics(self._settings.slot), self._settings.progress_topic
            identities.at = self.write_ahead(topic, [(key, identities.dump())], _WRITING_TOPICS) - 1
            if self.ownership is not None:
                self.ownership.refuse_claimed_since(identities.names(), identities.at)
        return identities.at

    def _note_progress(self, client: Client) -> None:
        """Remember how far the progress topic is known to be our own: also when the result is unknown (F76)."""
        next_offset = client.next_offsets.get((self._settings.progress_topic, _ONE_PARTITION), 0)
        self.progress_offset = max(self.progress_offset, next_offset - 1)


def _offsets(client: Client) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in client.next_offsets.items():
        offsets.setdefault(topic, {})[partition] = offset
    return offsets


def _refused(client: Client, failure: KafkaException, record: Record, at: int) -> SinkError:
    topic, partition = record.topic, record.partition
    refusal = client.translated(failure, "producing a record", topic=topic, partition=partition)
    error = error_of(failure)
    is_of_another = error.code() == KafkaError._STATE or error.txn_requires_abort()
    if isinstance(refusal, RecordTooLarge) and not is_of_another:
        return larger_than_producer(record, at)
    return refusal


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
