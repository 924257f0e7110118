"""A scripted queue of librdkafka, and a scripted consumer of confluent-kafka that has the same messages.

In: messages.  Out: functions for `Messages.read`, and an object for `RangesInPython`.
Invariant: each message, key and value has memory of exactly its size, so that AddressSanitizer detects a read past
its end.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p, memmove
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = c_void_p, [c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [c_void_p]

MOST_AT_ONCE = 3
"""The messages that a call returns at most, so that a batch needs several calls."""


@dataclass(frozen=True, slots=True)
class Played:
    """A message. `code` 0: a record; otherwise librdkafka's error."""

    topic: str | None
    partition: int
    offset: int
    code: int = 0
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None


class _Message(ctypes.Structure):
    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("value", c_void_p),
        ("value_bytes", c_size_t),
        ("key", c_void_p),
        ("key_bytes", c_size_t),
        ("offset", c_int64),
        ("opaque", c_void_p),
    )


_Consume = CFUNCTYPE(c_ssize_t, c_void_p, c_int, POINTER(c_void_p), c_size_t)
_Destroy = CFUNCTYPE(None, c_void_p)
_Timestamp = CFUNCTYPE(c_int64, c_void_p, POINTER(c_int))
_TopicName = CFUNCTYPE(c_void_p, c_void_p)


class PlayedQueue:
    """A scripted queue. `is_broken`: a call after the messages fails. `freed`: the number of destroyed messages."""

    def __init__(self, messages: Sequence[Played], *, is_broken: bool = False) -> None:
        self.left = deque(messages)
        self.freed = 0
        self.given: dict[int, tuple[Played, list[int]]] = {}
        """By address, the messages that were not destroyed yet, with the addresses of their key and value."""
        self._is_broken = is_broken
        self._names: dict[str, ctypes.Array[ctypes.c_char]] = {}
        self.functions: tuple[Any, ...] = (
            _Consume(self._consume),
            _Destroy(self._destroy),
            _Timestamp(lambda message, _kind: self.given[message][0].timestamp_ms),
            _TopicName(lambda topic: topic),
        )

    def _consume(self, _queue: int, _wait_ms: int, into: Any, most: int) -> int:
        if self._is_broken and not self.left:
            return -1
        count = min(most, MOST_AT_ONCE, len(self.left))
        for at in range(count):
            into[at] = self._made(self.left.popleft())
        return count

    def _made(self, played: Played) -> int:
        key, value = _copied(played.key), _copied(played.value)
        message = _Message(
            err=played.code,
            topic=None if played.topic is None else self._name(played.topic),
            partition=played.partition,
            value=value,
            value_bytes=len(played.value or b""),
            key=key,
            key_bytes=len(played.key or b""),
            offset=played.offset,
        )
        address = _libc.malloc(ctypes.sizeof(message))
        memmove(address, ctypes.byref(message), ctypes.sizeof(message))
        self.given[address] = played, [one for one in (key, value) if one is not None]
        return int(address)

    def _name(self, topic: str) -> int:
        name = self._names.setdefault(topic, ctypes.create_string_buffer(topic.encode()))
        return ctypes.addressof(name)

    def _destroy(self, message: int) -> None:
        self.freed += 1
        if message in self.given:  # an exception does not propagate out of a ctypes callback
            _played, parts = self.given.pop(message)
            for address in (*parts, message):
                _libc.free(address)


def _copied(data: bytes | None) -> int | None:
    if data is None:
        return None
    address = _libc.malloc(len(data))
    memmove(address, data, len(data))
    return int(address)


class PlayedMessage:
    """A message as confluent-kafka has it."""

    def __init__(self, played: Played) -> None:
        self._played = played

    def error(self) -> KafkaError | None:
        """Return the error; None for a record."""
        return KafkaError(self._played.code) if self._played.code else None

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the timestamp, and milliseconds."""
        return 1, self._played.timestamp_ms

    def __getattr__(self, name: str) -> Any:
        return lambda: getattr(self._played, name)


class PlayedConsumer:
    """A scripted consumer."""

    def __init__(self, messages: Sequence[Played]) -> None:
        self.left = deque(messages)

    def assign(self, _partitions: object) -> None:
        """Accept any partitions."""

    def consume(self, most: int, _wait_s: float) -> list[PlayedMessage]:
        """Return the next messages."""
        return [PlayedMessage(self.left.popleft()) for _ in range(min(most, MOST_AT_ONCE, len(self.left)))]

    def pause(self, _partitions: object) -> None:
        """Go on with them: what was fetched before may still arrive."""

    def close(self) -> None:
        """Have nothing to close."""
