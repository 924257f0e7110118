"""The keys of a topic without a record since a copy of their table began: rows that the table may not have any more.

In: the sink's settings, a topic, the ends of its partitions when the copy began.
Out: keys, as they are in the topic.
Invariant: each key whose last record before these ends is a row, and that has no later record, is returned; others
may be. Whether the table has the row is for the caller to look up: nothing here proves that it does not. The keys are
in a file without a name, so that memory does not grow with their number.
Must not: write to Kafka, or return anything after Kafka has removed the beginning of a partition.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from operator import lt
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import SinkUnavailable, SnapshotRefused
from cdcd.sink.admin import Admin
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import kafka_errors, making_client, translate
from cdcd.sink.listed_offset import listed_offset
from cdcd.sink.reader import next_messages, position_of
from cdcd.sink.settings import SinkSettings, reader_properties

SLICE_S = 0.2
"""`read` returns after this time, so that a session can end, and the stream gets the processor."""
CACHE_KB = 8_000
_FETCH = {
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 2_048,
}
FETCH_BYTES = 1_048_576
PAGE_BYTES = 4_096
_OPTIONS = {"auto.offset.reset": "error"}  # a record that retention has removed is an error
_REMOVED = "Kafka has removed records of the topic, so that not all of its keys are known"
_OTHER_LOG = "the topic has fewer records than when the copy began: it was recreated, or has lost records"
_NO_KEY = "the topic has rows without a key"
_NO_ROOM = "the keys of the topic could not be stored"
_HINT = "run `cdcd snapshot start --table SCHEMA.TABLE --recopy`: a truncate event then removes the rows"
_UNREAD_HINT = (
    "start the brokers that lead its partitions; or abort a transaction that a producer left open, which may block "
    "the topic (docs/kafka.md; kafka-transactions find-hanging); cdcd tries again"
)
_NO_ROOM_HINT = (
    "free disk space below buffer.spill_dir, or increase buffer.spill; then run `cdcd snapshot resume`"
)


def ends_of(settings: SinkSettings, topic: str) -> tuple[int, ...]:
    """Return the next offset of each partition (blocking). Raises SnapshotRefused, Sink errors."""
    low, high = _bounds(settings, topic, IsolationLevel.READ_UNCOMMITTED)
    if any(low):
        raise SnapshotRefused(_REMOVED, hint=_HINT, topic=topic)
    return high


class StaleKeys:
    """One reading of a topic, up to its end at the first `read`.

    `starts`: the ends of the partitions when the copy began. `folder` gets the file, of at most `max_bytes`.
    `is_truncate` is asked about records without a key: None if they are neither a truncate nor a marker.
    """

    def __init__(
        self,
        settings: SinkSettings,
        topic: str,
        starts: Sequence[int],
        folder: Path | None,
        max_bytes: int,
        is_truncate: Callable[[bytes], bool | None],
    ) -> None:
        self._settings, self._topic, self._starts = settings, topic, tuple(starts)
        self._folder, self._max_bytes = folder, max_bytes
        self._is_truncate = is_truncate
        self._lock = threading.Lock()
        self._opened: contextlib.ExitStack | None = None
        self._stalled_s = 0.0
        self.read_bytes = 0
        """Of all records read."""

    def _open(self) -> None:
        low, written = _bounds(self._settings, self._topic, IsolationLevel.READ_UNCOMMITTED)
        if any(low):
            raise SnapshotRefused(_REMOVED, hint=_HINT, topic=self._topic)
        # A partition that was added since has later records only.
        self._starts = (*self._starts, *(0 for _ in written[len(self._starts) :]))
        if len(written) < len(self._starts) or any(map(lt, written, self._starts)):
            raise SnapshotRefused(_OTHER_LOG, hint=_HINT, topic=self._topic)
        _, stable = _bounds(self._settings, self._topic, IsolationLevel.READ_COMMITTED)
        # Records before a start may belong to a transaction that is still open.
        self._ends = tuple(map(max, stable, self._starts))
        self._reached = [0] * len(self._ends)
        with contextlib.ExitStack() as opened:
            self._keys = _private_database(self._folder, self._max_bytes)
            opened.callback(self._keys.close)
            with making_client():
                self._consumer = Consumer(_fetch(self._settings) | _OPTIONS, logger=CLIENT_LOG)
            opened.callback(self._consumer.close)
            everything = [TopicPartition(self._topic, number, 0) for number in range(len(self._ends))]
            with kafka_errors("reading the keys of a topic", topic=self._topic):
                self._consumer.assign(everything)
            self._opened = opened.pop_all()

    def read(self) -> bool:
        """Read for a short time (blocking); return whether everything up to the ends is read.

        Raises SnapshotRefused, Sink errors.
        """
        with self._lock, _stored():
            if self._opened is None:
                self._open()
            now_s = time.monotonic()
            until_s = now_s + SLICE_S
            while not self._is_read and now_s < until_s:
                before, began_s = list(self._reached), now_s
                for message in next_messages(self._consumer, SLICE_S / 2):
                    self._add(message)
                now_s = time.monotonic()
                # Only the time in here: between two calls a limit of the load may make the copy wait.
                self._stalled_s = self._stalled_s + now_s - began_s if self._reached == before else 0.0
                if self._stalled_s > self._settings.operation_timeout_s:
                    raise SinkUnavailable(
                        "a topic could not be read to its end in time", hint=_UNREAD_HINT, topic=self._topic
                    )
            return self._is_read

    @property
    def _is_read(self) -> bool:
        return all(at >= end for at, end in zip(self._reached, self._ends, strict=True))

    def _add(self, message: Message) -> None:
        position, number = position_of(message, self._topic), message.partition()
        if position is None or number is None:
            return
        self._reached[number] = max(self._reached[number], position)
        if message.error() is not None:  # the end
            return
        key, value = message.key(), message.value()
        self.read_bytes += len(key or b"") + len(value or b"")
        is_before = position <= self._starts[number]
        if key is None:
            is_truncate = False if value is None else self._is_truncate(value)
            if is_truncate is None and is_before:
                raise SnapshotRefused(_NO_KEY, hint=_HINT, topic=self._topic)
            if is_truncate:
                self._keys.execute("DELETE FROM live WHERE partition = ?", (number,))
        elif not is_before:
            self._keys.execute("DELETE FROM live WHERE key = ?", (key,))
        elif value is None:  # the order of a key's records in two partitions of a widened topic is not known
            self._keys.execute("DELETE FROM live WHERE key = ? AND partition = ?", (key, number))
        else:
            self._keys.execute("INSERT OR REPLACE INTO live VALUES (?, ?)", (key, number))

    def take(self, most: int) -> list[bytes]:
        """Return some of the keys, and forget them (blocking). To be called when everything is read."""
        with self._lock, _stored():
            found = [key for (key,) in self._keys.execute("SELECT DISTINCT key FROM live LIMIT ?", (most,))]
            self._keys.executemany("DELETE FROM live WHERE key = ?", ((key,) for key in found))
        return found

    def close(self) -> None:
        """Close the consumer and the file, after a `read` that still runs (blocking)."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()


def _fetch(settings: SinkSettings) -> dict[str, object]:
    """Return the consumer's properties: little memory, but at least the largest message that the user allows."""
    found = _FETCH | reader_properties(settings)
    try:
        most = int(float(str(found.get("message.max.bytes", 0))))
    except ValueError:  # librdkafka refuses it
        most = 0
    return found | {"fetch.max.bytes": max(FETCH_BYTES, most)}


def _bounds(
    settings: SinkSettings, topic: str, isolation: IsolationLevel
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the next offset of each partition. Raises Sink errors."""
    doing = "looking up the offsets of a topic"
    admin = Admin(settings)
    described = admin.metadata(topic, doing, topic=topic).topics[topic]
    if described.error is not None:
        raise translate(described.error, doing, topic=topic)
    partitions = sorted(described.partitions)
    found = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        futures = admin.client.list_offsets(
            {TopicPartition(topic, number): spec for number in partitions},
            isolation_level=isolation,
            request_timeout=settings.operation_timeout_s,
        )
        offsets = {one.partition: listed_offset(future, doing, topic) for one, future in futures.items()}
        found.append(tuple(offsets[number] for number in partitions))
    return found[0], found[1]


def _private_database(folder: Path | None, max_bytes: int) -> sqlite3.Connection:
    """Return a database in a file that has no name, and whose space is free when the process ends."""
    with _stored(), tempfile.NamedTemporaryFile(prefix="cdcd-keys-", dir=folder) as file:
        database = sqlite3.connect(file.name, isolation_level=None, check_same_thread=False)
        for pragma in (
            f"page_size={PAGE_BYTES}",
            f"max_page_count={max(1, max_bytes // PAGE_BYTES)}",
            "journal_mode=OFF",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            f"cache_size=-{CACHE_KB}",
        ):
            database.execute(f"PRAGMA {pragma}")
        database.execute(
            "CREATE TABLE live (key BLOB, partition INTEGER, PRIMARY KEY (key, partition)) WITHOUT ROWID"
        )
        database.execute("BEGIN")
        return database


class _stored(contextlib.AbstractContextManager[None]):  # noqa: N801 - used as a function
    """Raise SnapshotRefused in place of the errors of the file."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | OSError):
            raise SnapshotRefused(_NO_ROOM, hint=_NO_ROOM_HINT, reason=str(error)) from error
