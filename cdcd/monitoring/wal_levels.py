"""Levels of the WAL that the slot retains: the pure decisions of the WAL guard (F21, F22).

In: one reading of the slot, the configured sizes, the oldest writing transaction.  Out: level, reason, holder.
Invariant: DROP_SLOT follows from the size that was configured for it, and from nothing else.
Must not: query a server, log.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cdcd.ops.slot_metrics import SlotReading

SPENT_WARN = 0.5
SPENT_CRITICAL = 0.8
"""Fractions of max_slot_wal_keep_size; beyond that size the server invalidates the slot itself (F23)."""
XMIN_WARN = 200_000_000
XMIN_CRITICAL = 1_000_000_000
"""Age of catalog_xmin in transactions: it holds up vacuum of the catalogs; at 2,100,000,000 writes are refused."""


class Level(enum.IntEnum):
    """The severity; its numbers are the values of the metric."""

    OK = 0
    WARN = 1
    CRITICAL = 2
    DROP_SLOT = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """The configured sizes, None for off."""

    warn_bytes: int | None = None
    critical_bytes: int | None = None
    drop_slot_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest writing transaction of the server, prepared ones included."""

    name: str
    age_s: float


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """The verdict on one reading. `why`: the reason for the level. `holder`: what keeps the WAL from being removed.

    `is_anothers`: another daemon has the slot now, so the guard does nothing.
    """

    level: Level
    why: str = ""
    holder: str = ""
    is_anothers: bool = False


def judge_wal(reading: SlotReading, sizes: Sizes) -> GuardVerdict:
    """Return the level of this reading and the reasons for it, without the holder."""
    reasons = [*_by_size(reading, sizes), *_by_server(reading), *_by_xmin(reading)]
    level = max((level for level, _ in reasons), default=Level.OK)
    return GuardVerdict(level, "; ".join(why for at, why in reasons if at == level))


def holder(reading: SlotReading, oldest: Oldest | None, state: str) -> str:
    """Return what keeps the WAL from being removed: cdcd, which does not confirm, or an open transaction (F22).

    `state`: the state of cdcd, with its reason.
    """
    retained, unconfirmed = reading.retained_wal_bytes, reading.confirmed_flush_lag_bytes
    if retained is None or unconfirmed is None:
        return "nobody: the slot has no position"
    if 2 * unconfirmed >= retained:
        return f"cdcd, which has not confirmed {_size(unconfirmed)}: {state}"
    if oldest is None:
        return "a transaction that is open or has just ended, and that cdcd's role has no privilege to see"
    return f"{oldest.name}, open for {oldest.age_s:.0f} s"


def _by_size(reading: SlotReading, sizes: Sizes) -> list[tuple[Level, str]]:
    retained = reading.retained_wal_bytes
    if retained is None:
        return []
    return [
        (level, f"the slot retains {_size(retained)} of WAL, {name} is {_size(limit)}")
        for level, name, limit in (
            (Level.DROP_SLOT, "source.wal_guard.drop_slot", sizes.drop_slot_bytes),
            (Level.CRITICAL, "source.wal_guard.critical", sizes.critical_bytes),
            (Level.WARN, "source.wal_guard.warn", sizes.warn_bytes),
        )
        if limit is not None and retained >= limit
    ]


def _by_server(reading: SlotReading) -> list[tuple[Level, str]]:
    if reading.wal_status == "lost":
        return [(Level.CRITICAL, "the server has invalidated the slot")]
    if reading.wal_status == "unreserved":
        return [(Level.CRITICAL, "the server invalidates the slot at its next checkpoint")]
    retained, safe = reading.retained_wal_bytes, reading.safe_wal_bytes
    if retained is None or safe is None:
        return []
    spent = retained / max(retained + safe, 1)
    why = f"{spent:.0%} of the WAL that the server may retain for the slot is used, {_size(max(safe, 0))} are left"
    if spent >= SPENT_CRITICAL:
        return [(Level.CRITICAL, why)]
    return [(Level.WARN, why)] if spent >= SPENT_WARN else []


def _by_xmin(reading: SlotReading) -> list[tuple[Level, str]]:
    age = reading.catalog_xmin_age or 0
    if age < XMIN_WARN:
        return []
    why = f"vacuum cannot clean the catalogs: catalog_xmin is {age} transactions old"
    return [(Level.CRITICAL if age >= XMIN_CRITICAL else Level.WARN, why)]


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"
