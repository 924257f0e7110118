"""Metrics of what cdcd watches beside the stream: the publications, the WAL guard, heartbeats.

In: plain calls of the monitor, at most one for each look.  Out: series in the daemon's registry.
Invariant: every counter exists from the start with 0, so that rates and alerts see the first event; a gauge is absent
while its value is not known.
Must not: ask PostgreSQL.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter

from cdcd.ops.optional_gauge import OptionalGauge

__all__ = ["SourceMetrics"]

CHANGES = (
    "dropped",
    "recreated",
    "table_removed",
    "table_readded",
    "table_replaced",
    "table_recreated",
    "table_renamed",
    "table_attached",
    "table_gone",
    "table_added",
    "columns",
    "rows",
    "options",
)


class SourceMetrics:
    """Counters and gauges of the monitor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._changes = Counter(
            "cdcd_publication_changes_total",
            "Changes seen of the publications that are read, by kind.",
            ("change",),
            registry=registry,
        )
        for change in CHANGES:
            self._changes.labels(change)
        self._unpublished = OptionalGauge(
            "cdcd_unpublished_tables_with_topic",
            "Tables that are not published although the topic of their name holds records; absent before a look.",
            registry,
        )
        self._guard = OptionalGauge(
            "cdcd_wal_guard_level",
            "Level of the WAL guard: 0 nothing, 1 warn, 2 critical, 3 give up; absent while the slot is not known.",
            registry,
        )
        self._given_up = Counter(
            "cdcd_wal_guard_slots_dropped_total",
            "Slots dropped by the WAL guard to save the primary.",
            registry=registry,
        )

        self._heartbeats = Counter(
            "cdcd_heartbeats_sent_total", "Heartbeats written into the source.", registry=registry
        )
        self._round_trip = OptionalGauge(
            "cdcd_heartbeat_last_roundtrip_timestamp_seconds",
            "When a heartbeat was last seen confirmed; absent before the first.",
            registry,
        )

    def heartbeat_sent(self) -> None:
        """A heartbeat is in the source's WAL."""
        self._heartbeats.inc()

    def heartbeat_back(self) -> None:
        """Everything up to a heartbeat is confirmed."""
        self._round_trip.set(time.time())

    def publication_changed(self, change: str) -> None:
        """A publication is otherwise than at the last look; kinds as in `CHANGES`."""
        self._changes.labels(change).inc()

    def unpublished_with_topic(self, count: int | None) -> None:
        """So many tables are not published although the topics of their names hold records; None: not known."""
        self._unpublished.set(count)

    def guard_level(self, level: int | None) -> None:
        """What the WAL guard said last; None while it cannot see the slot."""
        self._guard.set(level)

    def slot_dropped_by_wal_guard(self) -> None:
        """The WAL guard has dropped the slot."""
        self._given_up.inc()
