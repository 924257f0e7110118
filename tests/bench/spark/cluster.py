"""`make bench-spark ARGS="--cluster --rows N --rounds N"`: a backlog read on Spark's standalone cluster.

In: a number of rows, a number of rounds.  Out: the time and the rows per second of one and of two workers, with one
core each, in turns; then a read in which one of two workers is killed. After each read the rows are compared with
what was written: each one once. Any other result is an error.
The backlog is written once, below TMPDIR: about 80 bytes of disk a row, and as much again for the rows of a read.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.registry import SchemaRegistry
from tests.bench.spark.backlog import Backlog, Writer
from tests.bench.spark.kafka import LARGE_JVM
from tests.bench.spark.outcome import ids_of
from tests.bench.usage import processes_below
from tests.support.spark_cluster import ROOT, SparkCluster
from tests.support.waiting import eventually

PROGRAM = ROOT / "tests" / "bench" / "spark" / "reading.py"
WORKERS = (1, 2)
BATCHES = 10
TASKS = 4
KILLED_AFTER = 2
"""The worker is killed after this number of batches, in the one that follows."""
DEADLINE_S = 3600


def by_cluster(rows: int, rounds: int) -> int:
    """Print the rates of the workers, and what a kill changes."""
    cache = Cache()
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache, jvm_flags=LARGE_JVM) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
    ):
        begun_s = time.monotonic()
        backlog = Writer(kafka.bootstrap, registry.url).write(rows)
        print(
            f"{rows} rows written in {time.monotonic() - begun_s:.0f} s, {_size_mb(Path(folder))} MB",
            flush=True,
        )
        found: dict[int, list[float]] = {workers: [] for workers in WORKERS}
        for _ in range(rounds):
            for workers in WORKERS:
                found[workers].append(read(backlog, Path(folder, "read"), workers))
        print_rates(found, rows)
        read(backlog, Path(folder, "read"), 2, kills_one=True)
    return 0


def print_rates(found: dict[int, list[float]], rows: int) -> None:
    """Print the median rate by number of workers."""
    first_s = statistics.median(found[WORKERS[0]])
    print(f"{'workers':>8} {'seconds':>9} {'rows/s':>10} {'speed-up':>9}")
    for workers, times in found.items():
        seconds = statistics.median(times)
        print(f"{workers:8} {seconds:9.1f} {rows / seconds:10,.0f} {first_s / seconds:9.2f}", flush=True)


def read(backlog: Backlog, folder: Path, workers: int, *, kills_one: bool = False) -> float:
    """Read the backlog with a cluster of its own, compare it, and return the seconds of the stream."""
    folder.mkdir()
    options = backlog.options | {"maxRows": str(backlog.rows // BATCHES), "readers": str(TASKS)}
    given = json.dumps({"options": options, "folder": str(folder)})
    with SparkCluster(folder / "cluster", workers=workers) as cluster, ThreadPoolExecutor(1) as pool:
        program = cluster.submit(PROGRAM, [given])
        output = pool.submit(program.communicate, timeout=DEADLINE_S)
        try:
            if kills_one:
                _kill_in_the_middle(program, cluster.workers[0], folder)
            text, _ = output.result()
        finally:
            program.kill()
    assert program.returncode == 0, text[-4000:]
    done: dict[str, Any] = json.loads((folder / "done.json").read_text())
    ids_of(done["files"]).check(backlog.rows)
    what = f", one killed after batch {KILLED_AFTER} of {done['batches']}" if kills_one else ""
    print(f"{workers} workers{what}: {done['s']:.1f} s, {backlog.rows} rows, each once", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return float(done["s"])


def _kill_in_the_middle(program: subprocess.Popen[str], worker: ServerProcess, folder: Path) -> None:
    """SIGKILL a worker with its executor and its Python processes, while the tasks of a batch write."""
    committed = folder / "checkpoint" / "commits" / str(KILLED_AFTER - 1)

    def has_reached(files: int) -> bool:
        assert program.poll() is None, "the program has ended before the kill"
        return committed.exists() and _count(folder) > files

    eventually(lambda: has_reached(0), "a batch in the middle is committed", DEADLINE_S)
    files = _count(folder)
    eventually(lambda: has_reached(files), "the tasks of the next batch write", DEADLINE_S)
    below = list(processes_below(worker.pid))
    worker.send(signal.SIGKILL)
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _count(folder: Path) -> int:
    return sum(1 for _ in (folder / "rows").glob("*.parquet"))


def _size_mb(folder: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in folder.rglob("*") if one.is_file()) >> 20
