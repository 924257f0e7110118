"""How much WAL the slot keeps back, judged: pure decisions of the WAL guard (F21, F22).

In: one reading of the slot, the configured sizes, the oldest transaction that writes.  Out: level, reason, holder.
Invariant: DROP_SLOT comes from the one size that was configured for it and from nothing else.
Must not: ask a server, log.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cdcd.ops.slot_metrics import SlotReading

SPENT_WARN = 0.5
SPENT_CRITICAL = 0.8
"""Parts of max_slot_wal_keep_size: beyond it the server gives the slot up itself (F23)."""
XMIN_WARN = 200_000_000
XMIN_CRITICAL = 1_000_000_000
"""Transactions that vacuum of the catalogs is held back by; at 2,100,000,000 the server takes no more."""


class Level(enum.IntEnum):
    """How bad it is; the numbers are the metric's."""

    OK = 0
    WARN = 1
    CRITICAL = 2
    DROP_SLOT = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was configured, None for off."""

    warn_bytes: int | None = None
    critical_bytes: int | None = None
    drop_slot_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest transaction of the server that writes, prepared ones included."""

    name: str
    age_s: float


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """One look's verdict. `why` has a reason for the level, `holder` says what would have to move.

    `is_anothers`: somebody else has the slot now, so nothing is to be done for it here.
    """

    level: Level
    why: str = ""
    holder: str = ""
    is_anothers: bool = False


def judged(reading: SlotReading, sizes: Sizes) -> GuardVerdict:
    """Return the level of this reading and the reasons for it; the holder is still to be found."""
    reasons = [*_by_size(reading, sizes), *_by_server(reading), *_by_xmin(reading)]
    level = max((level for level, _ in reasons), default=Level.OK)
    return GuardVerdict(level, "; ".join(why for at, why in reasons if at == level))


def holder(reading: SlotReading, oldest: Oldest | None, state: str) -> str:
    """Say who holds the WAL back: cdcd, that does not confirm, or a transaction that is still open (F22).

    `state`: what cdcd is doing now, with its reason.
    """
    retained, unconfirmed = reading.retained_wal_bytes, reading.confirmed_flush_lag_bytes
    if retained is None or unconfirmed is None:
        return "nobody: the slot has no position"
    if 2 * unconfirmed >= retained:
        return f"cdcd, which has not confirmed {_size(unconfirmed)}: {state}"
    if oldest is None:
        return "a transaction that is open, or was until a moment ago, and that this role may not see"
    return f"{oldest.name}, open for {oldest.age_s:.0f} s"


def _by_size(reading: SlotReading, sizes: Sizes) -> list[tuple[Level, str]]:
    retained = reading.retained_wal_bytes
    if retained is None:
        return []
    return [
        (level, f"the slot keeps {_size(retained)} of WAL, {name} is {_size(limit)}")
        for level, name, limit in (
            (Level.DROP_SLOT, "source.wal_guard.drop_slot", sizes.drop_slot_bytes),
            (Level.CRITICAL, "source.wal_guard.critical", sizes.critical_bytes),
            (Level.WARN, "source.wal_guard.warn", sizes.warn_bytes),
        )
        if limit is not None and retained >= limit
    ]


def _by_server(reading: SlotReading) -> list[tuple[Level, str]]:
    if reading.wal_status == "lost":
        return [(Level.CRITICAL, "the server has given the slot up")]
    if reading.wal_status == "unreserved":
        return [(Level.CRITICAL, "the server gives the slot up at its next checkpoint")]
    retained, safe = reading.retained_wal_bytes, reading.safe_wal_bytes
    if retained is None or safe is None:
        return []
    spent = retained / max(retained + safe, 1)
    why = f"{spent:.0%} of what the server keeps for the slot is used, {_size(max(safe, 0))} are left"
    if spent >= SPENT_CRITICAL:
        return [(Level.CRITICAL, why)]
    return [(Level.WARN, why)] if spent >= SPENT_WARN else []


def _by_xmin(reading: SlotReading) -> list[tuple[Level, str]]:
    age = reading.catalog_xmin_age or 0
    if age < XMIN_WARN:
        return []
    why = f"vacuum of the catalogs is held back by {age} transactions"
    return [(Level.CRITICAL if age >= XMIN_CRITICAL else Level.WARN, why)]


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"
