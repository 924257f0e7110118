"""`make faults`: random faults under load, judged block by block. `python -m tests.faults --rounds 1000 --seed 7`.

Without --rounds: the fixed selection: simulations, every crash point, and some random rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.facts import Finding
from tests.faults.strikes import Scene, strike
from tests.faults.workload import EVERYTHING
from tests.faults.world import World
from tests.support.doors import KafkaDoors, registry_through, through
from tests.support.proxy import Proxy

FIXED_ROUNDS = 40
FIXED_SEED = 1
KINDS = {
    "lost": "a", "invented": "b", "repeated": "c", "reordered": "d", "torn": "e", "fold": "f", "altered": "g",
    "schema": "h", "confirmed early": "i", "snapshot": "j", "not caught up": "k",
}  # fmt: skip
"""What the last line calls the oracle's assertions."""


def main() -> int:
    """Do what is asked; 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=0, help="so many random faults, and nothing else")
    parser.add_argument("--seed", type=int, default=FIXED_SEED, help="of faults and load")
    parser.add_argument("--block", type=int, default=20, help="judge after so many faults")
    parser.add_argument("--major", type=int, default=18, help="of PostgreSQL")
    options = parser.parse_args()
    if options.rounds:
        return rounds(options.rounds, options.seed, options.block, options.major)
    for command in (["tests.simulator", "--count", "500"], ["pytest", "-q", "-s", "tests/faults"]):
        if code := subprocess.call([sys.executable, "-m", *command]):
            return code
    return rounds(FIXED_ROUNDS, options.seed, options.block, options.major)


def rounds(count: int, seed: int, block: int, major: int) -> int:
    """Random faults; 1 at the first block with findings."""
    struck: Counter[str] = Counter()
    findings: list[Finding] = []
    begun_s, done = time.monotonic(), 0
    with scene_of(seed, major) as scene:
        world = scene.world
        world.fill(str(seed))
        world.daemon.start().wait_state("streaming")
        world.write(str(seed), 2, kinds=EVERYTHING, big_rows=500, pause_s=0.03)
        while done < count and not findings:
            for _ in range(min(block, count - done)):
                name, is_real = strike(scene)
                struck[name] += is_real
                done += 1
            for link in scene.links():
                link.heal()
            findings = world.judge()
            judged = world.last_block
            print(
                f"round {done}: {len(judged.transactions) if judged else 0} transactions,"
                f" {len(judged.events) if judged else 0} records, {len(judged.samples) if judged else 0} samples,"
                f" caught up in {judged.caught_up_s if judged else None} s, {len(findings)} findings",
                flush=True,
            )
            world.go_on()
        if findings:
            print(world.daemon.log()[-6000:], file=sys.stderr)
    took_s = time.monotonic() - begun_s
    print(f"struck: {', '.join(f'{name} {times}' for name, times in struck.most_common())}")
    letters = Counter(one.assertion for one in findings)
    print(
        f"{done} rounds, {sum(struck.values())} faults struck, {world.transactions} transactions,"
        f" {world.changes} changes, {world.records} records, {world.sampler.count} samples, {took_s:.0f} s:"
        f" {', '.join(f'{name} {letters[letter]}' for name, letter in KINDS.items())}; seed {seed}"
    )
    for one in findings[:40]:
        print(one)
    if findings:
        print(f"again: python -m tests.faults --rounds {count} --seed {seed}")
    return 1 if findings else 0


@contextlib.contextmanager
def scene_of(seed: int, major: int) -> Iterator[Scene]:
    """Servers of its own, links in front of them, a world behind these."""
    cache, account = Cache(), server_account()
    folder = make_run_folder("cdcd-faults-", account)
    settings = {"logical_decoding_work_mem": "64kB", "wal_sender_timeout": "10s"}
    kafka = KafkaCluster(folder / "kafka", cache=cache)
    doors = KafkaDoors(kafka)
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
            sink={"topics": {"partitions": 2, "replication_factor": 3}},
            buffer={"memory": "1MiB", "spill_dir": str(folder / "spill")},
        )
        stack.enter_context(world)
        dice = random.Random(seed)
        yield Scene(world, kafka, registry, doors, to_postgres, to_registry, dice)


if __name__ == "__main__":
    sys.exit(main())
