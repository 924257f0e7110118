"""The results of a case's runs: medians, ratios within a round, a table. Pure.

In: runs, or their JSON.  Out: rows of text.
Invariant: a ratio is taken within one round, and then the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MB = 1_000_000
MIB = 1 << 20
NOISE = 0.1
"""The share of the machine used by other processes above which a result is marked."""
HEAD = (
    "runner", "runs", "rows/s", "of unix", "walsender", "receiver", "broker", "MB", "ready s", "first s",
    "others", "",
)  # fmt: skip

LATENCY_HEAD = (
    "runner", "commits/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "cores", "MB", "others", "MB by sixths", "",
)  # fmt: skip
FLOOR_HEAD = ("way", "commits/s", "p50 ms", "p95 ms", "p99 ms", "max ms")
IN_TABLE = ("walsender", "receiver", "broker")
FIRST_START = "first start"
"""The name, in place of the previous end, of a daemon's first start."""
COPY_HEAD = (
    "way",
    "runs",
    "rows/s",
    "of COPY",
    "of stream",
    "server us",
    "daemon us",
    "broker us",
    "MB",
    "others",
)
RESTART_HEAD = ("after", "starts", "ready s", "first s")


@dataclass(frozen=True, slots=True)
class Summary:
    """One runner in one case: medians, but the maximum memory of all runs. CPU in seconds per million rows."""

    runner: str
    runs: int
    rate: float
    ratio: float | None
    cpu: dict[str, float]
    threads: dict[str, float]
    peak_memory_bytes: int
    ready_seconds: float
    first_seconds: float
    others_share: float
    disturbed: int


def summaries(runs: Sequence[Mapping[str, Any]], limit: str) -> list[Summary]:
    """Return each runner's medians, in the order of their first runs; `limit` names the runner that the ratios refer
    to.
    """
    by_runner: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        by_runner[run["runner"]].append(run)
    return [_summary(name, of_one, by_runner.get(limit, [])) for name, of_one in by_runner.items()]


def _summary(name: str, runs: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]]) -> Summary:
    limit_of = {run["round"]: rate(run) for run in limits}
    ratios = [rate(run) / limit_of[run["round"]] for run in runs if run["round"] in limit_of]
    return Summary(
        runner=name,
        runs=len(runs),
        rate=statistics.median(map(rate, runs)),
        ratio=statistics.median(ratios) if ratios else None,
        cpu={
            process: statistics.median(cpu_per_million(run, process) for run in runs)
            for process in runs[0]["cpu"]
        },
        threads=_threads(runs),
        peak_memory_bytes=max(run["peak_memory_bytes"] for run in runs),
        ready_seconds=statistics.median(run["ready_seconds"] for run in runs),
        first_seconds=statistics.median(run["first_seconds"] for run in runs),
        others_share=max(run["others_share"] for run in runs),
        disturbed=sum(run["is_disturbed"] for run in runs),
    )


def rate(run: Mapping[str, Any]) -> float:
    """Rows per second."""
    return float(run["rows"]) / float(run["seconds"])


def cpu_per_million(run: Mapping[str, Any], process: str) -> float:
    """Return the CPU seconds per million rows of one process, user and system."""
    return float(sum(run["cpu"].get(process, {}).values())) / float(run["rows"]) * 1e6


def _threads(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = {name for run in runs for name in run["threads"]}
    medians = {
        name: statistics.median(run["threads"].get(name, 0.0) / run["rows"] * 1e6 for run in runs)
        for name in names
    }
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


def cells(one: Summary) -> list[str]:
    """Return the cells of a summary's row."""
    mark = f"{one.disturbed} of {one.runs} disturbed" if one.disturbed else ""
    return [
        one.runner,
        str(one.runs),
        f"{one.rate:,.0f}",
        "" if one.ratio is None else f"{one.ratio:.2f}",
        *(f"{one.cpu.get(process, 0.0):.2f}" for process in IN_TABLE),
        f"{one.peak_memory_bytes / MB:.0f}",
        f"{one.ready_seconds:.2f}",
        f"{one.first_seconds:.2f}",
        f"{one.others_share:.0%}",
        mark,
    ]


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as necessary; the first aligned left, numbers right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join((first, *rest)).rstrip()

    return "\n".join(map(line, (head, *rows)))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the same table in Markdown."""
    bar = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, bar, *rows))


def case_table(runs: Sequence[Mapping[str, Any]], limit: str, absent: Mapping[str, str]) -> str:
    """Return the table of one case, the CPU by process, and the absent runners."""
    found = summaries(runs, limit)
    lines = [text_table(HEAD, [cells(one) for one in found])]
    lines += [f"  {one.runner} {reported}" for one in found if (reported := spent_besides(one))]
    lines += [f"  {name}: {why}" for name, why in absent.items()]
    return "\n".join(lines)


def spent_besides(one: Summary) -> str:
    """Return the CPU of the receiver's threads, and of the processes that are not in the table."""
    besides = [(name, spent) for name, spent in one.cpu.items() if name not in IN_TABLE]
    parts = [
        ("by thread:", list(one.threads.items()) if len(one.threads) > 1 else []),
        ("other processes:", besides),
    ]
    return "; ".join(
        f"{title} " + ", ".join(f"{name} {spent:.2f}" for name, spent in reported)
        for title, reported in parts
        if reported
    )


def latency_cells(one: Mapping[str, Any]) -> list[str]:
    """Return the cells of a measured latency."""
    return [
        one["runner"],
        f"{one['per_second']:,.0f}",
        *_milliseconds(one),
        f"{one['daemon_cores']:.2f}",
        f"{one['peak_memory_bytes'] / MB:.0f}",
        f"{one['others_share']:.0%}",
        " ".join(f"{part * MIB / MB:.0f}" for part in one["memory_mib"]),
        "disturbed" if one["others_share"] > NOISE else "",
    ]


def floor_cells(one: Mapping[str, Any]) -> list[str]:
    """Return the cells of the latency of a producer and a broker alone."""
    return [one["way"], f"{one['commits_per_second']:.0f}", *_milliseconds(one)]


def _milliseconds(one: Mapping[str, Any]) -> list[str]:
    return [f"{one[name]:.2f}" for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")]


def latency_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the latency table of one case."""
    return text_table(LATENCY_HEAD, [latency_cells(one) for one in found])


def restart_rows(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the medians of starts, by how the previous process ended."""
    by_end: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        by_end[one["after"]].append(one)
    return [
        [
            after,
            str(len(starts)),
            *(
                f"{statistics.median(one[name] for one in starts):.2f}"
                for name in ("ready_seconds", "first_seconds")
            ),
        ]
        for after, starts in by_end.items()
    ]


def copy_rows(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the medians of snapshots, by their way; CPU in microseconds per row."""
    by_way: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        by_way[one["way"]].append(one)
    rates = {(one["way"], one["round"]): one["rows"] / one["seconds"] for one in found}

    def ratio(runs: Sequence[Mapping[str, Any]], to: str) -> str:
        pairs = [(rates[one["way"], one["round"]], rates.get((to, one["round"]))) for one in runs]
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        return f"{statistics.median(ratios):.2f}" if ratios else ""

    def cost(runs: Sequence[Mapping[str, Any]], process: str) -> str:
        spent = [one["cpu"][process] / one["rows"] * 1e6 for one in runs if process in one["cpu"]]
        return f"{statistics.median(spent):.2f}" if spent else ""

    return [
        [
            way,
            str(len(runs)),
            f"{statistics.median(rates[way, one['round']] for one in runs):,.0f}",
            ratio(runs, "COPY"),
            ratio(runs, "stream"),
            *(cost(runs, process) for process in ("postgres", "receiver", "broker")),
            f"{max(one['peak_memory_bytes'] for one in runs) / MB:.0f}",
            f"{max(one['others_share'] for one in runs):.0%}",
        ]
        for way, runs in by_way.items()
    ]


def copy_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of one case's snapshots."""
    return text_table(COPY_HEAD, copy_rows(found))


def restart_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of one case's starts."""
    return text_table(RESTART_HEAD, restart_rows(found))
