"""A backlog for the reading side: changes of two tables in several partitions, with progress records.

In: a broker, a registry, a number of rows.  Out: a `Backlog`: the topics in Kafka, and what a reader has to return.
Invariant: the ids are 0, 1, 2, ... over both tables, each once. A record has the bytes of fastavro: that of a row is
cut where its id and its position are, and the parts are joined with other numbers. A table's topic has one writer,
so its offsets are known without a report for each record; they are compared with Kafka's at the end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.clients.kafka import Cluster
from tests.bench.spark import envelopes
from tests.spark.events import progress_value, register_schema
from tests.support.topics import create_topic
from tests.support.waiting import eventually

PREFIX = "shop"
TABLES = ("public.orders", "public.returns")
PARTITIONS = 4
ROWS_OF_A_COMMIT = 20_000
KINDS = 997
"""So many different rows, apart from id and position; prime, so that each partition has all of them."""
LARGEST_RECORD_BYTES = 100_000_000
MARKS = {"id": 0x1234_5678_9ABC, "commit_lsn": 0x0FED_CBA9_8765, "tx_seq": 0x0BAD_CAFE_F00D}
"""The numbers in place of which each record of a kind has its own."""
_WAIT_S = 300
Parts = tuple[bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Backlog:
    """What was written: rows with the ids from 0 on."""

    bootstrap: str
    registry_url: str
    rows: int
    commits: int

    @property
    def options(self) -> dict[str, str]:
        """The options of `format("cdcd")` for both tables, by a pattern."""
        connection = Connection(self.bootstrap, PREFIX, registry=RegistryAccess(self.registry_url))
        return connection.options() | {"table": "public.*"}


class Writer:
    """The daemon's part: it writes the next rows at each call of `write`."""

    def __init__(
        self, bootstrap: str, registry_url: str, *, rows_of_a_commit: int = ROWS_OF_A_COMMIT
    ) -> None:
        self._bootstrap, self._registry_url = bootstrap, registry_url
        self._rows_of_a_commit = rows_of_a_commit
        self._topics = [f"{PREFIX}.{table}" for table in TABLES]
        self._rows = self._commits = 0
        self._next: dict[str, dict[int, int]] = {
            one: dict.fromkeys(range(PARTITIONS), 0) for one in self._topics
        }
        limits = {"max.message.bytes": str(LARGEST_RECORD_BYTES)}
        create_topic(bootstrap, f"{PREFIX}.__progress")
        for topic in self._topics:
            create_topic(bootstrap, topic, PARTITIONS, config=limits)
        self._key, self._kinds = self._registered()
        self._producer = Producer(_settings(bootstrap))
        self._producer.init_transactions(60)

    def write(self, rows: int, *, large_bytes: int = 0) -> Backlog:
        """Write so many more rows, in commits; the first has a text of `large_bytes`. Return the whole backlog."""
        end = self._rows + rows
        if large_bytes and rows:
            self._commit([self._large(large_bytes)], 1)
        while self._rows < end:
            count = min(self._rows_of_a_commit, end - self._rows)
            self._commit(self._values(self._rows, count), count)
        self._compare_offsets()
        return Backlog(self._bootstrap, self._registry_url, self._rows, self._commits)

    def update(self, rows: int, step: int) -> int:
        """Change every `step`-th row, so many, in one commit; return its LSN.

        The step is made smaller so far that each row's changes are in its own table and partition.
        """
        step -= (step - 1) % (PARTITIONS * len(TABLES))
        first = self._rows
        commit_lsn = self._commit_lsn
        changed = range(0, rows * step, step)
        self._commit(self._values_of(changed), rows)
        self._rows = first
        return commit_lsn

    def _registered(self) -> tuple[bytes, list[Parts]]:
        """Register the schemas; return the header of a key, and the parts of each kind of row."""
        for topic in self._topics:  # both tables have the same schemas, so also the same ids
            value_id = register_schema(self._registry_url, f"{topic}-value", envelopes.schema())
            key_id = register_schema(self._registry_url, f"{topic}-key", envelopes.key_schema())
        self._value_id = value_id
        kinds = envelopes.records(KINDS, schema_id=value_id, same=MARKS)
        return b"\0" + key_id.to_bytes(4, "big"), [parts_of(one.as_py()) for one in kinds]

    def _values(self, first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield id and value of the rows of one commit."""
        return self._values_of(range(first, first + count))

    def _values_of(self, ids: Iterable[int]) -> Iterator[tuple[bytes, bytes]]:
        commit, kinds = zigzag(self._commit_lsn), itertools.cycle(self._kinds)
        for number, one in enumerate(ids):
            row_id = zigzag(one)
            yield row_id, joined(next(kinds), row_id, commit, zigzag(number))

    def _large(self, size: int) -> tuple[bytes, bytes]:
        # Of a text that repeats, Kafka would have a few bytes only.
        note = random.Random(size).randbytes(size // 2).hex()
        same = {"id": self._rows, "commit_lsn": self._commit_lsn, "tx_seq": 0, "note": note}
        (value,) = envelopes.records(1, schema_id=self._value_id, same=same)
        return zigzag(self._rows), value.as_py()

    @property
    def _commit_lsn(self) -> int:
        return 2**34 + (self._commits + 1) * 16

    def _commit(self, values: Iterator[tuple[bytes, bytes]] | list[tuple[bytes, bytes]], count: int) -> None:
        """Write a Kafka transaction: rows in turns into all partitions of both topics, then its progress record."""
        places = itertools.cycle(itertools.product(range(PARTITIONS), self._topics))
        produce, header = self._producer.produce, self._key
        self._producer.begin_transaction()
        for row_id, value in values:
            partition, topic = next(places)
            while True:
                try:
                    produce(topic, value, header + row_id, partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        offsets = self._advanced(count)
        progress = progress_value(self._commit_lsn, offsets)
        self._producer.produce(f"{PREFIX}.__progress", key=b"test", value=progress, partition=0)
        self._producer.commit_transaction(_WAIT_S)
        self._rows += count
        self._commits += 1

    def _advanced(self, count: int) -> dict[str, dict[int, int]]:
        """Return the next offsets after so many rows; from then on each of these partitions has a marker, too."""
        places = list(itertools.product(range(PARTITIONS), self._topics))
        offsets: dict[str, dict[int, int]] = {}
        for at, (partition, topic) in enumerate(places[:count]):
            written = (count - at + len(places) - 1) // len(places)
            reached = self._next[topic][partition] + written
            offsets.setdefault(topic, {})[partition] = reached
            self._next[topic][partition] = reached + 1
        return offsets

    def _compare_offsets(self) -> None:
        expected = {(one, at): offset for one, parts in self._next.items() for at, offset in parts.items()}
        cluster = Cluster(self._bootstrap, {})
        eventually(
            lambda: cluster.ends(list(expected)) == expected, "the partitions end where they should", 60
        )


def _settings(bootstrap: str) -> dict[str, str | int]:
    return {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"cdcd-{PREFIX}",
        "transaction.timeout.ms": _WAIT_S * 1000,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "message.max.bytes": LARGEST_RECORD_BYTES,
        "linger.ms": 20,
    }


def parts_of(record: bytes) -> Parts:
    """Return what is before the id, between it and the position, and after that."""
    start, found, rest = record.partition(zigzag(MARKS["id"]))
    middle, also, end = rest.partition(zigzag(MARKS["commit_lsn"]) + zigzag(MARKS["tx_seq"]))
    assert found, "a record without the marked id"
    assert also, "a record without the marked position"
    return start, middle, end


def joined(parts: Parts, row_id: bytes, commit_lsn: bytes, tx_seq: bytes) -> bytes:
    """Return a record of a kind with other numbers."""
    return b"".join((parts[0], row_id, parts[1], commit_lsn, tx_seq, parts[2]))


def zigzag(number: int) -> bytes:
    """Return a long that is not negative, as Avro has it."""
    rest, out = number << 1, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)
