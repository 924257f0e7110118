"""Metrics of the monitors of the source: the publications, the WAL guard, heartbeats.

In: plain calls of the monitors, at most one for each query.  Out: series in the daemon's registry.
Invariant: every counter exists from the start with 0, so that rates and alerts include the first event; a gauge is
absent while its value is unknown.
Must not: query PostgreSQL.
"""

from __future__ import annotations

import time
from typing import get_args

from cdcd.metrics.group import MetricGroup
from cdcd.model import PublicationChangeKind
from cdcd.ops.slot_metrics import NO_SLOT

__all__ = ["SourceMetrics"]


class SourceMetrics:
    """Counters and gauges of the monitor."""

    def __init__(self, new: MetricGroup) -> None:
        self._guard = new.optional(
            "wal_guard_level",
            "Level of the WAL guard: 0 ok, 1 warn, 2 critical, 3 drop slot.",
            absent=f"{NO_SLOT}; up to ten seconds after PostgreSQL responds again",
        )
        self._given_up = new.counter(
            "wal_guard_slots_dropped_total", "Slots dropped by the WAL guard to save the primary."
        )
        self._changes = new.counter(
            "publication_changes_total", "Changes of the publications that cdcd reads, by kind.", ("change",)
        )
        for change in get_args(PublicationChangeKind):
            self._changes.labels(change)
        self._unpublished = new.optional(
            "unpublished_tables_with_topic",
            "Unpublished tables whose topic holds records.",
            absent="without a response of PostgreSQL; while a published table is locked",
        )
        self._heartbeats = new.counter("heartbeats_sent_total", "Heartbeats written into the source.")
        self._round_trip = new.optional(
            "heartbeat_last_roundtrip_timestamp_seconds",
            "Time of the last confirmed heartbeat.",
            absent="before the first one, and without heartbeats",
        )

    def heartbeat_sent(self) -> None:
        """Count a heartbeat written to the source's WAL."""
        self._heartbeats.inc()

    def heartbeat_back(self) -> None:
        """Record that the confirmed LSN has passed a heartbeat."""
        self._round_trip.set(time.time())

    def publication_changed(self, change: PublicationChangeKind) -> None:
        """Count a change of a publication since the last query."""
        self._changes.labels(change).inc()

    def unpublished_with_topic(self, count: int | None) -> None:
        """Set the number of unpublished tables whose topics hold records; None: unknown."""
        self._unpublished.set(count)

    def guard_level(self, level: int | None) -> None:
        """Set the last level of the WAL guard; None while the slot is unknown."""
        self._guard.set(level)

    def slot_dropped_by_wal_guard(self) -> None:
        """Count a slot dropped by the WAL guard."""
        self._given_up.inc()
