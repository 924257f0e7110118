"""The report of measured runs."""

from __future__ import annotations

import json
from typing import Any

from tests.bench.report import document
from tests.unit.bench.runs import RUNS

MACHINE = {
    "cores": 2, "cpu": "a processor", "memory_bytes": 24 << 30, "kernel": "Linux 6", "python": "3.11.7",
    "commit": "abc", "postgresql": "18.4", "postgresql_settings": {"fsync": "off"}, "kafka": "4.3.0",
    "kafka_jvm": "-Xmx1g", "registry": "Apicurio 3", "librdkafka": "2.8.0",
}  # fmt: skip


def result(**over: Any) -> dict[str, Any]:
    written = {
        "began": "2026-01-01T00:00:00Z",
        "asked": {"scale": 1.0},
        "machine": MACHINE,
        "cdcd": "cdcd 0.1.0",
        "limit": "unix",
        "runners": {"cdcd": {"about": "the daemon", "settings": {"sink": "{delivery: at_least_once}"}}},
        "absent": {"debezium": "not asked for"},
        "cases": {
            "insert-1": {"about": "inserts", "rows": 1000},
            "latency-100": {"about": "late"},
            "restart": {"about": "again"},
        },
        "runs": [{"case": "insert-1", **run} for run in RUNS],
        "latencies": [],
        "restarts": [{"case": "restart", "after": "killed", "ready_seconds": 1.5, "first_seconds": 2.0}],
        "failures": [{"case": "wide", "runner": "cdcd", "why": "it ended\nwith a traceback"}],
        **over,
    }
    read: dict[str, Any] = json.loads(json.dumps(written))
    return read


def test_the_document_tells_machine_runners_figures_absence_and_failures() -> None:
    text = document("# Performance", [result()])
    for reported in (
        "2 cores of a processor, 24 GiB",
        "`cdcd`: the daemon (sink = {delivery: at_least_once})",
        "`debezium`: not asked for",
        "### insert-1\n\nInserts; 1,000 rows",
        "| cdcd | 3 | 500 | 0.80 |",
        "1 of 3 disturbed",
        "| killed | 1 | 1.50 | 2.00 |",
        "- wide, cdcd: it ended\n",
    ):
        assert reported in text
    assert "traceback" not in text


def test_several_runs_are_distinguished() -> None:
    text = document("# Performance", [result(), result(began="2026-02-02T00:00:00Z", failures=[])])
    assert "## Run 1, 2026-01-01" in text
    assert "## Run 2, 2026-02-02" in text
