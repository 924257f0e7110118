"""Samples of the invariant that must hold at every moment: the slot's confirmed position is durable in Kafka.

In: PostgreSQL directly, the brokers directly.  Out: samples, several each second.
Invariant: the slot is queried first and the end of the progress topic second, so that a commit between the two
queries can only hide a violation, never invent one. The end counts uncommitted records, because a producer knows its
commit before the commit marker is written; the oracle determines later which records before that end were committed.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import psycopg2
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.faults.facts import Sample
from tests.faults.topics import consumer

PAUSE_S = 0.1


class Sampler(threading.Thread):
    """Takes samples until `stop`; a failed query gives no sample."""

    def __init__(self, dsn: str, slot: str, bootstrap: str, progress_topic: str) -> None:
        super().__init__(name="sampler", daemon=True)
        self._dsn = dsn
        self._slot = slot
        self._topic = progress_topic
        self._brokers = bootstrap
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self.count = 0
        self.backlog_bytes: int | None = None
        """The WAL above the slot's confirmed position at the last query; None if there was no answer or no slot."""

    def run(self) -> None:
        """Take samples."""
        reader = consumer(self._brokers, "read_uncommitted")
        try:
            while not self._over.wait(PAUSE_S):
                confirmed_lsn = self._confirmed()
                end = None if confirmed_lsn is None else end_of(reader, self._topic)
                if confirmed_lsn is not None and end is not None:
                    with self._lock:
                        self.count += 1
                        self._samples.append(Sample(confirmed_lsn, end))
        finally:
            reader.close()

    def _confirmed(self) -> int | None:
        query = """SELECT confirmed_flush_lsn - '0/0'::pg_lsn, pg_current_wal_insert_lsn() - confirmed_flush_lsn
            FROM pg_replication_slots WHERE slot_name = %s"""
        self.backlog_bytes = None
        try:
            with (
                closing(psycopg2.connect(self._dsn, connect_timeout=5)) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SET statement_timeout = '5s'")
                cursor.execute(query, (self._slot,))
                row: Any = cursor.fetchone()
        except psycopg2.Error:
            return None
        if row is None or row[0] is None:
            return None
        self.backlog_bytes = int(row[1])
        return int(row[0])

    def taken(self) -> tuple[Sample, ...]:
        """Return the samples since the last call."""
        with self._lock:
            samples, self._samples = self._samples, []
        return tuple(samples)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(60)


def end_of(reader: Consumer, topic: str) -> int | None:
    """Return the end offset of the topic's only partition; None if the query fails."""
    try:
        if topic not in reader.list_topics(timeout=5).topics:
            return None
        return int(reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1])
    except KafkaException:
        return None
