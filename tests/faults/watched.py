"""Samples of a process's resources, and whether they grew: memory, descriptors, threads, files of its spill folder.

In: a pid and a folder.  Out: samples, a table, the resources that grew.
Invariant: growth is judged by medians, the last quarter of the run against the second: the first quarter is a
warm-up, and a session that is just being opened is no leak. Memory is also judged by its growth from each sixth of
the second half to the next: one large transaction may hide a small leak, but the leak continues in most sixths.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

INTERVAL_S = 0.5
MIB = 1 << 20
PARTS = 6
PART_S = 30.0
"""The growth between shorter parts is not significant."""


@dataclass(frozen=True, slots=True)
class Held:
    """One sample, at a time of the monotonic clock."""

    at_s: float
    memory_bytes: int
    descriptors: int
    threads: int
    spill_files: int


@dataclass(frozen=True, slots=True)
class Watched:
    """One resource that may not grow, and its tolerance."""

    name: str
    of: Callable[[Held], float]
    may_grow: float
    may_grow_share: float = 0.0
    may_grow_a_minute: float | None = None

    def allowed(self, before: float) -> float:
        """Return the largest value that is no growth from `before`."""
        return before * (1 + self.may_grow_share) + self.may_grow


WATCHED = (
    # The allocator retains the memory of the largest transaction so far; a leak is beyond that.
    Watched("RSS MiB", lambda held: held.memory_bytes / MIB, 12, 0.05, 1.0),
    # A session that is being opened has a few connections and threads more, or fewer, than one that streams.
    Watched("descriptors", lambda held: held.descriptors, 8),
    Watched("threads", lambda held: held.threads, 6),
    Watched("spill files", lambda held: held.spill_files, 8),
)


def held_by(pid: int, spill_folder: Path) -> Held | None:
    """Return the resources of the process now; None if it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        pages = int((process / "statm").read_text().split()[1])
        descriptors, threads = len(os.listdir(process / "fd")), len(os.listdir(process / "task"))
    except (OSError, IndexError):
        return None
    files = sum(len(names) for _, _, names in os.walk(spill_folder))
    return Held(time.monotonic(), pages * os.sysconf("SC_PAGE_SIZE"), descriptors, threads, files)


class Watch:
    """Samples one process until the context manager exits."""

    def __init__(self, pid: int, spill_folder: Path) -> None:
        self.samples: list[Held] = []
        self._pid, self._folder = pid, spill_folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            if (held := held_by(self._pid, self._folder)) is not None:
                self.samples.append(held)
            if self._is_over.wait(INTERVAL_S):
                return


def median(samples: Sequence[Held], of: Callable[[Held], float], begin: float, end: float) -> float:
    """Return the median between two fractions of the time."""
    first_s, length_s = samples[0].at_s, samples[-1].at_s - samples[0].at_s
    begin_s, end_s = first_s + length_s * begin, first_s + length_s * end
    return statistics.median(of(held) for held in samples if begin_s <= held.at_s <= end_s)


def medians(samples: Sequence[Held], of: Callable[[Held], float]) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter of the time."""
    return median(samples, of, 0.25, 0.5), median(samples, of, 0.75, 1)


def a_minute(samples: Sequence[Held], of: Callable[[Held], float]) -> float:
    """Return the median growth per minute from one sixth of the second half to the next; 0 in a short run.

    The median, because a transaction larger than all before it makes one step, a leak one after another.
    """
    part_s = (samples[-1].at_s - samples[0].at_s) / 2 / PARTS
    if part_s < PART_S:
        return 0.0
    edges = [0.5 + 0.5 * number / PARTS for number in range(PARTS + 1)]
    of_parts = [median(samples, of, begin, end) for begin, end in pairwise(edges)]
    return statistics.median(after - before for before, after in pairwise(of_parts)) / part_s * 60


def grown(samples: Sequence[Held]) -> list[str]:
    """Return a sentence for each resource that grew beyond its tolerance."""
    found = []
    for one in WATCHED:
        before, after = medians(samples, one.of)
        if after > one.allowed(before):
            found.append(
                f"{one.name} grew from {before:.1f} to {after:.1f}, allowed {one.allowed(before):.1f}"
            )
        pace = a_minute(samples, one.of)
        if one.may_grow_a_minute is not None and pace > one.may_grow_a_minute:
            found.append(
                f"{one.name} grew by {pace:.2f} a minute until the end, allowed {one.may_grow_a_minute:.2f}"
            )
    return found


def per_hour(samples: Sequence[Held], of: Callable[[Held], float]) -> float:
    """Return the slope of the regression line through the second half of the time, per hour."""
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    later = [held for held in samples if held.at_s >= middle_s]
    times = [held.at_s for held in later]
    if len(set(times)) < 2:
        return 0.0
    return statistics.linear_regression(times, [of(held) for held in later]).slope * 3600


def table(samples: Sequence[Held]) -> str:
    """Return a table: first, last and largest value, the two medians, the slope and the growth per minute."""
    lines = [
        f"{'':12}{'first':>9}{'last':>9}{'max':>9}{'2nd qtr':>9}{'4th qtr':>9}{'allowed':>9}{'per hour':>10}"
        f"{'a minute':>10}"
    ]
    for one in WATCHED:
        values = [one.of(held) for held in samples]
        before, after = medians(samples, one.of)
        numbers = (values[0], values[-1], max(values), before, after, one.allowed(before))
        slope = per_hour(samples, one.of)
        cells = "".join(f"{number:9.1f}" for number in numbers)
        lines.append(f"{one.name:12}{cells}{slope:+10.1f}{a_minute(samples, one.of):+10.2f}")
    return "\n".join(lines)
