"""Targets next to measured figures."""

from __future__ import annotations

from typing import Any

from tests.bench.figures import Figure, figures, together
from tests.unit.bench.runs import run


def result(**parts: Any) -> dict[str, Any]:
    return {"runs": [], "latencies": [], "restarts": [], **parts}


def drained(
    case: str, runner: str, seconds: float = 1.0, us_per_row: float = 2.0, **over: Any
) -> dict[str, Any]:
    cpu = {"receiver": {"user_s": us_per_row * 1000 / 1e6, "system_s": 0.0}}
    return run(runner, 1, seconds, **{"case": case, "cpu": cpu, **over})


def reached(found: list[Figure]) -> dict[str, tuple[float, bool]]:
    return {one.name: (round(one.measured, 3), one.is_reached) for one in found}


def test_a_rate_is_wanted_of_each_neighbour_that_took_part() -> None:
    runs = [
        drained("insert-1000", "unix", 0.95), drained("insert-1000", "cdcd", 1.0, us_per_row=3.5),
        drained("insert-1000", "debezium_tuned", 4.0),
    ]  # fmt: skip
    found = reached(figures(result(runs=runs)))
    assert found["insert-1000: rate of `unix`"] == (0.95, True)
    assert found["insert-1000: rate of `debezium_tuned`"] == (4.0, False)
    assert found["insert-1000: CPU of the daemon, us/row"] == (3.5, False)
    assert not any("tcp" in name for name in found), "tcp did not take part"


def test_what_a_column_and_a_table_cost_is_a_difference_and_a_ratio() -> None:
    per_row = {"insert-1000": 2.0, "wide": 6.5, "tables-1": 2.0, "tables-5000": 2.3}
    runs = [drained(case, "cdcd", us_per_row=us) for case, us in per_row.items()]
    found = reached(figures(result(runs=runs)))
    assert found["wide: CPU of the daemon for one more column, us"] == (0.05, True)
    assert found["tables-5000: CPU per row of `tables-1`"] == (1.15, False)


def test_memory_is_the_most_of_any_run_and_has_a_bound_of_its_own_where_it_is_huge() -> None:
    peaks = (("insert-1", 90), ("wide", 101), ("huge-10m", 140))
    runs = [drained(case, "cdcd", peak_memory_bytes=peak * 1_000_000) for case, peak in peaks]
    runs.append(drained("insert-1", "debezium", peak_memory_bytes=1 << 30))
    found = reached(figures(result(runs=runs)))
    assert found["wide: most memory, MB"] == (101.0, False)
    assert found["all others, the most in insert-1: memory, MB"] == (90.0, True)
    assert found["huge-10m: most memory, MB"] == (140.0, True)


def test_latency_and_starts_are_listed_where_they_were_measured() -> None:
    late = {"case": "latency-1000", "p50_ms": 5.0, "p99_ms": 41.0, "peak_memory_bytes": 1, "rows": 60_050}
    late["per_second"] = 1_000.5
    latencies = [
        {**late, "runner": "cdcd"},
        {**late, "runner": "at_least_once"},
        {**late, "runner": "debezium"},
    ]
    starts = [
        {"case": "restart", "after": after, "first_seconds": seconds}
        for after, seconds in (("first start", 9.0), ("asked to end", 1.0), ("killed", 1.5), ("killed", 1.8))
    ]
    found = reached(figures(result(latencies=latencies, restarts=starts)))
    assert found["latency-1000, 60 s: exactly once, p50 ms"] == (5.0, True)
    assert found["latency-1000, 60 s: exactly once, p99 ms"] == (41.0, False)
    assert found["latency-1000, 60 s: at least once, p50 ms"] == (5.0, False)
    assert found["restart: until the first row is durable, s"] == (1.5, True)
    assert figures(result()) == []


def test_rounds_of_several_results_are_not_compared_with_one_another() -> None:
    one = result(runs=[drained("insert-1", "unix", 1.0), drained("insert-1", "cdcd", 1.0)])
    other = result(runs=[drained("insert-1", "unix", 3.0), drained("insert-1", "cdcd", 2.0)])
    found = reached(figures(together([one, other])))
    assert found["insert-1: rate of `unix`"] == (1.25, True)
