"""The replication slot's metrics, and cdcd's lag in bytes, from the last query of the slot.

In: a SlotReading, or None while PostgreSQL is unreachable.  Out: gauges, absent while unknown.
Invariant: an unknown value is absent, never the last known value.
Must not: query PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cdcd.metrics.group import Described

__all__ = ["SlotCollector", "SlotReading"]

WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
NO_SLOT = (
    "without a response of PostgreSQL, while a standby or another server than the session's responds, or without a "
    "slot"
)
_NO_POSITION = (
    "without a response of PostgreSQL, or while another server than the one that was read last responds; before "
    "there is a slot with a position"
)
_NO_STATISTICS = f"{NO_SLOT}; until the server has statistics of the slot"

UNCONFIRMED_BYTES = Described(
    "cdcd_replication_lag_bytes", "WAL that PostgreSQL has written and cdcd has not confirmed.", _NO_POSITION
)
UNRECEIVED_BYTES = Described(
    "cdcd_received_lag_bytes", "WAL that PostgreSQL has written and cdcd has not received.", _NO_POSITION
)
BY_FIELD: Mapping[str, Described] = {
    "is_active": Described("cdcd_slot_active", "1 while a walsender uses the slot, otherwise 0.", NO_SLOT),
    "retained_wal_bytes": Described("cdcd_slot_retained_wal_bytes", "WAL retained by the slot.", NO_SLOT),
    "confirmed_flush_lag_bytes": Described(
        "cdcd_slot_confirmed_flush_lag_bytes", "WAL after the slot's confirmed LSN.", NO_SLOT
    ),
    "safe_wal_bytes": Described(
        "cdcd_slot_safe_wal_bytes",
        "WAL that may be written before the slot is at risk.",
        f"{NO_SLOT}; without max_slot_wal_keep_size",
    ),
    "restart_lsn": Described("cdcd_slot_restart_lsn", "The slot's restart LSN, as a number.", NO_SLOT),
    "confirmed_flush_lsn": Described(
        "cdcd_slot_confirmed_flush_lsn", "The slot's confirmed LSN, as a number.", NO_SLOT
    ),
    "catalog_xmin_age": Described(
        "cdcd_slot_catalog_xmin_age",
        "Age of the slot's catalog_xmin, which holds back vacuum, in transactions.",
        NO_SLOT,
    ),
    "spilled_bytes": Described(
        "cdcd_slot_server_spilled_bytes",
        "Bytes that the server has written to its disk while decoding.",
        _NO_STATISTICS,
    ),
    "streamed_bytes": Described(
        "cdcd_slot_server_streamed_bytes",
        "Bytes of open transactions that the server has streamed instead of writing them to its disk.",
        _NO_STATISTICS,
    ),
}
"""The gauges by their fields in a `SlotReading`."""
WAL_STATUS = Described(
    "cdcd_slot_wal_status", "1 for the slot's wal_status, 0 for all others.", NO_SLOT, ("status",)
)


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
        values: list[tuple[Described, float | None]] = [
            (UNCONFIRMED_BYTES, self.unconfirmed_bytes),
            (UNRECEIVED_BYTES, self.unreceived_bytes),
            *((metric, getattr(reading, field)) for field, metric in BY_FIELD.items()),
        ]
        for metric, value in values:
            if value is not None:
                yield metric.family(float(value))
        if reading.wal_status is not None:
            status = WAL_STATUS.family()
            for name in WAL_STATUSES:
                status.add_metric([name], float(name == reading.wal_status))
            yield status
