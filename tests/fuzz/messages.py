"""The fuzz target `messages`: messages of librdkafka, read by the C extension and by its Python fallback.

In: a byte for the limit of rows, one for the limit of bytes, one for the ends of the ranges; then messages, each a
byte that selects topic, partition and kind, a byte with the offset, one that selects the timestamp, one each with the
length of the key and of the value (255: null), and both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

import pyarrow as pa
from confluent_kafka import KafkaError

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.errors import CdcdError
from cdcd.spark.clients.kafka import Range, check_error
from cdcd.spark.source import ranges
from tests.support.implementations import is_wanted, loaded
from tests.support.played_queue import Played, PlayedConsumer, PlayedQueue

EXTENSION = "cdcd.columnar._arrow"
_TOPICS = ("shop", "shop.items", "shop.items2", None)
_CODES = (
    0,
    KafkaError._PARTITION_EOF,
    KafkaError._TRANSPORT,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)
_MOST_MS = (2**63 - 1) // 1000
_TIMESTAMPS_MS = (0, -1, 1_700_000_000_000, _MOST_MS, _MOST_MS + 1, 2**63 - 1, -(2**63))
_NULL = 255


@dataclass
class _Outcome:
    rows: list[dict[str, object]] = field(default_factory=list)
    finished: set[tuple[str, int]] = field(default_factory=set)
    error: str | None = None


def messages(data: bytes) -> None:
    """Compare both implementations."""
    if len(data) < 3:
        return
    most_rows, most_bytes = 1 + data[0] % 16, 1 + data[1]
    wanted = [
        Range(topic, partition, 0, 1 + (data[2] * (place + 7)) % 200)
        for place, (topic, partition) in enumerate((t, p) for t in _TOPICS[:2] for p in (0, 1))
    ]
    played = list(_played(data[3:]))
    expected = _in_python(played, wanted, most_rows, most_bytes)
    if not is_wanted(EXTENSION):
        return
    found = _in_c(played, wanted, most_rows, most_bytes)
    if found.error != expected.error:
        raise AssertionError("the C extension and its fallback have different errors")
    if found.error is None and found.finished != expected.finished:
        raise AssertionError("the C extension and its fallback finish different ranges")
    shorter = min(len(found.rows), len(expected.rows)) if found.error else None
    if found.rows[:shorter] != expected.rows[:shorter]:
        raise AssertionError("the C extension and its fallback have different rows")


def _played(data: bytes) -> Iterator[Played]:
    at = 0
    while at + 5 <= len(data):
        first, offset, time, *lengths = data[at : at + 5]
        at += 5
        parts: list[bytes | None] = []
        for length in lengths:
            parts.append(None if length == _NULL else data[at : at + length])
            at += 0 if length == _NULL else length
        kind = first >> 4  # most messages are records
        code = _CODES[kind] if kind < len(_CODES) else 0
        topic = _TOPICS[first & 3]
        if code == 0 and topic is None:
            topic = _TOPICS[2]
        yield Played(
            topic, (first >> 2) & 3, offset, code, _TIMESTAMPS_MS[time % len(_TIMESTAMPS_MS)], *parts
        )


def _in_python(played: Sequence[Played], wanted: Sequence[Range], rows: int, size: int) -> _Outcome:
    outcome, consumer = _Outcome(), PlayedConsumer(played)
    with (
        patch.object(ranges, "Consumer", lambda *_, **__: consumer),
        patch.object(ranges, "MOST_ROWS", rows),
        patch.object(ranges, "MOST_BYTES", size),
    ):
        reader = ranges.RangesInPython({}, wanted)
        before = set(reader.waiting)
        try:
            arrived = True
            while reader.waiting and (arrived or consumer.left):
                batch = reader.read()
                arrived = reader.arrived > 0
                outcome.rows += [] if batch is None else _checked(batch, rows, size)
        except CdcdError as error:
            outcome.error = str(error)
        outcome.finished = before - set(reader.waiting)
    return outcome


def _in_c(played: Sequence[Played], wanted: Sequence[Range], rows: int, size: int) -> _Outcome:
    compiled, outcome, queue = loaded(EXTENSION), _Outcome(), PlayedQueue(played)
    places = sorted((one.topic.encode(), one.partition, one.end) for one in wanted)
    found = compiled.Messages(compiled.Librdkafka(*queue.functions), 1, places, RAW_SCHEMA, rows, size)
    try:
        arrived = True
        while found.left and (arrived or queue.left):
            batch, finished, errors = found.read(0, 1000)
            arrived = found.arrived > 0
            for code, topic, partition in errors:
                check_error(KafkaError(code), topic, partition)
            outcome.finished |= {(places[at][0].decode(), places[at][1]) for at in finished}
            if batch is not None:
                outcome.rows += _checked(batch, rows, size)
    except CdcdError as error:
        outcome.error = str(error)
    finally:
        found.close()
    if queue.given or queue.freed != len(played) - len(queue.left):
        raise AssertionError("a message was not destroyed once")
    return outcome


def _checked(batch: pa.RecordBatch, rows: int, size: int) -> list[dict[str, object]]:
    batch.validate(full=True)
    sizes = [len(part.as_py() or b"") for name in ("key", "value") for part in batch[name]]
    if batch.num_rows > rows or (batch.num_rows > 1 and sum(sizes) > size):
        raise AssertionError("a batch beyond its limits")
    return _rows(batch)


def _rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return the rows; a timestamp as microseconds, because Python's dates end in the year 9999."""
    place = batch.schema.get_field_index("timestamp")
    return batch.set_column(place, "timestamp", batch["timestamp"].cast(pa.int64())).to_pylist()  # type: ignore[no-any-return]


def some_messages(chance: Random) -> bytes:
    """Return an input of the target: the offsets of each partition grow."""
    made = bytearray(chance.randbytes(3))
    offsets: dict[int, int] = {}
    for _ in range(chance.randrange(1, 40)):
        place = chance.randrange(16)
        offsets[place] = offsets.get(place, 0) + chance.choice((1, 1, 1, 5))
        kind = chance.choice((0, 0, 0, 0, 0, 1, 2)) if chance.random() < 0.99 else chance.randrange(5)
        lengths = [chance.choice((0, 1, 7, 60, _NULL)) for _ in range(2)]
        made += bytes((place | kind << 4, min(offsets[place], 255), chance.randrange(7), *lengths))
        made += b"".join(chance.randbytes(length) for length in lengths if length != _NULL)
    return bytes(made)
