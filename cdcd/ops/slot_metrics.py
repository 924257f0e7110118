"""The replication slot's metrics, and cdcd's lag in bytes, from the last query of the slot.

In: a SlotReading, or None while PostgreSQL is unreachable.  Out: gauges, absent while unknown.
Invariant: an unknown value is absent, never the last known value.
Must not: query PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["SlotCollector", "SlotReading"]

WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")


@dataclass(frozen=True, slots=True)
class SlotReading:
    """The result of one query of `pg_replication_slots`. None: not available (server version, or no limit)."""

    is_active: bool
    retained_wal_bytes: int | None = None
    confirmed_flush_lag_bytes: int | None = None
    safe_wal_bytes: int | None = None
    wal_status: str | None = None
    restart_lsn: int | None = None
    confirmed_flush_lsn: int | None = None
    catalog_xmin_age: int | None = None
    spilled_bytes: int | None = None
    streamed_bytes: int | None = None


class SlotCollector(Collector):
    """The slot's gauges, from the last reading; absent without a reading."""

    def __init__(self) -> None:
        self.reading: SlotReading | None = None
        self.unconfirmed_bytes: int | None = None
        self.unreceived_bytes: int | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of the last reading."""
        reading = self.reading
        if reading is None:
            return
        gauges: tuple[tuple[str, str, float | None], ...] = (
            (
                "replication_lag_bytes",
                "WAL written and not yet confirmed by cdcd, at the last query.",
                self.unconfirmed_bytes,
            ),
            (
                "received_lag_bytes",
                "WAL written and not yet received by cdcd, at the last query.",
                self.unreceived_bytes,
            ),
            ("slot_active", "1 while a walsender uses the slot.", float(reading.is_active)),
            ("slot_retained_wal_bytes", "WAL retained by the slot.", reading.retained_wal_bytes),
            (
                "slot_confirmed_flush_lag_bytes",
                "WAL after the slot's confirmed LSN.",
                reading.confirmed_flush_lag_bytes,
            ),
            (
                "slot_safe_wal_bytes",
                "WAL that may be written before the slot is at risk.",
                reading.safe_wal_bytes,
            ),
            ("slot_restart_lsn", "The slot's restart LSN, as a number.", reading.restart_lsn),
            (
                "slot_confirmed_flush_lsn",
                "The slot's confirmed LSN, as a number.",
                reading.confirmed_flush_lsn,
            ),
            (
                "slot_catalog_xmin_age",
                "Age of the slot's catalog_xmin, which holds back vacuum, in transactions.",
                reading.catalog_xmin_age,
            ),
            (
                "slot_server_spilled_bytes",
                "Written to the server's disk while decoding.",
                reading.spilled_bytes,
            ),
            (
                "slot_server_streamed_bytes",
                "Streamed for open transactions instead of written to the server's disk.",
                reading.streamed_bytes,
            ),
        )
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"cdcd_{name}", text, value=value)
        if reading.wal_status is not None:
            status = GaugeMetricFamily(
                "cdcd_slot_wal_status", "1 for the slot's wal_status.", labels=["status"]
            )
            for name in WAL_STATUSES:
                status.add_metric([name], float(name == reading.wal_status))
            yield status
