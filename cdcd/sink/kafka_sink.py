"""KafkaSink: records in, one atomic and durable group at a time out, with the progress record inside it.

In: `begin`, records, `commit(progress)` or `abort`.  Out: the progress with the offsets of the group.
Invariant: `commit` returns only when every record of the group and its progress record are durable; any failed
delivery makes it raise (F63). When the result of a commit is unknown it raises, and the sink refuses every call but
`close`: the next `open` reads the durable state from the progress topic alone (F76).
Must not: choose partitions, retry a failed group, log or raise anything of a record but topic and size. The state and
the reported errors of one producer belong to `Client`.
`commit`, `abort`, `open`, `renew` and `close` block and belong in a thread; the other methods do not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.errors import CdcdError, RecordTooLarge, SinkAuthorization, SinkError, SinkFenced, SinkUnavailable
from cdcd.failpoints import hit
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import Progress, Record
from cdcd.sink.client import Client, not_open
from cdcd.sink.error_map import error_of
from cdcd.sink.hidden_commit import hidden_progress
from cdcd.sink.limits import Limits
from cdcd.sink.produce_batch import by_partition, ends_of_each, produce_batch
from cdcd.sink.progress import dump, first_offsets_headers, key_of, key_of_joining
from cdcd.sink.reader import Last, overtaken_by, read_last
from cdcd.sink.settings import SinkSettings, is_compressed, producer_properties
from cdcd.sink.too_large import larger_than_producer, never_fits
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics
from cdcd.sink.topic_ownership import TopicOwnership

__all__ = ["KafkaSink"]

_LOG = structlog.stdlib.get_logger("cdcd.sink.kafka_sink")
_ONE_PARTITION = 0
Headers = list[tuple[str, bytes]]
_WRITING_TOPICS = "writing the record of the topics"


class KafkaSink:
    """One producer for one slot. Open it, then for each group: begin, produce..., commit or abort."""

    def __init__(self, settings: SinkSettings, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = Limits() if limits is None else limits
        self._own_topics = {settings.progress_topic}
        self._properties = producer_properties(settings)
        self._client: Client | None = None
        self._settled_s: float | None = None
        self._has_joined = False
        self.identities: TopicIdentities | None = None
        """The identities of the topics that have records; None: the progress record's `topics_at` is unchanged."""
        self.ownership: TopicOwnership | None = None
        """Checks whether another slot claims a topic at the same time; None: no check."""
        self.progress_offset = -1
        """Offset of the last progress record read or written here; another producer wrote any later one."""
        self.committed_ends: Mapping[str, Mapping[int, int]] = {}
        """The offsets after the last committed group, another object after each commit: see `visible`."""

    # --- life --------------------------------------------------------------------------------------------

    def open(self, confirmed_lsn: Callable[[], Lsn] = lambda: INVALID_LSN) -> Progress | None:
        """Create the producer, fence older ones, and return the slot's last durable progress (F64, F69, F76).

        `confirmed_lsn` returns the LSN that the slot is confirmed up to. It is called if the progress topic cannot be
        read to its end: the LSN may prove that the hidden transaction was committed (F86). And if the last record was
        written without transactions: the LSN may prove that the record is late (F77).
        Raises SinkUnavailable after the operation timeout, SinkAuthorization, TopicMissing,
        ProgressUnreadable, SinkError for properties that librdkafka refuses.
        """
        try:
            self.initialise_only()
            last = self._without_late(self._read_last(confirmed_lsn), confirmed_lsn)
            last = self._fence_predecessor(last)
            self.progress_offset = -1 if last is None else last.offset
            return None if last is None else last.progress
        except CdcdError:
            self.close()
            raise

    def initialise_only(self) -> None:
        """Do the same as `open` without reading the progress: create the producer and fence older ones."""
        self.close()
        self._client = Client(self._settings, self._properties, self._limits, self._own_topics)
        if self._settings.is_exactly_once:
            asked_s = _now_s()
            self._client.initialise()
            self._settled_s = asked_s

    def _read_last(self, confirmed_lsn: Callable[[], Lsn]) -> Last | None:
        try:
            return read_last(self._settings)
        except SinkUnavailable:
            if not self._settings.is_exactly_once:
                raise
            hidden = hidden_progress(self._settings, confirmed_lsn())
            if hidden is None:
                raise
        # The markers of this transaction also end the hidden one, which the same transactional id began.
        self.begin()
        self.commit(hidden)
        if self.renewal_reason:
            self.renew_epoch()
        _LOG.warning(
            "hidden_commit",
            reason="the last commit had no marker in the progress topic, for example because a broker was killed. "
            "The slot proves that the rows were committed, so cdcd wrote the progress record again",
            commit_lsn=format_lsn(hidden.commit_lsn),
            topics=sorted(hidden.offsets),
            hint="readers see the hidden rows of a topic as soon as its next row is committed",
        )
        return read_last(self._settings)

    def _without_late(self, last: Last | None, confirmed_lsn: Callable[[], Lsn]) -> Last | None:
        """Return the last record; if it is late, the one that it has overtaken, which is then written again."""
        found = overtaken_by(self._settings, last, confirmed_lsn)
        if found is None or last is None or found.progress is None:
            return last
        other = found.progress.transactional_id
        if self._settings.is_exactly_once and other not in ("", self._settings.transactional_id):
            self._fence(other)
        self.begin()
        progress = self.commit(found.progress)
        if self.renewal_reason:
            self.renew_epoch()
        _LOG.warning(
            "late_progress",
            reason="a request of an earlier session wrote its progress record after later ones. The slot proves that "
            "the later ones are durable, so cdcd wrote the last of them again",
            late_offset=last.offset,
            end_lsn=format_lsn(progress.end_lsn),
        )
        return Last(self.progress_offset, dump(progress))

    def _fence_predecessor(self, last: Last | None) -> Last | None:
        """Fence the producer that wrote last, if under another id (F69); return the last record after that.

        `initialise_only` fences only our own id. A progress record with our id precedes all other records under it:
        otherwise a daemon that returns to the other id would not know of ours.
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
                f"grant this principal Write on the transactional id {other} too, because cdcd has to fence the "
                "producer of that id"
            )
            raise
        finally:
            predecessor.close()

    def renew(self, settings: SinkSettings) -> None:
        """Continue with a new producer under `settings`, which differ only in credentials. No group may be open.

        Raises the errors of `open`, and SinkFenced where another producer has written since: initialising would have
        fenced that producer, which may already have written the next records (F69).
        """
        self._opened().usable()
        self._settings, self._properties = settings, producer_properties(settings)
        self._go_on_anew()

    @property
    def settings(self) -> SinkSettings:
        """The settings, with the present credentials."""
        return self._settings

    @property
    def renewal_reason(self) -> str:
        """Why a request of the last group may still arrive (F77), "" where none can; call `renew_epoch` then."""
        return "" if self._client is None else self._client.renewal_reason

    def renew_epoch(self) -> None:
        """Continue as a producer of a new epoch: the broker refuses late requests of the old one. No group is open.

        The result of the last commit is read back (F76). Raises the errors of `renew`, and SinkUnavailable where the
        commit cannot be read.
        """
        self._go_on_anew()

    def _go_on_anew(self) -> None:
        self.initialise_only()
        if not self._settings.is_exactly_once:
            return
        last = read_last(self._settings)
        offset = -1 if last is None else last.offset
        if offset > self.progress_offset:
            raise SinkFenced("another producer wrote to the progress topic while cdcd recreated its producer")
        if offset < self.progress_offset:
            raise SinkUnavailable(
                "Kafka has reported a commit that cannot be read back",
                hint="no action is needed: the next session begins after the last commit that can be read",
                topic=self._settings.progress_topic,
                offset=self.progress_offset,
            )

    def close(self) -> None:
        """Discard an open group and release the producer. Never raises; may be called at any time."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def queued(self) -> int:
        """Number of records produced and not yet reported as delivered."""
        return 0 if self._client is None else self._client.queued

    @property
    def age_s(self) -> float:
        """The greatest age in seconds that a Kafka transaction may have at the coordinator, 0 before the first one.

        A late AddPartitionsToTxn opens one there without `begin` (F77), but none is older than the last request that
        the coordinator answered when none was open. The time of a suspended machine counts.
        """
        return 0.0 if self._settled_s is None else _now_s() - self._settled_s

    # --- a group -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a group. Raises a pending error of an earlier call."""
        self._opened().begin()
        self._has_joined = False

    def by_partition(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records grouped by partition, in their order within each partition."""
        return by_partition(records)

    def produce(self, records: Sequence[Record], start: int) -> int:
        """Produce `records[start:]` without blocking; return the index of the first one not accepted.

        An index below `len(records)` means that the queue is full, or that this record has to wait for an empty queue
        (F65): call `send_now`, then `produce` again.
        Raises RecordTooLarge, TopicMissing, TopicMismatch, or the error of a delivery of this group.
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
        """Write cdcd's own records to a topic's one partition, within the open group, and wait for their delivery.

        Return the offset after the last of them. The group's offsets do not include them. `doing` names the operation
        in an error. Blocks.
        """
        client = self._opened()
        producer = client.usable()
        self._own_topics.add(topic)
        for key, value in records:
            try:
                producer.produce(topic, value, key, _ONE_PARTITION, client.reported)
            except BufferError as failure:
                raise SinkUnavailable(f"{doing}: the client's queue is full", topic=topic) from failure
            except KafkaException as failure:
                raise client.translate(failure, doing, topic=topic) from failure
        client.flush(doing)
        return client.next_offsets.pop((topic, _ONE_PARTITION))

    def poll(self, timeout_s: float) -> None:
        """Serve delivery reports for up to `timeout_s`. Raises an error that they report."""
        self._opened().poll(timeout_s)

    def send_now(self, timeout_s: float) -> None:
        """Send lingering batches at once and serve delivery reports until all have come, or for `timeout_s`."""
        self._opened().send_now(timeout_s)

    def commit_soon(self) -> None:
        """Prepare for the commit while the first rows are in flight. May be called again; not for an open end.

        The progress topic joins the transaction in the same request as the rows' topics. A starting daemon that reads
        the progress topic waits while it is part of the transaction.
        """
        client = self._opened()
        if self._settings.is_exactly_once and client.queued and not self._has_joined:
            self._join_progress(client)

    def commit(self, progress: Progress) -> Progress:
        """Make the group durable with its progress record; return the progress with the group's offsets.

        Raises before a record is visible, except when the result is unknown; then the sink is torn (F76). Check
        `renewal_reason` before the next group.
        """
        client = self._opened()
        client.usable()
        hit("produced")
        self.commit_soon()
        client.flush("flushing a group")
        hit("flushed")
        client.next_offsets.pop((self._settings.progress_topic, _ONE_PARTITION), None)
        own_id = self._settings.transactional_id if self._settings.is_exactly_once else ""
        progress = dataclasses.replace(
            progress, offsets=_by_topic(client.next_offsets), transactional_id=own_id
        )
        if self.identities is not None:
            self.identities.incomplete.recorded(progress.copies_noted)
            progress = dataclasses.replace(progress, topics_at=self._write_topics(self.identities))
        self._produce_progress(client, progress, self._headers(client, progress))
        hit("progress_produced")
        if self._settings.is_exactly_once:
            asked_s = _now_s()
            try:
                client.commit()
            finally:
                self._note_progress(client)
            self._settled_s = asked_s
            self.committed_ends = progress.offsets
            if progress.offsets:
                self._need_fewer_reports(client, progress)
        else:
            client.flush("flushing the progress record")
            self._note_progress(client)
        client.forget()
        return progress

    def _need_fewer_reports(self, client: Client, progress: Progress) -> None:
        """Ask for the last report of each partition only, if the next client begins after these records."""
        if progress.phase == "streaming":
            self._limits.is_cause_unknown = False
        if not self._limits.is_cause_unknown:
            client.reports_all = False

    def abort(self) -> None:
        """Abort the group; in exactly-once mode no record of it is visible. Raises when that is not certain."""
        client = self._opened()
        client.abort()
        client.raise_pending()

    # --- inside ------------------------------------------------------------------------------------------

    def _admitted(self, producer: Producer, records: Sequence[Record], start: int) -> Iterable[int]:
        if not self._limits.known:
            return range(start, len(records))
        queued, packed = partial(len, producer), is_compressed(self._settings)
        return self._limits.admit(records, start, queued, is_compressed=packed)

    def _given(
        self, client: Client, producer: Producer, records: Sequence[Record], start: int
    ) -> tuple[int, Exception | None]:
        """Produce `records[start:]`; return the first index that was not accepted, and the exception there."""
        if not client.reports_all and not self._limits.known:
            return produce_batch(producer.produce, client.reported, records, start, client.direct)
        produce, reported = producer.produce, client.reported
        reported_error: Container[int] = (
            range(len(records)) if client.reports_all else ends_of_each(records, 0)
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
        """Add the progress topic to the transaction while the group's records are in flight.

        A partition joins with its first record, which takes more than a millisecond; the progress record, which has
        the offsets of the other records, follows them. Without records in flight an early join saves nothing.
        """
        key, doing = key_of_joining(self._settings.slot), "joining the progress topic"
        # If the queue is full, the topic joins with the progress record.
        with contextlib.suppress(BufferError):
            self._produce_own(client, key, None, doing)
            self._has_joined = True

    def _headers(self, client: Client, progress: Progress) -> Headers:
        """Return the headers of the progress record, none with at_least_once: rows may be before its first ones."""
        if not self._settings.is_exactly_once or not progress.offsets:
            return []
        return first_offsets_headers(_of_topics(client.first_offsets, progress.offsets))

    def _produce_progress(self, client: Client, progress: Progress, headers: Headers) -> None:
        key, doing = key_of(self._settings.slot), "producing the progress record"
        try:
            self._produce_own(client, key, dump(progress), doing, headers)
        except BufferError as failure:
            topic = self._settings.progress_topic
            raise SinkUnavailable(f"{doing}: the client's queue is full", topic=topic) from failure

    def _produce_own(
        self, client: Client, key: bytes, value: bytes | None, doing: str, headers: Headers | None = None
    ) -> None:
        topic = self._settings.progress_topic
        try:
            client.usable().produce(topic, value, key, _ONE_PARTITION, client.reported, headers=headers or [])
        except KafkaException as failure:
            raise client.translate(failure, doing, topic=topic) from failure

    def _write_topics(self, identities: TopicIdentities) -> int:
        """Write a changed record of topics within the group; return the offset of the latest one."""
        if identities.is_changed:
            key, topic = key_of_topics(self._settings.slot), self._settings.progress_topic
            identities.at = self.write_ahead(topic, [(key, identities.dump())], _WRITING_TOPICS) - 1
            hit("topics_written")
            if self.ownership is not None:
                self.ownership.refuse_claimed_since(identities.names(), identities.at)
        return identities.at

    def _note_progress(self, client: Client) -> None:
        """Store the offset up to which the progress topic is our own, also when the result is unknown (F76)."""
        next_offset = client.next_offsets.get((self._settings.progress_topic, _ONE_PARTITION), 0)
        self.progress_offset = max(self.progress_offset, next_offset - 1)


def _by_topic(found: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in found.items():
        offsets.setdefault(topic, {})[partition] = offset
    return offsets


def _of_topics(found: Mapping[tuple[str, int], int], topics: Container[str]) -> dict[str, dict[int, int]]:
    return {topic: offsets for topic, offsets in _by_topic(found).items() if topic in topics}


def _refused(client: Client, failure: KafkaException, record: Record, at: int) -> SinkError:
    topic, partition = record.topic, record.partition
    refusal = client.translate(failure, "producing a record", topic=topic, partition=partition)
    error = error_of(failure)
    is_of_another = error.code() == KafkaError._STATE or error.txn_requires_abort()
    if isinstance(refusal, RecordTooLarge) and not is_of_another:
        return larger_than_producer(record, at)
    return refusal


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
