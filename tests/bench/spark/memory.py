"""`make bench-spark ARGS="--memory --rows N"`: the peak memory of Spark's Python workers while a backlog is read.

In: a number of rows.  Out: a line for each part of Spark and each of three runs: a tenth of the rows, all of them,
and all of them with one row of 50 MB. Exit status 1 if a worker needs more than its limit, or grows with the backlog.
Each run has a new Spark. A stream reads both tables with the option table, with several micro-batches, into Parquet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.bench.spark.backlog import Backlog, Writer
from tests.bench.spark.outcome import ids_of, longest_of
from tests.bench.spark.workers import PythonWorkers

LIMIT_BYTES = 300 << 20
"""Of each worker, apart from what a large row needs."""
LARGE_BYTES = 50_000_000
LARGE_COPIES = 4
"""The memory for a large row, as a multiple of its size."""
GROWTH_BYTES = 40 << 20
"""How much more a worker may need for ten times the rows: buffers that are not full in a short run."""
ROWS_OF_A_COMMIT = 2000
BATCHES = 5
ROOMY_JVM = ("-Xmx1500m", "-Xshare:auto")
Peaks = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Run:
    """One read of a backlog. `large_bytes`: the size of its largest row."""

    name: str
    rows: int
    peaks: Peaks
    large_bytes: int = 0

    @property
    def limit_bytes(self) -> int:
        """What each worker may need."""
        return LIMIT_BYTES + LARGE_COPIES * self.large_bytes


def by_memory(rows: int) -> int:
    """Read the backlogs, print the peaks; return 1 if one is above its limit."""
    cache = Cache()
    runs: list[Run] = []
    with (
        TemporaryDirectory() as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache, jvm_flags=ROOMY_JVM) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
    ):
        writer = Writer(kafka.bootstrap, registry.url, rows_of_a_commit=ROWS_OF_A_COMMIT)
        runs = []
        for name, more, large_bytes in (
            ("a tenth", rows // 10, 0),
            ("all", rows - rows // 10, 0),
            ("all, and 50 MB", 1, LARGE_BYTES),
        ):
            begun_s = time.monotonic()
            backlog = writer.write(more, large_bytes=large_bytes)
            print(
                f"{backlog.rows} rows written, {backlog.commits} commits, {time.monotonic() - begun_s:.0f} s"
            )
            peaks = measured(backlog, Path(folder, f"read-{len(runs)}"), rows // BATCHES, large_bytes)
            runs.append(Run(name, backlog.rows, peaks, large_bytes))
            print_run(runs[-1])
    found = findings(runs)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def measured(backlog: Backlog, folder: Path, max_rows: int, large_bytes: int) -> Peaks:
    """Read a backlog with a Spark of its own, compare what it has read, and return the peaks of its workers."""
    folder.mkdir()
    given = {"options": backlog.options | {"maxRows": str(max_rows)}, "folder": str(folder)}
    command = [sys.executable, "-m", "tests.bench.spark.reading", json.dumps(given)]
    with PythonWorkers(os.getpid()) as workers:
        subprocess.run(command, check=True)
    done = json.loads((folder / "done.json").read_text())
    ids_of(done["files"]).check(backlog.rows)
    if large_bytes:
        assert longest_of(done["files"], "note") == large_bytes, "the large row has another size"
    print(f"{backlog.rows} rows read in {done['batches']} batches, {done['s']:.0f} s, each row once")
    return workers.peaks


def print_run(run: Run) -> None:
    """Print the largest worker of each part."""
    for part, peaks in sorted(run.peaks.items(), key=lambda one: -one[1][0]):
        limit = f"limit {run.limit_bytes >> 20} MB"
        print(
            f"{run.name:15} {part:40} {len(peaks)} workers, at most {peaks[0] >> 20} MB, {limit}", flush=True
        )


def findings(runs: Sequence[Run]) -> list[str]:
    """Return what is above a limit. `runs`: a tenth of the rows, all of them, and with a large row."""
    found = [
        f"{run.name}: a worker of {part} needs {peaks[0] >> 20} MB, more than {run.limit_bytes >> 20} MB"
        for run in runs
        for part, peaks in run.peaks.items()
        if peaks[0] > run.limit_bytes
    ]
    small, whole, large = (run.peaks for run in runs)
    for part in sorted(small.keys() & whole.keys()):
        if whole[part][0] - small[part][0] > GROWTH_BYTES:
            sizes = f"from {small[part][0] >> 20} MB to {whole[part][0] >> 20} MB"
            found.append(f"a worker of {part} grows with the backlog: {sizes}")
    missing = {"tasks", "planner"} - (small.keys() & whole.keys() & large.keys())
    return found + [f"no worker of {part} was seen" for part in sorted(missing)]
