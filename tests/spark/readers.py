"""`make readers`: mirrors of two tables between which money moves, and readers to whom the total is the same.

`make readers MINUTES=10 SEED=7`: real servers, the real daemon and a mirror for each format, which are killed now and
then, sessions that write all the time, and readers that open the mirrors at random moments: cdcd, another Spark,
DuckDB, delta-rs, PyIceberg. In the end what each of them reads is compared with PostgreSQL's tables. Exit status 1
for a violation.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cdcd.spark.reading.mirror import wait
from cdcd.spark.session import session
from cdcd.spark.target.versions import TABLE_FORMATS
from tests.faults.transfers import TransferWorld
from tests.spark.consistent_readers import Reader, has_tables, readers_of
from tests.spark.cuts import WRITERS, Kills, world_of
from tests.support.stack import confirmed_position
from tests.support.waiting import eventually

MEAN_LIFE_S = 60.0
"""Of a mirror's process, until it is killed."""
MIRRORED_WITHIN_S = 180
LOOK_AGAIN_S = 1.0


class MirrorProcess(threading.Thread):
    """`python -m cdcd.spark mirror`, which is killed at random moments and started again, until `stop`."""

    def __init__(self, world: TransferWorld, folder: Path, table_format: str, dice: random.Random) -> None:
        super().__init__(name=f"mirror {table_format}", daemon=True)
        self.target, self.table_format = str(folder / table_format), table_format
        self._command = [sys.executable, "-m", "cdcd.spark", "mirror", "--target", self.target]
        config = (
            folder / f"{table_format}.yaml"
        )  # the daemon's own file is written again at each of its starts
        shutil.copy(world.daemon.config_path, config)
        self._command += ["--config", str(config), "--format", table_format]
        self._command += ["--trigger-ms", "20", "--on-error", "fail"]
        self._log = folder / f"{table_format}.log"
        self._dice, self._over = dice, threading.Event()
        self._process = self._spawned()
        self.kills = 0
        self.failure: str | None = None

    def _spawned(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def is_loaded(self) -> bool:
        """Return whether the mirror has both tables."""
        assert self._process.poll() is None, f"{self.name} has ended: {self._log.read_text()[-4000:]}"
        return has_tables(self.target)

    def run(self) -> None:
        """Kill the process until `stop`; one that ends by itself is a failure."""
        kill_s = self._next_kill_s()
        while not self._over.wait(LOOK_AGAIN_S):
            if self._process.poll() is not None:
                self.failure = f"{self.name} has ended: {self._log.read_text()[-4000:]}"
                return
            if time.monotonic() < kill_s:
                continue
            self._kill()
            self._process = self._spawned()
            self.kills += 1
            kill_s = self._next_kill_s()

    def _next_kill_s(self) -> float:
        return time.monotonic() + self._dice.expovariate(1 / MEAN_LIFE_S)

    def rest(self) -> None:
        """End the kills; the mirror goes on. Raise its error."""
        self._over.set()
        self.join()
        assert self.failure is None, self.failure

    def stop(self) -> None:
        """End the thread and the process."""
        self._over.set()
        if self.is_alive():
            self.join()
        self._kill()

    def _kill(self) -> None:
        """SIGKILL the process and its JVM."""
        with contextlib.suppress(ProcessLookupError):
            subprocess.run(["pkill", "-KILL", "-s", str(self._process.pid)], check=False)
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def main() -> int:
    """Run with the given arguments. Return 1 for a violation."""
    parser = argparse.ArgumentParser(prog="make readers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="duration of the run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the writers, the kills and the readers")
    parser.add_argument("--major", type=int, default=18, help="PostgreSQL's major version")
    options = parser.parse_args()
    with world_of(options.major) as (world, folder):
        return proof(world, folder, options.minutes, options.seed)


def proof(world: TransferWorld, folder: Path, minutes: float, seed: int) -> int:
    """Run for some minutes; print what was read, and each violation."""
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        world.daemon.start().wait_state("streaming")
        spark = session("cdcd readers", "1")
        stack.callback(spark.stop)
        mirrors = _mirrors(stack, world, folder, seed)
        readers = [
            reader for one in mirrors for reader in readers_of(one.target, one.table_format, spark, f"{seed}")
        ]
        world.move_money(str(seed), WRITERS)
        kills = Kills(world, random.Random(seed))
        for thread in (kills, *mirrors, *readers):
            thread.start()
        _watch(readers, mirrors, begun_s, begun_s + minutes * 60)
        kills.stop()
        for one in mirrors:
            one.rest()
        for reader in readers:
            reader.stop()
        _compare(world, readers)
    print(f"{'reader':20} {'views':>7} {'versions':>9} {'torn pairs':>11} {'violations':>11}")
    for reader in readers:
        counts = f"{reader.views:7} {len(reader.versions):9} {reader.torn:5}/{reader.pairs:<5}"
        print(f"{reader.title:20} {counts} {len(reader.violations):11}")
    killed = ", ".join(f"{one.kills} of the mirror {one.table_format}" for one in mirrors)
    views, took_s = sum(one.views for one in readers), time.monotonic() - begun_s
    print(
        f"{took_s / 60:.1f} minutes: {views} views; {kills.count} kills of the daemon, {killed}; seed {seed}"
    )
    violations = [violation for reader in readers for violation in reader.violations]
    print(*violations[:20], sep="\n", end="\n" if violations else "")
    if not all(reader.torn for reader in readers):
        print("no pair of two versions had another total: this run proves nothing")
        return 1
    return 1 if violations else 0


def _mirrors(
    stack: contextlib.ExitStack, world: TransferWorld, folder: Path, seed: int
) -> list[MirrorProcess]:
    """Return a running mirror of each format, with both tables complete."""
    mirrors = []
    for table_format in TABLE_FORMATS:
        one = MirrorProcess(world, folder, table_format, random.Random(f"{seed}.{table_format}"))
        mirrors.append(one)
        stack.callback(one.stop)
    for one in mirrors:
        eventually(one.is_loaded, f"the {one.name} has both tables", deadline_s=MIRRORED_WITHIN_S)
    return mirrors


def _watch(readers: Sequence[Reader], mirrors: Sequence[MirrorProcess], begun_s: float, end_s: float) -> None:
    """Print a line each half minute until the end, or until a reader or mirror has ended, or there is a violation."""
    for _ in _each(30.0, end_s):
        views, violations = sum(one.views for one in readers), sum(len(one.violations) for one in readers)
        versions = sum(len(one.versions) for one in readers)
        print(
            f"{(time.monotonic() - begun_s) / 60:6.1f} min: {views} views of {versions} versions,"
            f" {violations} violations",
            flush=True,
        )
        for reader in readers:
            print(*reader.violations[:3], sep="\n", end="\n" if reader.violations else "", flush=True)
        if violations or any(one.failure for one in (*readers, *mirrors)):
            return


def _each(pause_s: float, end_s: float) -> Iterator[None]:
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(pause_s, left_s))
        yield


def _compare(world: TransferWorld, readers: Sequence[Reader]) -> None:
    """Let the writers rest, and compare what each reader has then with PostgreSQL's tables."""
    world.rest()
    if world.caught_up() is None:
        raise AssertionError(f"cdcd has not caught up: {world.halted()}\n{world.daemon.log()[-4000:]}")
    lsn = confirmed_position(world.server, world.daemon.slot)
    expected = world.state()
    for reader in readers:
        wait(reader.target, lsn, timeout_s=MIRRORED_WITHIN_S)
        if (state := reader.look()) != expected:
            other = "all" if state is None else len(state.items() ^ expected.items())
            reader.violations.append(
                f"{reader.title}: at the end {other} amounts are not those of PostgreSQL"
            )


if __name__ == "__main__":
    sys.exit(main())
