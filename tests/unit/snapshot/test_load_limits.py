"""The load that incremental snapshots put on the source: rows a second, and pauses with their reasons."""

from __future__ import annotations

import pytest

from cdcd.snapshot.chunk_pace import FIRST, LEAST, ChunkPace
from cdcd.snapshot.load_limits import LOOK_S, LoadGate, LoadLimits, Sessions


@pytest.mark.parametrize("rate", [100, 20_000])
def test_the_rows_of_all_tables_together_are_at_most_the_limit_and_one_chunk(rate: int) -> None:
    gate, now_s, rows = LoadGate(LoadLimits(max_rows_per_second=rate)), 1000.0, 0
    chunk = ChunkPace(0.5, gate.limits.most_rows(0.5)).rows
    for _ in range(200):
        wait = gate.wait(now_s, None, None)
        if wait is not None:
            assert wait.reason == f"max_rows_per_second: {rate}"
            assert 0 < wait.seconds <= LOOK_S
            now_s += wait.seconds
            continue
        rows += chunk
        gate.was_read(chunk, now_s)
        assert rows <= rate * (now_s - 1000.0) + chunk
    assert rows + chunk > rate * (now_s - 1000.0) - 1e-6, "no time is lost"


def test_unused_time_is_not_made_up_for() -> None:
    gate = LoadGate(LoadLimits(max_rows_per_second=100))
    gate.was_read(10, 0.0)
    gate.was_read(100, 1000.0)
    assert gate.wait(1000.5, None, None) is not None
    assert gate.wait(1001.0, None, None) is None


@pytest.mark.parametrize(
    ("lag_s", "expected"), [(0.0, None), (2.0, None), (2.001, "is 2001 ms"), (None, "is not known")]
)
def test_a_lag_above_its_limit_pauses(lag_s: float | None, expected: str | None) -> None:
    wait = LoadGate(LoadLimits(pause_above_lag_ms=2000)).wait(0.0, lag_s, None)
    assert (wait is None) == (expected is None)
    assert wait is None or str(expected) in wait.reason


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        (Sessions(3, 0), None),
        (Sessions(4, 0), "4 sessions are active"),
        (Sessions(2, 2), "pg_read_all_stats"),
        (None, "not known"),
    ],
)
def test_active_sessions_above_their_limit_pause(sessions: Sessions | None, expected: str | None) -> None:
    wait = LoadGate(LoadLimits(pause_above_active_sessions=3)).wait(0.0, None, sessions)
    assert (wait is None) == (expected is None)
    assert wait is None or str(expected) in wait.reason


def test_without_limits_nothing_waits() -> None:
    gate = LoadGate(LoadLimits())
    gate.was_read(1_000_000, 0.0)
    assert gate.wait(0.0, None, None) is None
    assert gate.limits.most_rows(0.5) is None


def test_a_chunk_has_no_more_rows_than_the_limit_allows_in_its_time() -> None:
    pace = ChunkPace(0.5, LoadLimits(max_rows_per_second=1000).most_rows(0.5))
    assert pace.rows == 500
    for _ in range(5):
        pace.was_read(pace.rows, 0.001)
    assert pace.rows == 500
    pace.was_refused()
    assert pace.rows == 250
    slow = ChunkPace(0.5, LoadLimits(max_rows_per_second=4).most_rows(0.5))
    slow.was_refused()
    assert slow.rows == 2 < LEAST
    assert ChunkPace(0.5).rows == FIRST
