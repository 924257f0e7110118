"""`make faults`: random faults under load, judged block by block. `python -m tests.faults --rounds 1000 --seed 7`.

Without --rounds, a fixed selection runs: simulations, every failpoint, the oracle's planted bugs, kills during
snapshots on three versions, some random rounds.
`--few` is the part of it that `.ci/run` adds to the suite: the files of `ALONE`, failpoints under two loads.
The suite has simulations of the first seeds, and other tests of several brokers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.facts import Finding
from tests.faults.rounds import begin, one_block, summary
from tests.faults.strikes import Scene
from tests.faults.test_fault_01_failpoints import ALL_LOADS, FEW_LOADS, test_every_crash_point
from tests.faults.world import World
from tests.support.doors import KafkaDoors, registry_through, through
from tests.support.forked import Forks
from tests.support.proxy import Proxy

FIXED_ROUNDS = 40
FIXED_SEED = 1
SIMULATIONS = {
    "tests.simulator": 2000,
    "tests.simulator.initial": 1000,
    "tests.simulator.incremental": 10_000,
}
"""How many seeds of each model are run."""
WAL_SENDER_TIMEOUT_S = 10
ALONE = [
    "tests/faults/test_fault_01_failpoints.py",
    "tests/faults/test_fault_02_random_kills.py",
    "tests/faults/test_fault_36_late_requests.py",
    "tests/faults/test_oracle.py",
]
"""The fault tests that use the oracle. `make test` leaves these files out, `make nightly` does not."""
SNAPSHOT_KILLS = ["tests/faults/test_fault_02_snapshot_kills.py"]
"""Completely only here: `make test` runs one case of it."""


def main() -> int:
    """Run what the arguments select. Return 1 if the oracle found anything."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=0, help="run this number of random faults only")
    parser.add_argument("--seed", type=int, default=FIXED_SEED, help="seed of the faults and the load")
    parser.add_argument("--block", type=int, default=50, help="number of faults in a block")
    parser.add_argument("--major", type=int, default=18, help="PostgreSQL's major version")
    parser.add_argument("--delivery", choices=("exactly_once", "at_least_once"), default="exactly_once")
    parser.add_argument("--reports", type=Path, help="a folder for JUnit reports of the fault tests")
    parser.add_argument("--few", action="store_true", help="the short selection of .ci/run")
    options = parser.parse_args()
    if options.few:
        return fault_tests(options.reports, FEW_LOADS, few=True)
    if options.rounds:
        return rounds(options.rounds, options.seed, options.block, options.major, options.delivery)
    if code := simulations() or fault_tests(options.reports) or snapshot_kills(options.reports):
        return code
    return rounds(FIXED_ROUNDS, options.seed, options.block, options.major)


def simulations() -> int:
    """Run the simulations of the core, on a virtual clock. Return their highest exit status."""
    begun_s = time.monotonic()
    code = max(
        subprocess.call([sys.executable, "-m", module, "--count", str(count)])
        for module, count in SIMULATIONS.items()
    )
    print(f"simulations: {time.monotonic() - begun_s:.0f} s", flush=True)
    return code


def fault_tests(reports: Path | None = None, loads: Sequence[str] = ALL_LOADS, *, few: bool = False) -> int:
    """Run the files of `ALONE` in parallel; return the highest exit status.

    Their output is printed when all have ended, that of failed files last. `reports`: a folder for JUnit reports.
    `few`: without the cases that are marked `nightly`.
    """
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        running = []
        for number, test in enumerate(selected(loads)):
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = pytest_command([test], reports, f"faults-{number}")
            command += [] if few else ["-m", "not long"]
            running.append((subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output))
        ended = [(abs(process.wait()), output) for process, output in running]
        for _, output in sorted(ended, key=lambda one: one[0]):
            output.seek(0)
            print(output.read(), flush=True)
        code = max(code for code, _ in ended)
    print(f"fault tests: {time.monotonic() - begun_s:.0f} s", flush=True)
    return code


def snapshot_kills(reports: Path | None = None) -> int:
    """Run all kills of snapshots, on each version; return the exit status. Their moments need a quiet machine."""
    begun_s = time.monotonic()
    command = pytest_command(SNAPSHOT_KILLS, reports, "snapshot-kills")
    code = subprocess.call([*command, "-m", "long or not long"])
    print(f"kills of snapshots: {time.monotonic() - begun_s:.0f} s", flush=True)
    return code


def pytest_command(tests: Sequence[str], reports: Path | None, name: str) -> list[str]:
    """Return the command that runs tests, with a JUnit report of this name if there is a folder for it."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *tests]
    return command if reports is None else [*command, f"--junitxml={reports / f'{name}.xml'}"]


def selected(loads: Sequence[str]) -> list[str]:
    """Return what runs in one process each: each file of `ALONE`, that of the failpoints once for each load."""
    failpoints, *others = ALONE
    return [f"{failpoints}::{test_every_crash_point.__name__}[{load}]" for load in loads] + others


def rounds(count: int, seed: int, block: int, major: int, delivery: str = "exactly_once") -> int:
    """Inject `count` faults, block by block. Return 1 at the first block with findings."""
    struck: Counter[str] = Counter()
    findings: list[Finding] = []
    begun_s = time.monotonic()
    with scene_of(seed, major, delivery) as scene, Forks() as forks:
        world = scene.world
        world.daemon.spawn = forks.spawn
        begin(scene, seed)
        while (left := count - struck.total()) > 0 and not findings:
            findings = one_block(scene, struck, min(block, left))
            judged = world.last_block
            print(
                f"round {struck.total()}: {len(judged.transactions)} transactions, {len(judged.events)} records,"
                f" {len(judged.samples)} samples, caught up in {judged.caught_up_s} s, {len(findings)} findings,"
                f" {time.monotonic() - begun_s:.0f} s"
                if judged is not None
                else f"round {struck.total()}: not judged",
                flush=True,
            )
        if findings:
            print(world.daemon.log()[-6000:], file=sys.stderr)
    print(summary(world, struck, findings, time.monotonic() - begun_s, seed))
    for one in findings[:40]:
        print(one)
    if findings:
        print(f'to repeat: make faults ROUNDS={count} SEED={seed} ARGS="--delivery {delivery}"')
    return 1 if findings else 0


@contextlib.contextmanager
def scene_of(seed: int, major: int, delivery: str = "exactly_once") -> Iterator[Scene]:
    """Yield a scene: new servers, proxies in front of the servers, and a world that connects through the proxies."""
    cache, account = Cache(), server_account()
    folder = make_run_folder("cdcd-faults-", account)
    settings = {"logical_decoding_work_mem": "64kB", "wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_S}s"}
    kafka = KafkaCluster(folder / "kafka", cache=cache)
    doors = KafkaDoors(kafka, keeps_requests=True)
    server = PostgresServer(major, programs_from_npm(major, cache), folder / "postgres", settings=settings)
    registry = SchemaRegistry(folder / "registry", cache=cache)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(doors)
        for one in (kafka, registry, server):
            stack.enter_context(one)
        to_postgres = stack.enter_context(Proxy(server.port))
        to_registry = stack.enter_context(Proxy(registry.port))
        server.create_database("shop")
        world = World(
            folder / "cdcd",
            f"faults{os.getpid()}",
            server,
            "shop",
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            daemon_dsn=through(server.dsn("shop"), server, to_postgres),
            daemon_bootstrap=doors.bootstrap,
            daemon_registry_url=registry_through(registry, to_registry),
            sink={"delivery": delivery, "topics": {"partitions": 2, "replication_factor": 3}},
            buffer={"memory": "1MiB", "spill_dir": str(folder / "spill")},
        )
        stack.enter_context(world)
        dice = random.Random(seed)
        yield Scene(
            world, kafka, registry, doors, to_postgres, to_registry, dice, float(WAL_SENDER_TIMEOUT_S)
        )


if __name__ == "__main__":
    sys.exit(main())
