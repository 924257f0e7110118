"""Rows that arrive at a fixed rate."""

from __future__ import annotations

from tests.bench.floor import Arrivals


def test_each_row_is_taken_once_and_its_lateness_is_from_its_own_arrival() -> None:
    arrivals = Arrivals(1_000, begin_s=50.0)
    assert arrivals.next_s() == 50.0
    first = arrivals.take(50.0025)
    assert list(first) == [0, 1, 2]
    assert list(arrivals.take(50.0025)) == []
    assert arrivals.next_s() == 50.003
    assert list(arrivals.take(50.0045)) == [3, 4]
    assert [round(late, 6) for late in arrivals.late_ms(first, 50.004)] == [4.0, 3.0, 2.0]
