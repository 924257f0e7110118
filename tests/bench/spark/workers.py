"""The Python processes of a running Spark, and the peak of the memory of each.

In: the process id of a driver, or of the cluster's parent.  Out: peaks by the part of Spark that the process has.
Invariant: the peak is the kernel's (VmHWM), so that it is found however rarely it is read; what a process used after
the last sample before its end is missing.
"""

from __future__ import annotations

import threading
from types import TracebackType

from tests.bench.usage import peak_memory_of, processes_below, words_of

SAMPLES_EACH_S = 0.2
DAEMON = "pyspark.daemon"
TASKS = "tasks"
_PARTS = {
    "pyspark.worker": TASKS,
    "pyspark.sql.streaming.python_streaming_source_runner": "planner",
}


class PythonWorkers:
    """Samples the memory of the Python processes below `pid`. Use as a context manager."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._peaks: dict[tuple[str, int], int] = {}

    def __enter__(self) -> PythonWorkers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def peaks(self) -> dict[str, list[int]]:
        """The peaks in bytes by part, the highest first: "tasks", "planner", or the name of a module."""
        found: dict[str, list[int]] = {}
        for (part, _), peak in sorted(self._peaks.items(), key=lambda one: -one[1]):
            found.setdefault(part, []).append(peak)
        return found

    def _sample(self) -> None:
        while not self._over.wait(SAMPLES_EACH_S):
            for pid in processes_below(self._pid):
                part, peak = part_of(words_of(pid)), peak_memory_of(pid)
                if part is not None and peak is not None:
                    self._peaks[part, pid] = max(peak, self._peaks.get((part, pid), 0))


def part_of(command: list[str]) -> str | None:
    """Return which part of Spark a process is, None for one that is no Python of Spark."""
    modules = [word for word in command if word.startswith("pyspark.")]
    if not modules:
        return None
    return _PARTS.get(modules[-1], modules[-1])
