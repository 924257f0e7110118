"""The targets for speed and cost, next to the measurements of a benchmark run. Pure.

In: a result, as it is in JSON.  Out: a `Figure` for each target for which the result has a measurement.
Invariant: medians; a ratio is taken within one round; memory is the maximum of all runs; a target without a
measurement is absent and never counts as reached.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.cases import CASES, TEN, WIDE
from tests.bench.table import FIRST_START, MB, Summary, summaries

HEAD = ("figure", "measured", "wanted", "")
HUGE = "huge-10m"
OURS = ("cdcd", "at_least_once")
MEMORY_MB, HUGE_MEMORY_MB = 100, 150
EXTRA_COLUMNS = len(WIDE) - len(TEN)
Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One target. `is_most`: the measured value may be at most the wanted one, otherwise at least."""

    name: str
    measured: float
    wanted: float
    is_most: bool = True

    @property
    def is_reached(self) -> bool:
        """Whether the measurement reaches the target."""
        return self.measured <= self.wanted if self.is_most else self.measured >= self.wanted

    def cells(self) -> tuple[str, str, str, str]:
        """Return the cells of the figure's row in a table."""
        bound = f"at {'most' if self.is_most else 'least'} {self.wanted:g}"
        return self.name, f"{self.measured:.2f}", bound, "" if self.is_reached else "not reached"


def figures(result: Mapping[str, Any]) -> list[Figure]:
    """Return the targets for which this result has a measurement."""
    return [*_rates(result["runs"]), *_cpu(result["runs"]), *_late(result["latencies"]), *_rest(result)]


def together(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return several results as one, with the rounds of each numbered separately."""
    return {
        "runs": [
            {**run, "round": (number, run["round"])}
            for number, one in enumerate(results)
            for run in one["runs"]
        ],
        "latencies": [run for one in results for run in one["latencies"]],
        "restarts": [run for one in results for run in one["restarts"]],
    }


def _rates(runs: Runs) -> Iterator[Figure]:
    goals = (
        ("insert-1000", "unix", 0.9), ("insert-1000", "tcp", 2.0), ("insert-1000", "debezium_tuned", 4.5),
        ("insert-1", "unix", 0.9),
    )  # fmt: skip
    for case, other, wanted in goals:
        found = _of(runs, case, other)
        if found is not None and found.ratio is not None:
            yield Figure(f"{case}: rate of `{other}`", found.ratio, wanted, is_most=False)


def _cpu(runs: Runs) -> Iterator[Figure]:
    spent = {case: found.cpu["receiver"] for case in CASES if (found := _of(runs, case)) is not None}
    for case, wanted in (("insert-1000", 3), ("insert-1", 3), ("update-full", 5)):
        if case in spent:
            yield Figure(f"{case}: CPU of the daemon, us/row", spent[case], wanted)
    if {"wide", "insert-1000"} <= spent.keys():
        extra = (spent["wide"] - spent["insert-1000"]) / EXTRA_COLUMNS
        yield Figure("wide: CPU of the daemon for one more column, us", extra, 0.1)
    if {"tables-1", "tables-5000"} <= spent.keys():
        yield Figure("tables-5000: CPU per row of `tables-1`", spent["tables-5000"] / spent["tables-1"], 1.1)


def _late(latencies: Runs) -> Iterator[Figure]:
    for one in latencies:
        if one["case"] != "latency-1000":
            continue
        about = f"latency-1000, {one['rows'] / one['per_second']:.0f} s:"
        if one["runner"] == "cdcd":
            yield Figure(f"{about} exactly once, p50 ms", one["p50_ms"], 6)
            yield Figure(f"{about} exactly once, p99 ms", one["p99_ms"], 40)
        if one["runner"] == "at_least_once":
            yield Figure(f"{about} at least once, p50 ms", one["p50_ms"], 1.5)


def _rest(result: Mapping[str, Any]) -> Iterator[Figure]:
    ours = [run for run in (*result["runs"], *result["latencies"]) if run["runner"] in OURS]
    peaks: dict[str, float] = defaultdict(float)
    for run in ours:
        peaks[run["case"]] = max(peaks[run["case"]], run["peak_memory_bytes"] / MB)
    above = {case: peak for case, peak in peaks.items() if case != HUGE and peak > MEMORY_MB}
    for case, peak in above.items():
        yield Figure(f"{case}: most memory, MB", peak, MEMORY_MB)
    if rest := {case: peak for case, peak in peaks.items() if case != HUGE and case not in above}:
        most = max(rest, key=lambda case: rest[case])
        others = "all others, the most in " if above else "the most in "
        yield Figure(f"{others}{most}: memory, MB", rest[most], MEMORY_MB)
    if HUGE in peaks:
        yield Figure(f"{HUGE}: most memory, MB", peaks[HUGE], HUGE_MEMORY_MB)
    starts = [one for one in result["restarts"] if one["case"] == "restart" and one["after"] != FIRST_START]
    if starts:
        first = statistics.median(one["first_seconds"] for one in starts)
        yield Figure("restart: until the first row is durable, s", first, 2)


def _of(runs: Runs, case: str, limit: str = "unix") -> Summary | None:
    """Yield cdcd's runs of a case, with their ratio to another runner."""
    found = summaries([run for run in runs if run["case"] == case], limit)
    return next((one for one in found if one.runner == "cdcd"), None)
