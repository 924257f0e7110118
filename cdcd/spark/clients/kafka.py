"""Ask Kafka for Spark: offsets, topics of one partition, and the settings and errors of consumers.

In: bootstrap servers and offsets.  Out: offsets, and committed records only (read_committed).
Invariant: log lines of the clients are records of Python's logging, never written by librdkafka itself.
Must not: commit consumer offsets; the positions are in Spark's checkpoint and the mirror's commit log.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicDescription,
)

from cdcd.errors import HistoryMissing, SinkAuthorization, SinkUnavailable
from cdcd.spark.clients.client_errors import TLS_HINT, cause_of, is_about_tls, making_client, refusal
from cdcd.spark.clients.client_log import CLIENT_LOG

REQUEST_TIMEOUT_S = 30.0
STALL_TIMEOUT_S = 60.0
FIRST_TIMEOUT_S = 2.0
POLL_S = 1.0
ELECTION_PAUSE_S = 0.1
MOST_PAUSE_S = 1.0
FETCH_RECORDS = 1_000
"""The number of records that the driver reads at once: each is an object of Python."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition with start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int


def consumer_settings(brokers: str, properties: Mapping[str, str]) -> dict[str, object]:
    """Return librdkafka's settings for a reader that commits nothing and sees committed records only."""
    return {
        "bootstrap.servers": brokers,
        "group.id": "cdcd-spark",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        **_FETCH,
        **properties,
    }


_FETCH: Mapping[str, object] = {
    # An end of partition arrives with the first fetch that has no records, which the broker holds for this time.
    "fetch.wait.max.ms": 10,
    # A fetch is decompressed as a whole, and a record in librdkafka's queue needs some hundred bytes of its own.
    "fetch.max.bytes": 1_048_576,
    "fetch.message.max.bytes": 1_048_576,
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16_384,
    # By default an answer of 100 MB is refused, so that no larger record is ever read. It is a limit, no reservation.
    "receive.message.max.bytes": 2_147_483_647,
    # The client checks a full queue again after this time; in the default, a second, a small queue runs empty.
    "fetch.queue.backoff.ms": 10,
}
"""A reader's memory does not depend on the backlog, and a small queue, which fits the cache, is faster. A record that
is larger than a fetch is fetched alone."""


class Cluster:
    """The driver's queries to Kafka: the topics, and the first and last offset of each partition."""

    def __init__(self, brokers: str, properties: Mapping[str, str]) -> None:
        self._reported: deque[KafkaError] = deque(maxlen=8)
        settings = {"bootstrap.servers": brokers, **properties, "error_cb": self._reported.append}
        with making_client():
            self._admin = AdminClient(settings, logger=CLIENT_LOG)
        self._offsets_timeout_s = FIRST_TIMEOUT_S
        """For how long the next request for offsets waits: as long as an earlier one has needed."""

    def id(self) -> str:
        """Return the cluster's id."""
        return str(self._asked("Kafka does not return its cluster id", self._listed).cluster_id)

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions of every topic of the cluster."""
        topics = self._asked("Kafka does not list its topics", self._listed).topics
        return {name: sorted(topic.partitions) for name, topic in topics.items()}

    def starts(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the log start offset of each partition."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the last stable offset of each partition: nothing below it belongs to an open transaction."""
        return self._offsets(partitions, OffsetSpec.latest())

    def high_watermarks(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the next offset of each partition, with records that are not committed yet."""
        return self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of these topics, of those that exist, have one, and may be described."""
        found = {
            topic: str(one.topic_id) for topic, one in self._described(topics).items() if one is not None
        }
        return {
            topic: one for topic, one in found.items() if one.strip("A")
        }  # a broker without ids says zero

    def missing(self, topics: Collection[str]) -> frozenset[str]:
        """Return those of these topics that `partitions` lacks and that do not exist.

        Kafka does not list a topic that the principal may not describe: it may exist, and a read of it reports this.
        """
        unlisted = frozenset(topics) - self.partitions().keys()
        return frozenset(topic for topic, one in self._described(list(unlisted)).items() if one is None)

    def _described(self, topics: Sequence[str]) -> dict[str, TopicDescription | None]:
        """Return the descriptions of topics, None for a missing one; without those that may not be described."""
        if not topics:
            return {}
        self._admin.poll(0)
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_TIMEOUT_S)
        found: dict[str, TopicDescription | None] = {}
        for topic, future in asked.items():
            try:
                found[topic] = self._asked("Kafka does not describe a topic", future.result)
            except SinkUnavailable as error:
                if error.context.get("reason") not in UNKNOWN:
                    raise
                found[topic] = None
            except SinkAuthorization as error:
                if error.context.get("kafka") != "TOPIC_AUTHORIZATION_FAILED":
                    raise
        return found

    def cleanup_policy(self, topic: str) -> str | None:
        """Return a topic's cleanup.policy, None if the principal must not read it."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        self._admin.poll(0)
        future = self._admin.describe_configs([asked], request_timeout=REQUEST_TIMEOUT_S)[asked]
        try:
            return str(self._asked("Kafka does not describe a topic", future.result)["cleanup.policy"].value)
        except SinkAuthorization as error:
            if error.context.get("kafka") == "TOPIC_AUTHORIZATION_FAILED":
                return None
            raise

    def bounds(
        self, partitions: Sequence[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """Return `starts` and `high_watermarks`, asked at the same time."""
        first, last = self._listed_offsets(
            partitions,
            (OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED),
            (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        )
        return first, last

    def _offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], int]:
        return self._listed_offsets(partitions, (spec, isolation))[0]

    def _listed_offsets(
        self, partitions: Sequence[tuple[str, int]], *wanted: tuple[OffsetSpec, IsolationLevel]
    ) -> list[dict[tuple[str, int], int]]:
        """Return the offsets of each kind, asked at the same time.

        librdkafka does not learn of a partition's new leader by an answer: after a restart of one broker its requests
        are refused for the former leader's epoch, or wait for the former leader until they time out, until the
        metadata are listed. So the first request does not wait long, unless an earlier answer has taken longer.
        """

        def ask() -> list[dict[tuple[str, int], int]]:
            deadline_s, pause_s = time.monotonic() + REQUEST_TIMEOUT_S, ELECTION_PAUSE_S
            while True:
                begun_s, timeout_s = time.monotonic(), self._offsets_timeout_s
                asked = [self._requested(partitions, *one, timeout_s) for one in wanted]
                try:
                    found = [self._answered(one) for one in asked]
                except KafkaException as error:
                    now_s = time.monotonic()
                    is_short = now_s - begun_s > timeout_s / 2 and timeout_s < REQUEST_TIMEOUT_S
                    if error.args[0].code() not in _MOVED or (now_s > deadline_s and not is_short):
                        raise
                else:
                    if time.monotonic() - begun_s < FIRST_TIMEOUT_S / 2:
                        self._offsets_timeout_s = FIRST_TIMEOUT_S
                    return found
                if is_short:  # a broker that is only slow answers in a longer time
                    self._offsets_timeout_s = min(2 * timeout_s, REQUEST_TIMEOUT_S)
                self._listed()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)

        return self._asked("Kafka does not list offsets", ask)

    def _requested(
        self,
        partitions: Sequence[tuple[str, int]],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        timeout_s: float,
    ) -> Mapping[TopicPartition, Future[ListOffsetsResultInfo]]:
        if not partitions:
            return {}
        self._admin.poll(0)
        asked: Mapping[TopicPartition, Future[ListOffsetsResultInfo]] = self._admin.list_offsets(
            {TopicPartition(topic, partition): spec for topic, partition in partitions},
            isolation_level=isolation,
            request_timeout=timeout_s,
        )
        return asked

    def _answered(
        self, asked: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]
    ) -> dict[tuple[str, int], int]:
        return {(key.topic, key.partition): self._offset(future) for key, future in asked.items()}

    def _offset(self, future: Future[ListOffsetsResultInfo]) -> int:
        """Return the offset of an answer.

        librdkafka answers with -1001, and no error, if the connection to the partition's leader is lost meanwhile.
        """
        while True:
            try:
                offset = int(future.result(POLL_S).offset)
            except FutureTimeoutError:
                self._admin.poll(0)  # librdkafka renews an OAuth token in there
                continue
            if offset < 0:
                raise KafkaException(KafkaError(KafkaError._NOENT))
            return offset

    def _listed(self) -> ClusterMetadata:
        """Return the metadata. A refused login is raised soon: librdkafka itself would only repeat it in silence."""
        deadline_s, timeout_s = time.monotonic() + REQUEST_TIMEOUT_S, FIRST_TIMEOUT_S
        self._reported.clear()
        while True:
            self._admin.poll(0)
            left_s = deadline_s - time.monotonic()
            try:
                return self._admin.list_topics(timeout=min(timeout_s, max(left_s, 0.1)))
            except KafkaException as error:
                self._admin.poll(0)
                refused = refusal(self._reported, "Kafka refuses the connection")
                if refused is not None:
                    raise refused from error
                if error.args[0].code() not in _SILENCE or left_s <= timeout_s:
                    raise
            timeout_s *= 2

    def _asked(self, refused: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except KafkaException as error:
            refusing = refusal([error.args[0]], refused)
            if refusing is not None:
                raise refusing from error
            cause = cause_of(self._reported)
            text = refused if cause is None else f"{refused}: {cause}"
            hint = TLS_HINT if is_about_tls(cause) else _AWAY
            raise unavailable(text, hint=hint, reason=error.args[0].name()) from error
        finally:
            self._admin.poll(0)  # delivers the client's log lines


UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""The reasons of a topic or partition that does not exist."""
_SILENCE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
_MOVED = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._NOENT,
        *_SILENCE,
    }
)
"""The errors of a request for offsets while a partition gets another leader, or has none for a short time."""
_AWAY = (
    "start Kafka, or correct the reader's brokers (--brokers, the option `brokers`) or kafka.security.protocol; then "
    "start it again"
)


def unavailable(message: str, *, hint: str = _AWAY, **context: object) -> SinkUnavailable:
    """Return the error of a reader; its hint names the option of the brokers and a restart."""
    return SinkUnavailable(message, hint=hint, **context)


_SMALL_QUEUE = {"queued.min.messages": 1000, "queued.max.messages.kbytes": 1024}
"""The records of a backlog are parsed slower than they arrive."""


class Tail:
    """A topic of one partition, read forward: committed records only. `exists`: whether the topic was found."""

    def __init__(
        self, brokers: str, properties: Mapping[str, str], topic: str, cluster: Cluster, position: int = 0
    ) -> None:
        self._topic = topic
        self._cluster = cluster
        self._settings = consumer_settings(brokers, properties) | _SMALL_QUEUE
        self._consumer: Consumer | None = None
        self._fetched: deque[Message] = deque()
        self._end: int | None = None
        self._written = 0
        self.position = position
        self.exists = False

    def end_now(self) -> None:
        """End at the record that is the newest now: later ones are not read."""
        self._end = self._newest() if self._consumer is not None or self._open() else 0

    def note_written(self) -> None:
        """Note the newest record that is written, perhaps of an open transaction; `end_now` is not before it."""
        place = (self._topic, 0)
        self._written = self._cluster.high_watermarks([place])[place]
        self._end = None if self._end is None else max(self._end, self._written)

    @property
    def has_read_written(self) -> bool:
        """Whether all records were read, or aborted, that were written at the last `note_written`."""
        return self.position >= self._written

    def messages(self) -> Iterator[Message]:
        """Yield the records that were committed since the last call; none while the topic does not exist.

        A caller may stop in the middle: the next call continues there.
        """
        if (self._consumer is None and not self._open()) or self.position == self._end:
            return
        end = self._newest() if self._end is None else min(self._newest(), self._end)
        if self._end is None and end < self.position:
            raise HistoryMissing(
                "the topic has fewer records than were read: it was recreated, or has lost records",
                topic=self._topic,
                wanted_offset=self.position,
                end_offset=end,
            )
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while self.position < end:
            if not self._fetched:
                self._fetched += self._fetch()
            while self._fetched and self.position < end:
                message = self._fetched.popleft()
                deadline = time.monotonic() + STALL_TIMEOUT_S
                self.position = max(self.position, next_offset(message))
                if message.error() is None:
                    yield message
            if time.monotonic() > deadline:
                raise unavailable("a read of a topic stalls", topic=self._topic, offset=self.position)

    def _newest(self) -> int:
        return self._cluster.ends([(self._topic, 0)])[(self._topic, 0)]

    def rewind(self) -> None:
        """Begin again with the first record."""
        self.close()
        self._fetched.clear()
        self.position = 0

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> bool:
        self.exists = self._topic in self._cluster.partitions()
        if self.exists:
            # For OFFSET_BEGINNING a client that does not know the partition's leader yet waits for half a second.
            start = self.position or self._cluster.starts([(self._topic, 0)])[(self._topic, 0)]
            self._consumer = Consumer(self._settings, logger=CLIENT_LOG)
            self._consumer.assign([TopicPartition(self._topic, 0, start)])
        return self.exists

    def _fetch(self) -> list[Message]:
        assert self._consumer is not None
        return check_messages(take(self._consumer, FETCH_RECORDS, POLL_S))


def take(consumer: Consumer, most: int, wait_s: float) -> list[Message]:
    """Return what a consumer has, waiting only for the first message; `consume` waits until it has `most`."""
    first = consumer.consume(1, wait_s)
    return [*first, *consumer.consume(most - 1, 0)] if first else first


def check_messages(messages: list[Message]) -> list[Message]:
    """Return the records and ends of partitions. Raise errors, except those that librdkafka retries."""
    settled: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            settled.append(message)
        else:
            check_error(error, message.topic(), message.partition())
    return settled


def check_error(error: KafkaError, topic: str | None, partition: int | None) -> None:
    """Raise a consumer's error as an error of cdcd, unless librdkafka retries, or the records do not depend on it.

    librdkafka looks for the coordinator of its `group.id` although nothing is read as a group: no right on a group is
    needed, and without one that lookup is refused repeatedly while records arrive.
    """
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise HistoryMissing("Kafka removed records before they were read", topic=topic, partition=partition)
    if (refused := refusal([error], "Kafka refuses the read", topic=topic)) is not None:
        raise refused
    if error.fatal() or not (error.retriable() or error.code() in _PASSING):
        raise unavailable("Kafka refuses the read", topic=topic, reason=error.name())


_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
)


def next_offset(message: Message) -> int:
    """Return the next offset to read after this message; for an end of partition it is after the last marker."""
    offset: int = message.offset()
    return offset if message.error() is not None else offset + 1
