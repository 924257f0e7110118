"""The rows that a topic's reader has at the end, compared with the table, for millions of rows.

In: a topic of `copied_table`.  Out: `Folded`: its rows, the times of the copy's records, findings about their order.
Decoding is fastavro's; partitions are read by one process each. A row is compared by the hash of its values as Python
has them from fastavro and from psycopg2.
Invariant: a record older than an earlier one of its key, a row after its delete, a row copied twice is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psycopg2
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from fastavro import parse_schema, schemaless_reader

from tests.bench.backlog import Backlog
from tests.bench.copied_table import NAMES, TABLE, VERSION
from tests.bench.kafka import BATCH, consumer
from tests.bench.latency import id_of_key
from tests.bench.servers import Servers

HEADER = 5
"""Bytes before the Avro data: 0, and the number of the schema."""
MOST_FINDINGS = 20
Rows = dict[int, tuple[int, int]]
"""Version and hash by id."""


@dataclass
class Part:
    """One partition, folded."""

    rows: Rows = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    copied_at_ms: list[int] = field(default_factory=list)
    copied_bytes: int = 0
    findings: list[str] = field(default_factory=list)

    def take(self, row_id: int, value: dict[str, Any] | None) -> None:
        """Apply one record."""
        if value is None:
            if row_id in self.rows:
                self._find("a tombstone of a row that is not deleted", row_id)
            return
        if value["op"] == "d":
            if row_id in self.deleted:
                self._find("deleted twice", row_id)
            self.rows.pop(row_id, None)
            self.deleted.add(row_id)
            return
        row = value["after"]
        if row_id in self.deleted:
            self._find(f"{value['op']} after its delete", row_id)
        if row_id in self.rows and self.rows[row_id][0] > row[VERSION[0]]:
            self._find(f"{value['op']} older than the record before", row_id)
        if value["op"] == "r":
            if row_id in self.copied:
                self._find("copied twice", row_id)
            self.copied.add(row_id)
        self.rows[row_id] = (row[VERSION[0]], hash(tuple(row[name] for name in NAMES)))

    def _find(self, what: str, row_id: int) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(f"{what}: id {row_id}")


@dataclass(frozen=True)
class Folded:
    """All partitions: ids and hashes in the order of ids, and when the copy's records were sent."""

    ids: np.ndarray[Any, np.dtype[np.int64]]
    hashes: np.ndarray[Any, np.dtype[np.int64]]
    copied_at_ms: np.ndarray[Any, np.dtype[np.int64]]
    bytes_per_row: float
    findings: list[str]

    @property
    def rows(self) -> int:
        """The number of rows at the end."""
        return len(self.ids)

    def copied_between(self, from_ms: float, to_ms: float) -> int:
        """Return how many of the copy's visible records were sent in this time."""
        first, last = np.searchsorted(self.copied_at_ms, [int(from_ms), int(to_ms) + 1])
        return int(last - first)

    def differences(self, backlog: Backlog) -> tuple[int, int, int]:
        """Return how many rows of the table have other values here, are missing here, are here and not there."""
        ids, hashes = _of_table(backlog)
        _, here, there = np.intersect1d(self.ids, ids, assume_unique=True, return_indices=True)
        different = int(np.count_nonzero(self.hashes[here] != hashes[there]))
        return different, len(ids) - len(there), len(self.ids) - len(here)


def folded_topic(servers: Servers, topic: str) -> Folded:
    """Read all committed records of a topic."""
    with contextlib.closing(consumer(servers.kafka.bootstrap)) as one:
        partitions = list(one.list_topics(topic, 30).topics[topic].partitions)
    # Forked, so that the processes have the same hash of a text.
    with multiprocessing.get_context("fork").Pool(2) as pool:
        read = partial(_folded_part, servers.kafka.bootstrap, servers.registry.url, topic)
        parts = pool.map(read, partitions, chunksize=1)
    ids, hashes = _arrays({row_id: row for part in parts for row_id, (_, row) in part.rows.items()})
    copied_at_ms = np.sort(np.concatenate([np.array(part.copied_at_ms, np.int64) for part in parts]))
    size_bytes = sum(part.copied_bytes for part in parts)
    findings = [one for part in parts for one in part.findings]
    return Folded(ids, hashes, copied_at_ms, size_bytes / max(len(copied_at_ms), 1), findings)


def _folded_part(bootstrap: str, registry_url: str, topic: str, partition: int) -> Part:
    part, schemas = Part(), {}
    registry = SchemaRegistryClient({"url": registry_url, "timeout": 30})
    for message in _messages(bootstrap, topic, partition):
        raw = message.value()
        if raw is None:
            part.take(id_of_key(message.key()), None)
            continue
        number = int.from_bytes(raw[1:HEADER], "big")
        if number not in schemas:
            schemas[number] = parse_schema(json.loads(registry.get_schema(number).schema_str or ""))
        value: Any = schemaless_reader(io.BytesIO(memoryview(raw)[HEADER:]), schemas[number], None)
        part.take(id_of_key(message.key()), value)
        if value["op"] == "r":
            part.copied_at_ms.append(message.timestamp()[1])
            part.copied_bytes += len(raw) + len(message.key())
    return part


def _messages(bootstrap: str, topic: str, partition: int) -> Iterator[Any]:
    with contextlib.closing(consumer(bootstrap)) as reader:
        reader.assign([TopicPartition(topic, partition, 0)])
        while True:
            for message in reader.consume(BATCH, 1.0):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                elif not error.retriable():
                    raise KafkaException(error)


def _of_table(backlog: Backlog) -> tuple[Any, Any]:
    with contextlib.closing(psycopg2.connect(backlog.dsn)) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = BATCH
        cursor.execute(f"SELECT {', '.join(NAMES)} FROM {TABLE}")
        return _arrays({row[0]: hash(row) for row in cursor})


def _arrays(hashes: dict[int, int]) -> tuple[Any, Any]:
    """Return ids and hashes, in the order of ids."""
    ids = np.fromiter(hashes.keys(), np.int64, len(hashes))
    order = np.argsort(ids)
    return ids[order], np.fromiter(hashes.values(), np.int64, len(hashes))[order]
