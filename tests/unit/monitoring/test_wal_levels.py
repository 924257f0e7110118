"""The WAL guard's decisions: the table of all cases (F21, F22, F23)."""

from __future__ import annotations

import pytest

from cdcd.monitoring.wal_levels import Level, Oldest, Sizes, holder, judge_wal
from cdcd.ops.slot_metrics import SlotReading

MIB = 1 << 20
SIZES = Sizes(warn_bytes=100 * MIB, critical_bytes=200 * MIB, drop_slot_bytes=300 * MIB)
NEVER = Sizes()


def reading(retained_mib: int | None, **more: object) -> SlotReading:
    retained = None if retained_mib is None else retained_mib * MIB
    return SlotReading(True, retained_wal_bytes=retained, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "seen", "level"),
    [
        (SIZES, reading(None), Level.OK),
        (SIZES, reading(99), Level.OK),
        (SIZES, reading(100), Level.WARN),
        (SIZES, reading(200), Level.CRITICAL),
        (SIZES, reading(299), Level.CRITICAL),
        (SIZES, reading(300), Level.DROP_SLOT),
        (Sizes(100 * MIB, 200 * MIB), reading(10_000), Level.CRITICAL),  # not without drop_slot
        (NEVER, reading(10_000), Level.OK),
        # max_slot_wal_keep_size: the remaining WAL counts, for any configured sizes
        (NEVER, reading(49, safe_wal_bytes=51 * MIB), Level.OK),
        (NEVER, reading(50, safe_wal_bytes=50 * MIB), Level.WARN),
        (NEVER, reading(80, safe_wal_bytes=20 * MIB), Level.CRITICAL),
        (NEVER, reading(120, safe_wal_bytes=-20 * MIB), Level.CRITICAL),
        (NEVER, reading(1, wal_status="reserved"), Level.OK),
        (NEVER, reading(1, wal_status="extended"), Level.OK),
        (NEVER, reading(1, wal_status="unreserved"), Level.CRITICAL),
        (NEVER, reading(None, wal_status="lost"), Level.CRITICAL),
        (NEVER, reading(1, catalog_xmin_age=199_999_999), Level.OK),
        (NEVER, reading(1, catalog_xmin_age=200_000_000), Level.WARN),
        (NEVER, reading(1, catalog_xmin_age=1_000_000_000), Level.CRITICAL),
        # neither an age nor the server's own limit drops the slot
        (SIZES, reading(1, catalog_xmin_age=2_000_000_000, wal_status="unreserved"), Level.CRITICAL),
    ],
)
def test_a_reading_has_a_level(sizes: Sizes, seen: SlotReading, level: Level) -> None:
    verdict = judge_wal(seen, sizes)
    assert verdict.level is level
    assert bool(verdict.why) == (level is not Level.OK)


def test_the_reason_is_that_of_the_level() -> None:
    verdict = judge_wal(reading(210, catalog_xmin_age=200_000_000), SIZES)
    assert verdict.why == "the slot retains 210 MiB of WAL, source.wal_guard.critical is 200 MiB"


OPEN = Oldest("pid 7 of app in database shop (batch)", 4000.0)


@pytest.mark.parametrize(
    ("retained_mib", "unconfirmed_mib", "oldest", "expected"),
    [
        (100, 90, None, "cdcd, which has not confirmed 90 MiB: backoff: no broker"),
        (100, 50, OPEN, "cdcd, which has not confirmed 50 MiB: backoff: no broker"),
        (100, 1, OPEN, "pid 7 of app in database shop (batch), open for 4000 s"),
        (
            100,
            1,
            None,
            "a transaction that is open or has just ended, and that cdcd's role has no privilege to see",
        ),
        (None, None, None, "nobody: the slot has no position"),
    ],
)
def test_who_holds_it(
    retained_mib: int | None, unconfirmed_mib: int | None, oldest: Oldest | None, expected: str
) -> None:
    unconfirmed = None if unconfirmed_mib is None else unconfirmed_mib * MIB
    seen = reading(retained_mib, confirmed_flush_lag_bytes=unconfirmed)
    assert holder(seen, oldest, "backoff: no broker") == expected
