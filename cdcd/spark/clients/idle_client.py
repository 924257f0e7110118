"""The client that a Spark worker reuses from one task to the next, so that a small batch does not connect again.

In: librdkafka's settings, which have the secrets as they are now.  Out: a consumer without an assignment.
Invariant: at most one client is idle. It is used again only in its own process, with equal settings (a rotated secret
needs a new client), and in the first `MOST_AGE_S` after it was made, so that renewed certificates are read. Only a
client that has read everything it was asked for is idle; librdkafka drops what it fetched for a former assignment.
Spark ends a worker that is idle for a minute, and its client with it; without workers that are used again every
client is closed.
Must not: be used by the driver.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cdcd.spark.clients.client_log import ClientLog
from cdcd.spark.clients.librdkafka import Consumer

MOST_AGE_S = 300.0
WORKERS_ARE_REUSED = "SPARK_REUSE_WORKER"
"""A variable of Spark's Python workers: set with spark.python.worker.reuse."""


class _Client(NamedTuple):
    consumer: Consumer
    settings: Mapping[str, object]
    made_s: float


_idle: list[_Client] = []
_used: dict[int, _Client] = {}
_lock = threading.Lock()


def consumer_for(loaded: ctypes.CDLL, settings: Mapping[str, object], *, logger: ClientLog) -> Consumer:
    """Return the idle client if it is one for these settings, otherwise a new one. Raises KafkaException."""
    is_reused = WORKERS_ARE_REUSED in os.environ
    with _lock:
        client = _idle.pop() if _idle and is_reused else None
    if client is not None and not _is_usable(client, settings):
        client.consumer.close()
        client = None
    if client is None:
        client = _Client(Consumer(loaded, settings, logger=logger), dict(settings), time.monotonic())
    if is_reused:
        with _lock:
            _used[id(client.consumer)] = client
    return client.consumer


def give_back(consumer: Consumer, paused: Iterable[tuple[str, int]], *, is_done: bool) -> None:
    """Retain the client for the next task if it has read all ranges, else close it.

    `paused`: partitions to resume."""
    with _lock:
        client = _used.pop(id(consumer), None)
    if client is None or not is_done:
        consumer.close()
        return
    try:
        consumer.assign(())
        consumer.resume(paused)
    except BaseException:
        consumer.close()
        raise
    with _lock:
        _idle.append(client)
        surplus = _idle[:-1]
        del _idle[:-1]
    for one in surplus:
        one.consumer.close()


def _is_usable(client: _Client, settings: Mapping[str, object]) -> bool:
    is_young = time.monotonic() - client.made_s < MOST_AGE_S
    return is_young and client.settings == settings and client.consumer.process == os.getpid()
