"""The librdkafka that confluent-kafka ships, called directly: one consumer whose queue C code reads.

In: settings under librdkafka's names, ranges of partitions.  Out: the address of the consumer's queue, the functions
that `cdcd.columnar` calls on it, and the client's log lines.
Invariant: `close` destroys each object that was created, on every path, and creates none again; the client logs into
a queue of its own, never to stderr; an error has no secret. A process that was forked does not touch its parent's
client, whose threads it does not have.
Must not: decide what an error means for a reader.

confluent-kafka's extension module is linked with librdkafka, so its symbols are found through that module: there is
one librdkafka in the process, and no second one that would have to be of the same version.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

import confluent_kafka.cimpl
from confluent_kafka import KafkaError, KafkaException

from cdcd.property_names import has_user, is_secret_property
from cdcd.redaction import add_secret, add_user_of, clean
from cdcd.spark.clients.client_log import ClientLog

_CONSUMER = 1
_OK = 0
_EVENT_LOG = 0x4
_NO_CONSUMER_CLOSE = 0x8
"""The consumer is in no group, so `close` has none to leave."""
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's log levels by syslog's."""
_MOST_LINES = 1000
"""The most lines that one call logs."""
_TEXT_BYTES = 512

_FUNCTIONS: Mapping[str, tuple[object, tuple[object, ...]]] = {
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_conf_set_log_cb": (None, (c_void_p, c_void_p)),
    "rd_kafka_conf_set_events": (None, (c_void_p, c_int)),
    "rd_kafka_conf_destroy": (None, (c_void_p,)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_name": (c_char_p, (c_void_p,)),
    "rd_kafka_destroy_flags": (None, (c_void_p, c_int)),
    "rd_kafka_poll_set_consumer": (c_int, (c_void_p,)),
    "rd_kafka_queue_get_consumer": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_new": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_queue_poll": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_set_log_queue": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_event_log": (
        c_int,
        (c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)),
    ),
    "rd_kafka_event_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_partition_list_new": (c_void_p, (c_int,)),
    "rd_kafka_topic_partition_list_add": (c_void_p, (c_void_p, c_char_p, c_int32)),
    "rd_kafka_topic_partition_list_set_offset": (c_int, (c_void_p, c_char_p, c_int32, c_int64)),
    "rd_kafka_topic_partition_list_destroy": (None, (c_void_p,)),
    "rd_kafka_assign": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_pause_partitions": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_resume_partitions": (c_int, (c_void_p, c_void_p)),
}
"""Result and arguments of what this module calls. They are librdkafka's public interface, stable since 1.0."""
MESSAGE_FUNCTIONS = (
    "rd_kafka_consume_batch_queue",
    "rd_kafka_message_destroy",
    "rd_kafka_message_timestamp",
    "rd_kafka_topic_name",
)
"""What `cdcd.columnar` calls, in the order of its arguments."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return librdkafka with the types of its functions, or None if a function cannot be found."""
    try:
        loaded = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name in MESSAGE_FUNCTIONS:
            getattr(loaded, name)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return loaded


class Consumer:
    """One consumer that is assigned partitions. Raises KafkaException, as confluent-kafka's does."""

    def __init__(self, loaded: ctypes.CDLL, settings: Mapping[str, object], *, logger: ClientLog) -> None:
        self._library, self._log, self.process = loaded, logger, os.getpid()
        self.queue: int | None = None
        self._log_queue: int | None = None
        self._client: int | None = _created(loaded, settings)
        try:
            self._name = loaded.rd_kafka_name(self._client).decode()
            self._log_queue = loaded.rd_kafka_queue_new(self._client)
            _check(loaded.rd_kafka_set_log_queue(self._client, self._log_queue))
            _check(loaded.rd_kafka_poll_set_consumer(self._client))
            self.queue = loaded.rd_kafka_queue_get_consumer(self._client)
        except BaseException:
            self.close()
            raise

    def assign(self, starts: Iterable[tuple[str, int, int]]) -> None:
        """Read these partitions of topics from these offsets on."""
        with _Partitions(self._library, starts) as partitions:
            _check(self._library.rd_kafka_assign(self._client, partitions))

    def pause(self, places: Iterable[tuple[str, int]]) -> None:
        """Fetch nothing more of these partitions."""
        with _Partitions(self._library, ((*place, 0) for place in places)) as partitions:
            _check(self._library.rd_kafka_pause_partitions(self._client, partitions))

    def resume(self, places: Iterable[tuple[str, int]]) -> None:
        """Forget that these partitions were paused: librdkafka remembers it beyond an assignment."""
        with _Partitions(self._library, ((*place, 0) for place in places)) as partitions:
            _check(self._library.rd_kafka_resume_partitions(self._client, partitions))

    def log_lines(self) -> None:
        """Log the lines that the client has written since the last call."""
        facility, text, level = c_char_p(), c_char_p(), c_int()
        for _ in range(_MOST_LINES):
            event = self._library.rd_kafka_queue_poll(self._log_queue, 0)
            if not event:
                return
            try:
                if self._library.rd_kafka_event_log(event, facility, text, level) == _OK:
                    self._log.log(_LEVELS[level.value & 7], "", _text(facility), self._name, _text(text))
            finally:
                self._library.rd_kafka_event_destroy(event)

    def close(self) -> None:
        """Destroy the client and its queues; the messages have to be destroyed before."""
        queues, client = (self.queue, self._log_queue), self._client
        self.queue = self._log_queue = self._client = None
        if client is None or os.getpid() != self.process:
            return
        for queue in queues:
            if queue is not None:
                self._library.rd_kafka_queue_destroy(queue)
        self._library.rd_kafka_destroy_flags(client, _NO_CONSUMER_CLOSE)


class _Partitions:
    """librdkafka's list of partitions, which lives inside a `with` block."""

    def __init__(self, loaded: ctypes.CDLL, offsets: Iterable[tuple[str, int, int]]) -> None:
        self._library = loaded
        self._list = loaded.rd_kafka_topic_partition_list_new(0)
        for topic, partition, offset in offsets:
            name = topic.encode()
            loaded.rd_kafka_topic_partition_list_add(self._list, name, partition)
            loaded.rd_kafka_topic_partition_list_set_offset(self._list, name, partition, offset)

    def __enter__(self) -> int:
        return int(self._list)

    def __exit__(self, *_exc: object) -> None:
        self._library.rd_kafka_topic_partition_list_destroy(self._list)


def _created(loaded: ctypes.CDLL, settings: Mapping[str, object]) -> int:
    """Return a new client with these settings, which logs into a queue."""
    configuration = loaded.rd_kafka_conf_new()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    client = None
    try:
        for name, value in {**settings, "log.queue": True}.items():
            given = _as_text(value)
            if is_secret_property(name):
                add_secret(given)
            elif has_user(name, given):
                add_user_of(given)
            if (
                loaded.rd_kafka_conf_set(configuration, name.encode(), given.encode(), text, _TEXT_BYTES)
                != _OK
            ):
                raise _refused(text)
        loaded.rd_kafka_conf_set_log_cb(configuration, None)  # the default one writes to stderr
        loaded.rd_kafka_conf_set_events(configuration, _EVENT_LOG)
        client = loaded.rd_kafka_new(_CONSUMER, configuration, text, _TEXT_BYTES)
        if client is None:
            raise _refused(text)
    finally:
        if client is None:  # otherwise the client has the configuration
            loaded.rd_kafka_conf_destroy(configuration)
    return int(client)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: c_char_p | ctypes.Array[ctypes.c_char]) -> str:
    return (value.value or b"").decode(errors="replace")


def _refused(text: ctypes.Array[ctypes.c_char]) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, clean(_text(text))))


def _check(code: int) -> None:
    if code != _OK:
        raise KafkaException(KafkaError(code))
