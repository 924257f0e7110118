"""The topics where a broker refused a batch as too large, and how their records are batched afterwards (F65).

In: delivery reports, the topics' settings.  Out: for each record of such a topic, whether it may share a batch, is
sent alone, or is refused here.
Invariant: a broker refuses a whole batch, and the client reports each record in it. So a record counts as too large
only after it was refused alone, or when it exceeds its topic's limit and nothing is compressed. This state outlives
sessions, because a refusal ends a session: the next one begins where Kafka's last transaction ended.
Must not: cost anything as long as no broker has refused a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from confluent_kafka import Message

from cdcd.errors import BatchTooLarge, RecordTooLarge
from cdcd.model import Record
from cdcd.sink.too_large import larger_than_topic, size_of

__all__ = ["Limits", "judge"]

LEAST_ADDED_BYTES = 66
"""A batch's header (61) and the minimum size of a record without key and value."""
MOST_ADDED_BYTES = 100
_NOT_OF_THE_ROW_BYTES = 2048
"""The end of a value has the processing time and other fields that a later attempt may fill differently."""

Verdict = Literal["shared", "alone", "refused"]


def judge(size_bytes: int, limit_bytes: int | None, *, is_compressed: bool, was_refused: bool) -> Verdict:
    """Return how to send a record to a topic whose batch limit is `limit_bytes` (None: unknown)."""
    if was_refused:
        return "refused"
    if limit_bytes is None:
        return "alone"
    if not is_compressed and size_bytes + LEAST_ADDED_BYTES > limit_bytes:
        return "refused"
    return "alone" if size_bytes + MOST_ADDED_BYTES > limit_bytes else "shared"


class Limits:
    """The topics where a broker has refused a batch; false as long as there is none.

    `known`: each topic with its limit in bytes, None where the limit was not read yet or may not be read.
    """

    def __init__(self) -> None:
        self.known: dict[str, int | None] = {}
        self._bounds: dict[tuple[str, int], int] = {}
        """By topic and limit, the batch size in use where a batch below the limit was refused as well: a broker may
        recompress a batch."""
        self._refused: set[bytes] = set()
        self._batched_bytes = 0
        self.is_cause_unknown = False
        """Whether a client has met an error of a record that it does not know."""

    def __bool__(self) -> bool:
        return bool(self.known)

    def admit(
        self, records: Sequence[Record], start: int, queued: Callable[[], int], *, is_compressed: bool
    ) -> Iterator[int]:
        """Yield the indexes of the records to produce now; end before a record that has to wait for an empty queue.

        Raises RecordTooLarge, with the record's index, for a record that the topic cannot take.
        """
        for at in range(start, len(records)):
            record = records[at]
            if record.topic in self.known and not self._has_room(record, at, queued, is_compressed):
                return
            yield at

    def _has_room(self, record: Record, at: int, queued: Callable[[], int], is_compressed: bool) -> bool:
        limit_bytes, size_bytes = self.known[record.topic], size_of(record)
        was_refused = (
            bool(self._refused) and _identity(record.topic, record.key, record.value) in self._refused
        )
        verdict = judge(size_bytes, limit_bytes, is_compressed=is_compressed, was_refused=was_refused)
        if verdict == "refused":
            raise larger_than_topic(record, at)
        size_bytes += MOST_ADDED_BYTES
        if verdict == "alone" or self._batched_bytes + size_bytes > self._bound_of(record.topic, limit_bytes):
            if queued():
                return False
            self._batched_bytes = 0
        self._batched_bytes += size_bytes
        return True

    def _bound_of(self, topic: str, limit_bytes: int | None) -> int:
        return 0 if limit_bytes is None else self._bounds.get((topic, limit_bytes), limit_bytes)

    def refused(self, message: Message, refusal: RecordTooLarge) -> BatchTooLarge:
        """Note that a broker has refused a batch with this record; return the error that ends the session."""
        topic, key, value = str(message.topic()), message.key(), message.value()
        limit_bytes = self.known.get(topic)
        size_bytes = len(key or b"") + len(value or b"") + MOST_ADDED_BYTES
        bound_bytes = self._bound_of(topic, limit_bytes)
        if topic in self.known and size_bytes > bound_bytes:  # the record was alone in its batch
            self._refused.add(_identity(topic, key, value))
        else:
            self.known[topic] = None
            if limit_bytes is not None:
                self._bounds[topic, limit_bytes] = bound_bytes // 2
        found = BatchTooLarge(refusal.message)
        found.context = refusal.context
        return found

    def read(self, limits: Mapping[str, int | None]) -> None:
        """Store the topics' current limits. A changed limit lets refused records be tried again."""
        for topic, limit_bytes in limits.items():
            before = self.known.get(topic)
            if before is not None and before != limit_bytes:
                self.forget_refused()
            self.known[topic] = limit_bytes

    def forget_refused(self) -> None:
        """Let refused records be tried again: an operator may have raised a limit."""
        self._refused.clear()


def _identity(topic: str, key: bytes | None, value: bytes | None) -> bytes:
    """Return a digest that identifies a record by its row, which determines its size."""
    value = value or b""
    row = hashlib.sha256(value[:-_NOT_OF_THE_ROW_BYTES])
    row.update(b"%d/%s/" % (len(value), topic.encode()) + (key or b""))
    return row.digest()
