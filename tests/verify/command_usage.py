"""The peak memory and the CPU of a command and of the processes below it, such as those of Spark.

In: words of the command line of a child process.  Out: peaks by part: the command itself, the JVM, Spark's workers.
Invariant: the peak of a process is the kernel's (VmHWM), however rarely it is read; `all` is the highest sum at one
of the samples, in which pages that processes share count once for each. CPU after the last sample is missing.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

from tests.bench.usage import (
    children_of,
    descendants_of,
    peak_memory_of,
    processes_below,
    with_ended_children_of,
    words_of,
)

EACH_S = 0.2
PAGE = os.sysconf("SC_PAGE_SIZE")


class CommandUsage:
    """Samples the child process with these words, and of all below it. Use as a context manager."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peaks: dict[str, int] = {}
        """In bytes, by part; of several processes of a part that of the largest."""
        self.cpu_s = 0.0
        """Of all processes, also ended ones."""

    def __enter__(self) -> CommandUsage:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def __str__(self) -> str:
        peaks = ", ".join(f"{part} {peak >> 20} MiB" for part, peak in self.peaks.items())
        return f"{self.cpu_s:.0f} s of CPU; at most: {peaks}"

    def _sample(self) -> None:
        while not self._over.wait(EACH_S):
            for root in children_of(os.getpid()):
                if all(word in words_of(root) for word in self._words):
                    self._add(root)

    def _add(self, root: int) -> None:
        family = [root, *processes_below(root)]
        for pid in family:
            part = "command" if pid == root else _part(words_of(pid))
            self._raise(part, peak_memory_of(pid) or 0)
        self._raise("all", sum(map(_resident, family)))
        self.cpu_s = max(self.cpu_s, (with_ended_children_of(root) + descendants_of(root)).total_s)

    def _raise(self, part: str, found: int) -> None:
        self.peaks[part] = max(found, self.peaks.get(part, 0))


def _part(command: list[str]) -> str:
    return "a worker" if any(word.startswith("pyspark.") for word in command) else "JVM"


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0
