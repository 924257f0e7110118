"""The size of a chunk follows the goal for its time."""

from __future__ import annotations

import pytest

from cdcd.snapshot.chunk_pace import FIRST, LEAST, MOST, ChunkPace

GOAL_S = 0.5


@pytest.mark.parametrize(
    ("rows", "seconds", "expected"),
    [
        (FIRST, GOAL_S / 1.5, int(FIRST * 1.5)),
        (FIRST, GOAL_S / 100, FIRST * 2),  # at most twice as many
        (FIRST, GOAL_S, FIRST),
        (FIRST, GOAL_S * 1.25, int(FIRST * 0.8)),
        (FIRST, GOAL_S * 100, FIRST // 2),  # at most half as many
        (FIRST - 1, GOAL_S / 2, FIRST),  # the chunk had as many rows as fit: it says nothing
        (FIRST - 1, GOAL_S * 2, FIRST // 2),
    ],
)
def test_the_next_chunk_has_the_rows_that_take_the_time(rows: int, seconds: float, expected: int) -> None:
    pace = ChunkPace(GOAL_S)
    pace.was_read(rows, seconds)
    assert pace.rows == expected


def test_a_chunk_has_bounds_whatever_it_takes() -> None:
    pace, limited = ChunkPace(GOAL_S), ChunkPace(GOAL_S, most=300)
    for _ in range(20):
        pace.was_read(pace.rows, 0.0)
        limited.was_read(limited.rows, 0.0)
    assert (pace.rows, limited.rows) == (MOST, 300)
    for _ in range(20):
        pace.was_read(pace.rows, GOAL_S * 9)
        limited.was_refused()
    assert (pace.rows, limited.rows) == (LEAST, LEAST)
