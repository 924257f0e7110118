"""Sample runs in the benchmark's format."""

from __future__ import annotations

from typing import Any


def run(runner: str, round_: int, seconds: float, **over: Any) -> dict[str, Any]:
    return {
        "runner": runner,
        "round": round_,
        "rows": 1000.0,
        "seconds": seconds,
        "cpu": {
            "receiver": {"user_s": 0.001, "system_s": 0.002},
            "registry": {"user_s": 0.0, "system_s": 0.0005},
        },
        "threads": {"main": 0.002, "rdk": 0.003},
        "peak_memory_bytes": 50 << 20,
        "ready_seconds": 1.0,
        "first_seconds": 2.0,
        "others_share": 0.05,
        "is_disturbed": False,
        **over,
    }


RUNS = [
    run("unix", 1, 1.0), run("cdcd", 1, 2.0),
    run("unix", 2, 4.0), run("cdcd", 2, 4.0, others_share=0.3, is_disturbed=True),
    run("unix", 3, 1.0), run("cdcd", 3, 1.25),
]  # fmt: skip
