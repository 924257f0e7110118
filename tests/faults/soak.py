"""`make soak`: continuous faults, and the resources of the daemon meanwhile (fault 35).

`python -m tests.faults.soak --minutes 60 --seed 7`: each minute is a block that the oracle judges. The run fails if
the oracle finds anything, if the process ends, or if memory, descriptors, threads or spill files grow.
The process is never killed here: a new process would start without the leaks of the old one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg2

from tests.faults.__main__ import scene_of
from tests.faults.facts import Finding
from tests.faults.strikes import (
    Scene,
    broker_killed,
    cut,
    cut_in_the_middle,
    frozen,
    held,
    postgres_crashed,
    postgres_restarted,
    refused,
    walsender_ended,
)
from tests.faults.watched import Watch, grown, table
from tests.faults.workload import EVERYTHING

BLOCK_S = 60.0


def main() -> int:
    """Run with the given arguments. Return 1 if the oracle found anything or a resource grew."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="duration of the run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and the load")
    parser.add_argument("--major", type=int, default=18, help="PostgreSQL's major version")
    options = parser.parse_args()
    return soak(options.minutes, options.seed, options.major)


def broker_frozen(scene: Scene) -> bool:
    """SIGSTOP one of the three brokers for a while."""
    pid = scene.dice.choice(scene.kafka.brokers).pid
    if pid is None:
        return False
    os.kill(pid, signal.SIGSTOP)
    time.sleep(scene.dice.uniform(0.2, 1.5))
    os.kill(pid, signal.SIGCONT)
    return True


def asked_to_look(scene: Scene) -> bool:
    """SIGHUP, which has an effect in a halted or waiting daemon only."""
    if scene.pid is None:
        return False
    scene.world.daemon.reload()
    return True


STRIKES: dict[Callable[[Scene], bool], int] = {
    walsender_ended: 20,
    cut: 20,
    cut_in_the_middle: 15,
    held: 15,
    refused: 10,
    frozen: 10,
    broker_frozen: 10,
    asked_to_look: 5,
    postgres_crashed: 2,
    postgres_restarted: 1,
    broker_killed: 1,
}
"""The relative frequency of each fault."""


def soak(minutes: float, seed: int, major: int = 18) -> int:
    """Inject faults for some minutes and print a table of the resources. Return 1 for findings or growth."""
    struck: Counter[str] = Counter()
    findings: list[Finding] = []
    with scene_of(seed, major) as scene:
        world = scene.world
        world.fill(str(seed))
        world.daemon.start().wait_state("streaming")
        pid = scene.pid
        assert pid is not None
        world.write(str(seed), 2, kinds=EVERYTHING, big_rows=500, pause_s=0.03)
        with Watch(pid, Path(world.daemon.config["buffer"]["spill_dir"])) as watch:
            end_s = time.monotonic() + minutes * 60
            while time.monotonic() < end_s and not findings:
                findings = _block(scene, min(end_s, time.monotonic() + BLOCK_S), struck)
                _print_line(scene, watch, findings)
                world.go_on()
        if scene.pid != pid:
            findings.append(Finding("k", "the watched process has ended"))
        if findings:
            print(world.daemon.log()[-6000:], file=sys.stderr)
    print(f"struck: {', '.join(f'{name} {times}' for name, times in struck.most_common())}")
    print(table(watch.samples))
    found = [str(one) for one in findings[:40]] + grown(watch.samples)
    print(
        f"{minutes:g} minutes, {sum(struck.values())} faults struck, {world.transactions} transactions,"
        f" {world.records} records, {len(watch.samples)} samples of the process, {len(findings)} findings,"
        f" {len(found) - len(findings[:40])} grew; seed {seed}"
    )
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def _block(scene: Scene, end_s: float, struck: Counter[str]) -> list[Finding]:
    while time.monotonic() < end_s:
        time.sleep(scene.dice.expovariate(1.0))
        chosen = scene.dice.choices(list(STRIKES), list(STRIKES.values()))[0]
        try:
            struck[chosen.__name__] += chosen(scene)
        except psycopg2.OperationalError:
            continue  # the server has not restarted yet after the fault before
    for link in scene.links():
        link.heal()
    return scene.world.judge()


def _print_line(scene: Scene, watch: Watch, findings: list[Finding]) -> None:
    now, block = watch.samples[-1], scene.world.last_block
    print(
        f"{(now.at_s - watch.samples[0].at_s) / 60:6.1f} min: {now.memory_bytes >> 20} MiB,"
        f" {now.descriptors} descriptors, {now.threads} threads, {now.spill_files} spill files;"
        f" {len(block.events) if block else 0} records, caught up in"
        f" {block.caught_up_s if block and block.caught_up_s is not None else -1:.1f} s, {len(findings)} findings",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
