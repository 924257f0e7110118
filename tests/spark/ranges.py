"""Topics with records of every kind, and both readers of ranges.

In: a broker.  Out: rows as tuples, as they were written and as a reader returns them.
Invariant: the expected rows are those that the test has written, never what another reader returns.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.spark.clients import librdkafka
from cdcd.spark.clients.kafka import Cluster, Range, consumer_settings
from cdcd.spark.source import ranges
from tests.support.nightly import nightly
from tests.support.topics import create_topic, new_name, transactional_producer
from tests.support.waiting import eventually

IMPLEMENTATIONS = ["RangesInPython", *(["RangesInC"] if ranges._EXTENSION is not None else [])]
IN_USE = pytest.mark.parametrize(
    "implementation", [IMPLEMENTATIONS[-1], *map(nightly, IMPLEMENTATIONS[:-1])], indirect=True
)
"""For tests that take seconds: the fallback runs with the nightly cases, or where the extension was not built."""


class Row(NamedTuple):
    """A record without its timestamp."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


Sent = tuple[int, bytes | None, bytes | None]
Place = tuple[str, int]


class Topic:
    """A topic with a transactional producer. `written`: the committed records."""

    def __init__(
        self, bootstrap: str, name: str = "", partitions: int = 3, config: Mapping[str, str] | None = None
    ) -> None:
        self.name = name or new_name("ranges")
        self.bootstrap, self.partitions = bootstrap, partitions
        self.written: list[Row] = []
        create_topic(bootstrap, self.name, partitions, config=config)
        self.producer = transactional_producer(bootstrap, new_name("writer"))

    def send(self, records: Iterable[Sent], **more: object) -> list[Row]:
        """Write into a new transaction and leave it open; return the rows."""
        rows: list[Row] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            place = (message.topic(), message.partition(), message.offset())
            rows.append(Row(*place, message.key(), message.value()))

        self.producer.begin_transaction()
        for partition, key, value in records:
            self.producer.produce(
                self.name, key=key, value=value, partition=partition, on_delivery=delivered, **more
            )
            self.producer.poll(0)
        assert self.producer.flush(60) == 0
        return rows

    def commit(self, records: Iterable[Sent], **more: object) -> None:
        """Write a committed transaction."""
        rows = self.send(records, **more)
        self.producer.commit_transaction(60)
        self._await_markers(rows)
        self.written += rows

    def abort(self, records: Iterable[Sent]) -> None:
        """Write an aborted transaction."""
        rows = self.send(records)
        self.producer.abort_transaction(60)
        self._await_markers(rows)

    def _await_markers(self, rows: Sequence[Row]) -> None:
        """Wait until the partitions have the markers that end the transaction: the coordinator writes them later."""
        last = {(row.topic, row.partition): row.offset for row in rows}
        cluster = Cluster(self.bootstrap, {})

        def are_there() -> bool:
            ends = cluster.ends(list(last))
            return all(ends[place] >= offset + 2 for place, offset in last.items())

        eventually(are_there, "the transaction's markers are written")

    def ranges(self) -> list[Range]:
        """Return all partitions, each from its start to its last stable offset, which is after the last marker."""
        places = [(self.name, partition) for partition in range(self.partitions)]
        cluster = Cluster(self.bootstrap, {})
        starts, ends = cluster.starts(places), cluster.ends(places)
        return [Range(*place, starts[place], ends[place]) for place in places]

    def between(self, wanted: Sequence[Range]) -> list[Row]:
        """Return the committed records of these ranges."""
        return [
            row
            for row in self.written
            for part in wanted
            if row[:2] == (part.topic, part.partition) and part.start <= row.offset < part.end
        ]


def reader_of(name: str, bootstrap: str, wanted: Sequence[Range]) -> ranges.RangesReader:
    """Return a reader by the name of its class."""
    settings = consumer_settings(bootstrap, {})
    if name == "RangesInPython":
        return ranges.RangesInPython(settings, wanted)
    assert ranges._EXTENSION is not None
    return ranges.RangesInC(ranges._EXTENSION, settings, wanted)


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `read_ranges` use this implementation."""
    if name == "RangesInPython":
        monkeypatch.setattr(ranges, "_EXTENSION", None)
    else:
        assert librdkafka.library() is not None
        assert ranges._EXTENSION is not None


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows in order, after a check of the batches."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == RAW_SCHEMA
        assert 0 < batch.num_rows <= ranges.MOST_ROWS
        rows += [Row(*(one[name] for name in Row._fields)) for one in batch.to_pylist()]
    return rows


def by_place(rows: Iterable[Row]) -> dict[Place, list[Row]]:
    """Return the rows of each partition, in their order."""
    found: dict[Place, list[Row]] = {}
    for row in rows:
        found.setdefault(row[:2], []).append(row)
    return found


def plain_producer(bootstrap: str) -> Producer:
    """Return a producer without transactions."""
    return Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 100_000_000, "linger.ms": 50})


def records(first: int, count: int, partitions: int = 3) -> list[Sent]:
    """Return records whose keys and values are of many lengths."""
    return [
        (
            number % partitions,
            b"k%d" % number,
            zlib.crc32(b"%d" % number).to_bytes(4, "big") * (number % 97),
        )
        for number in range(first, first + count)
    ]
