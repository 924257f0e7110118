"""Samples of cdcd's lag metrics, together with the true positions around them.

In: PostgreSQL and the brokers directly, the daemon's admin port.  Out: samples, about two each second.
Invariant: the true positions are queried before and after the metrics, so that events in between only make a bound
weaker: WAL flushed before was committed, changes not durable afterwards were not durable. There is no sample of a
process that was replaced between two of the queries or that does not answer.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from typing import Any

import psycopg2
from confluent_kafka import Consumer

from tests.faults.facts import Lag
from tests.faults.safety import end_of
from tests.faults.topics import consumer, lsn_of
from tests.support.daemon import Daemon

PAUSE_S = 0.5
ANSWERS_WITHIN_S = 1.0
_METRIC = re.compile(r"^(cdcd_\w+) (\S+)$", re.MULTILINE)
_POSITIONS = """SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn, pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
    confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"""


class LagSampler(threading.Thread):
    """Takes samples until `stop`."""

    def __init__(self, dsn: str, daemon: Daemon, bootstrap: str, progress_topic: str) -> None:
        super().__init__(name="lag sampler", daemon=True)
        self._dsn = dsn
        self._daemon = daemon
        self._brokers = bootstrap
        self._topic = progress_topic
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._samples: list[Lag] = []

    def run(self) -> None:
        """Take samples."""
        reader = consumer(self._brokers, "read_uncommitted")
        try:
            while not self._over.wait(PAUSE_S):
                sample = self._sample(reader)
                if sample is not None:
                    with self._lock:
                        self._samples.append(sample)
        finally:
            reader.close()

    def _sample(self, reader: Consumer) -> Lag | None:
        positions = self._positions()
        asked_s = time.time()
        before = self._daemon.status(ANSWERS_WITHIN_S)
        code, text = self._daemon.get("/metrics", ANSWERS_WITHIN_S)
        until_s = time.time()
        after = self._daemon.status(ANSWERS_WITHIN_S)
        is_one = bool(before and after) and before["uptime_s"] <= after["uptime_s"]
        end_offset = end_of(reader, self._topic) if positions and code == 200 and is_one else None
        if positions is None or end_offset is None:
            return None
        metrics = {name: float(value) for name, value in _METRIC.findall(text)}
        return Lag(
            *positions,
            asked_s,
            before["state"],
            lsn_of(before["received_lsn"] or "0/0"),
            asked_s - before["uptime_s"],
            metrics.get("cdcd_replication_lag_seconds"),
            _whole(metrics.get("cdcd_replication_lag_bytes")),
            _whole(metrics.get("cdcd_slot_confirmed_flush_lsn")),
            until_s,
            end_offset,
        )

    def _positions(self) -> tuple[int, int, int] | None:
        try:
            with (
                closing(psycopg2.connect(self._dsn, connect_timeout=5)) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SET statement_timeout = '5s'")
                cursor.execute(_POSITIONS, (self._daemon.slot,))
                row: Any = cursor.fetchone()
        except psycopg2.Error:
            return None
        if row is None or None in row:
            return None
        flushed_lsn, inserted_lsn, confirmed_lsn = map(int, row)
        return flushed_lsn, inserted_lsn, confirmed_lsn

    def taken(self) -> tuple[Lag, ...]:
        """Return the samples since the last call."""
        with self._lock:
            samples, self._samples = self._samples, []
        return tuple(samples)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(60)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
