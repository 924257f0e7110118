"""The settings of the sink, as plain values, and the client properties that only cdcd sets.

In: values that config has read.  Out: the properties of librdkafka's producer, consumer and admin.
Invariant: no property of the user can weaken durability, order or exactly once (F63): the properties in
`FORCED_PROPERTIES` are refused, not silently overridden.
Must not: read files or the environment, talk to Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdcd.errors import ConfigError
from cdcd.property_names import is_of_a_producer

__all__ = [
    "FORCED_PROPERTIES",
    "RESENT_AFTER_S",
    "SinkSettings",
    "TopicSettings",
    "client_properties",
    "refuse_forced",
]

Delivery = Literal["exactly_once", "at_least_once"]

FORCED_PROPERTIES: Mapping[str, str] = {
    "bootstrap.servers": "set sink.bootstrap_servers",
    "metadata.broker.list": "set sink.bootstrap_servers",
    "client.id": "cdcd derives it from the slot's name",
    "acks": "cdcd needs acks=all",
    "request.required.acks": "cdcd needs acks=all",
    "enable.idempotence": "cdcd needs it on",
    "enable.gapless.guarantee": "cdcd recreates the producer instead",
    "transactional.id": "each slot has its own id, which fences an older process",
    "transaction.timeout.ms": "cdcd sets it",
    "max.in.flight": "cdcd needs at most 5 for order",
    "max.in.flight.requests.per.connection": "cdcd needs at most 5 for order",
    "retries": "only a timeout ends the delivery of a record, see delivery.timeout.ms",
    "message.send.max.retries": "only a timeout ends the delivery of a record, see delivery.timeout.ms",
    "retry.backoff.ms": "cdcd uses it to detect whether the end of a transaction was sent again",
    "retry.backoff.max.ms": "cdcd uses it to detect whether the end of a transaction was sent again",
    "queuing.strategy": "order needs fifo",
    "partitioner": "cdcd chooses the partition itself, with the Java client's murmur2",
    "partitioner_cb": "cdcd chooses the partition itself, with the Java client's murmur2",
    "produce.offset.report": "the progress record needs the offsets",
    "delivery.report.only.error": "the progress record needs the offsets",
    "allow.auto.create.topics": "cdcd creates topics with their settings, see sink.topics",
    "isolation.level": "cdcd reads its progress with read_committed",
    "group.id": "cdcd joins no consumer group",
    "enable.auto.commit": "cdcd joins no consumer group",
    "enable.auto.offset.store": "cdcd joins no consumer group",
    "auto.offset.reset": "cdcd reads its progress from offsets that it queries",
    "enable.partition.eof": "cdcd uses it to find the end of its progress",
    "on_delivery": "cdcd has its own",
    "dr_cb": "cdcd has its own",
    "dr_msg_cb": "cdcd has its own",
    "error_cb": "cdcd has its own",
    "stats_cb": "cdcd has its own",
    "throttle_cb": "cdcd has its own",
    "log_cb": "cdcd has its own",
    "logger": "cdcd has its own",
}
"""Properties that `sink.properties` may not have, each with the reason or the option to use instead."""

PRODUCER_DEFAULTS: Mapping[str, str | int | float | bool] = {
    # A long linger lets a fast group fill its batches. It delays nothing: the end of a group flushes at once, and so
    # do an early send and a wait for space in the queue. One batch is one request; with rows spread over a hundred
    # topics, a short linger gives hardly more than one row a batch.
    "linger.ms": 500,
    "batch.num.messages": 100_000,
    # Smaller than the client's default, so that most of a group is sent while its later rows are encoded.
    "batch.size": 262_144,
    # Limits the memory between produce() and the broker; a full queue means back-pressure, never loss.
    "queue.buffering.max.messages": 200_000,
    # Twice the size is not faster, and takes 5 MB more. `_queue_of` extends it where `message.max.bytes` needs it.
    "queue.buffering.max.kbytes": 8_192,
    "socket.keepalive.enable": True,
}

_RETRY_BACKOFF_MS = 500
"""Much longer than a commit takes; a request that a broker refuses with a retriable error waits for this time."""
_RETRY_JITTER = 0.2
RESENT_AFTER_S = _RETRY_BACKOFF_MS / 1000 * (1 - _RETRY_JITTER)
"""The client repeats no request sooner than this after it first sent the request (F77).

librdkafka repeats a request only through `rd_kafka_broker_buf_retry`, whatever its result and however much of it was
sent. That function waits `retry.backoff.ms` with a jitter of 20 %, on the monotonic clock.
"""

_LARGEST_RECORD_KBYTES = 1_000_000_000 // 1024 + 1
"""Size of the queue that librdkafka's largest `message.max.bytes` needs."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How to reach Kafka and how to write there. `properties` have librdkafka's names, and are passed to it.

    `operation_timeout_s` limits every blocking call (open, commit, abort, a query about a topic).
    """

    bootstrap_servers: str
    delivery: Delivery
    transactional_id: str
    client_id: str
    progress_topic: str
    slot: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    transaction_timeout_ms: int = 900_000
    operation_timeout_s: float = 60.0

    @property
    def is_exactly_once(self) -> bool:
        """True when groups are Kafka transactions."""
        return self.delivery == "exactly_once"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How topics are created: with `create` False a missing topic is an error."""

    create: bool
    partitions: int
    replication_factor: int
    properties: Mapping[str, str] = field(default_factory=dict)


def refuse_forced(properties: Mapping[str, str], prefix: str = "sink.properties") -> None:
    """Raise ConfigError naming every property that only cdcd sets."""
    problems = tuple(
        f"{prefix}.{name}: cannot be set: {FORCED_PROPERTIES[name]}"
        for name in sorted(properties)
        if name in FORCED_PROPERTIES
    )
    if problems:
        raise ConfigError("; ".join(problems), problems)


def client_properties(settings: SinkSettings) -> dict[str, object]:
    """Return the properties of every client of this sink: address, name, security. Raises ConfigError."""
    refuse_forced(settings.properties)
    shared: dict[str, object] = {
        name: value for name, value in settings.properties.items() if not is_of_a_producer(name)
    }
    shared |= {"bootstrap.servers": settings.bootstrap_servers, "client.id": settings.client_id}
    return shared


def producer_properties(settings: SinkSettings) -> dict[str, object]:
    """Return the producer's properties: defaults, the user's, the forced ones. Raises ConfigError."""
    refuse_forced(settings.properties)
    properties: dict[str, object] = {
        **PRODUCER_DEFAULTS,
        **_queue_of(settings.properties),
        **settings.properties,
    }
    properties |= {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": settings.client_id,
        "acks": "all",
        "enable.idempotence": True,
        "max.in.flight.requests.per.connection": 5,
        "allow.auto.create.topics": False,
        "retry.backoff.ms": _RETRY_BACKOFF_MS,
        "retry.backoff.max.ms": 2 * _RETRY_BACKOFF_MS,
    }
    if settings.is_exactly_once:
        properties |= {
            "transactional.id": settings.transactional_id,
            "transaction.timeout.ms": settings.transaction_timeout_ms,
        }
    return properties


def _queue_of(properties: Mapping[str, str]) -> dict[str, object]:
    """Return the size of the producer's queue: the largest allowed record has to fit in it."""
    name, largest_bytes = "queue.buffering.max.kbytes", properties.get("message.max.bytes", "0")
    # librdkafka parses numbers as C does ("6e7" in YAML is a float), and itself refuses a number that is too large.
    least = int(largest_bytes) // 1024 + 1 if largest_bytes.isdecimal() else _LARGEST_RECORD_KBYTES
    return {name: max(int(PRODUCER_DEFAULTS[name]), min(least, _LARGEST_RECORD_KBYTES))}


def is_compressed(settings: SinkSettings) -> bool:
    """Whether the producer compresses its batches, so that their size differs from that of their records."""
    names = ("compression.type", "compression.codec")
    return any(settings.properties.get(name, "none") != "none" for name in names)


READS_TO_END: dict[str, object] = {"fetch.wait.max.ms": 10}
"""For a consumer whose read ends with the end of a partition, which a broker reports after this wait for records."""


def reader_properties(settings: SinkSettings) -> dict[str, object]:
    """Return the properties of the consumer that reads the progress topic. Raises ConfigError."""
    return client_properties(settings) | {
        "group.id": f"{settings.client_id}-progress",  # librdkafka requires one; cdcd commits no offsets to it
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
    }


def admin_properties(settings: SinkSettings) -> dict[str, object]:
    """Return the properties of the admin client. Raises ConfigError."""
    return client_properties(settings) | {"allow.auto.create.topics": False}
