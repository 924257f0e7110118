"""`make cuts`: a stream of two tables between which money moves; at each batch's end the total is the same.

`make cuts MINUTES=10 SEED=7`: real servers, the real daemon, which is killed now and then, sessions that write all
the time, and a stream of `format("cdcd")` with small batches: without limits, with maxRows and with maxCommits, in
turns. In the end the folded tables are compared with PostgreSQL's. Exit status 1 for a violation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.session import session
from tests.faults.transfers import TransferWorld
from tests.spark.ledger import Ledger
from tests.spark.ledger_streams import DirectStream, LedgerStream, SparkStream
from tests.support.forked import Forks

LIMITS: tuple[dict[str, str], ...] = ({}, {"maxRows": "100"}, {"maxCommits": "1"})
BATCHES = 25
"""So many batches are read with each of the limits."""
MEAN_LIFE_S = 8.0
"""Of a daemon, until it is killed."""
WRITERS = 3


class Kills(threading.Thread):
    """SIGKILLs the daemon at random moments, and starts it again, until `stop`."""

    def __init__(self, world: TransferWorld, dice: random.Random) -> None:
        super().__init__(name="kills", daemon=True)
        self._world, self._dice = world, dice
        self._over = threading.Event()
        self.count = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Kill until `stop`."""
        try:
            while not self._over.wait(self._dice.expovariate(1 / MEAN_LIFE_S)):
                self._world.daemon.assert_alive()
                self._world.daemon.kill()
                self._world.daemon.start()
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.failure = error

    def stop(self) -> None:
        """End the thread; raise its error."""
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def main() -> int:
    """Run with the given arguments. Return 1 for a violation."""
    parser = argparse.ArgumentParser(prog="make cuts", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="duration of the run")
    parser.add_argument("--seed", type=int, default=1, help="seed of the writers and the kills")
    parser.add_argument("--major", type=int, default=18, help="PostgreSQL's major version")
    parser.add_argument(
        "--direct", action="store_true", help="call the source without Spark: more batches a minute"
    )
    options = parser.parse_args()
    with world_of(options.major) as (world, folder):
        return proof(world, options.minutes, options.seed, None if options.direct else folder / "checkpoint")


def proof(world: TransferWorld, minutes: float, seed: int, checkpoint: Path | None) -> int:
    """Run for some minutes; print what was read, and each violation. `checkpoint` None: without Spark."""
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        world.daemon.start().wait_state("streaming")
        stream = stream_of(stack, world.daemon.config_path, checkpoint)
        world.move_money(str(seed), WRITERS)
        kills = Kills(world, random.Random(seed))
        kills.start()
        end_s = time.monotonic() + minutes * 60
        for limits in itertools.cycle(LIMITS):
            if time.monotonic() >= end_s or stream.ledger.violations:
                break
            with _ending(end_s - time.monotonic()) as stopping:
                stream.read(limits, stopping, BATCHES)
            _print_line(stream.ledger, kills, begun_s)
        kills.stop()
        compare(world, stream)
    done = sum((writer.done for writer in world.writers), start=Counter[str]())
    print("written: " + ", ".join(f"{name} {count}" for name, count in done.most_common()))
    ledger, streamed = stream.ledger, streamed_transactions(world)
    print(
        f"{(time.monotonic() - begun_s) / 60:.1f} minutes: {ledger.batches} batches,"
        f" {ledger.transactions} transactions ({streamed} streamed), {ledger.events} events,"
        f" {kills.count} restarts, {len(ledger.violations)} violations; seed {seed}"
    )
    print(*ledger.violations[:20], sep="\n", end="\n" if ledger.violations else "")
    return 1 if ledger.violations else 0


def stream_of(stack: contextlib.ExitStack, config: Path, checkpoint: Path | None) -> LedgerStream:
    """Return a stream of Spark, or one without it."""
    if checkpoint is None:
        return DirectStream(config)
    spark = session("cdcd cuts", "2")
    stack.callback(spark.stop)
    return SparkStream(spark, config, checkpoint)


def compare(world: TransferWorld, stream: LedgerStream) -> None:
    """Let the writers rest, read what is left, and compare the tables with PostgreSQL's."""
    world.rest()
    if world.caught_up() is None:
        raise AssertionError(f"cdcd has not caught up: {world.halted()}\n{world.daemon.log()[-4000:]}")
    stream.read({})
    if (state := world.state()) != stream.ledger.state:
        other = len(state.items() ^ stream.ledger.state.items())
        stream.ledger.violations.append(f"the end: {other} amounts are not those of PostgreSQL")


def streamed_transactions(world: TransferWorld) -> int:
    """Return how many transactions PostgreSQL has streamed before their end."""
    rows = world.server.execute(
        "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s", world.daemon.slot
    )
    return int(rows[0][0]) if rows else 0


@contextlib.contextmanager
def _ending(after_s: float) -> Iterator[threading.Event]:
    """Yield an event that is set after some seconds."""
    stopping = threading.Event()
    timer = threading.Timer(after_s, stopping.set)
    timer.start()
    try:
        yield stopping
    finally:
        timer.cancel()


def _print_line(ledger: Ledger, kills: Kills, begun_s: float) -> None:
    print(
        f"{(time.monotonic() - begun_s) / 60:6.1f} min: {ledger.batches} batches, {ledger.transactions} transactions,"
        f" {ledger.events} events, {kills.count} restarts, {len(ledger.violations)} violations",
        flush=True,
    )


@contextlib.contextmanager
def world_of(major: int) -> Iterator[tuple[TransferWorld, Path]]:
    """Yield a world with servers of its own, and their folder."""
    cache, account = Cache(), server_account()
    folder = make_run_folder("cdcd-cuts-", account)
    settings = {"logical_decoding_work_mem": "64kB"}
    postgres = PostgresServer(major, programs_from_npm(major, cache), folder / "postgres", settings=settings)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        kafka = stack.enter_context(KafkaBroker(folder / "kafka", cache=cache))
        registry = stack.enter_context(SchemaRegistry(folder / "registry", cache=cache))
        stack.enter_context(postgres)
        postgres.create_database("bank")
        forks = stack.enter_context(Forks())
        world = TransferWorld(
            folder / "cdcd",
            f"cuts{os.getpid()}",
            postgres,
            "bank",
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            sink={"topics": {"partitions": 3}},
        )
        world.daemon.spawn = forks.spawn
        yield stack.enter_context(world), folder


if __name__ == "__main__":
    sys.exit(main())
