"""cdcd ends at every named place, in three kinds of load, and comes back: fault 1. A place not reached fails.

Each load has one database: the daemon is started with one place after another, each start takes up what the crash
before left, and the oracle judges all of it at the end.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdcd.crash_points import EXIT_STATUS, PLACES, VARIABLE
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.truth import SAY, SAY_NOTHING
from tests.faults.world import World
from tests.support.stack import drop_database, new_database_name, run_script

STREAMED = "?options=-c%20debug_logical_replication_streaming%3Dimmediate"
LOADS: dict[str, tuple[dict[str, int], int, dict[str, Any]]] = {
    "small": ({"small": 20, "savepoints": 4, "aborted": 2, "big": 2}, 800, {}),
    "streamed": ({"big": 1, "small": 2, "copied": 1}, 1200, {}),
    "mixed": (
        {"small": 8, "prepared": 4, "savepoints": 4, "altered": 2, "emptied": 1, "big": 2},
        800,
        {"protocol": {"two_phase": True}},
    ),
}
"""What the sessions do, the rows of a large transaction, and cdcd's options under `source`."""
DEADLINE_S = 60.0


@contextmanager
def world_of(
    load: str, folder: Path, postgres: PostgresServer, kafka: KafkaBroker, registry: SchemaRegistry
) -> Iterator[World]:
    database = new_database_name()
    postgres.create_database(database)
    try:
        with World(
            folder,
            f"crash{database}",
            postgres,
            database,
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            buffer={"memory": "64KiB", "spill_dir": str(folder / "spill")},
            source=LOADS[load][2],
        ) as world:
            world.daemon.config["source"]["dsn"] += STREAMED
            yield world
    finally:
        drop_database(postgres, database)


Crashing = Callable[[str], AbstractContextManager[World]]


@pytest.fixture
def crashing(
    tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker, registry: SchemaRegistry
) -> Crashing:
    """`crashing(load)`: a database of its own for this load."""
    postgres.start()
    return lambda load: world_of(load, tmp_path / new_database_name(), postgres, kafka, registry)


@pytest.fixture(scope="module")
def hits() -> Iterator[Counter[tuple[str, str]]]:
    """How often cdcd has ended at a place in a load; printed as a table."""
    counted: Counter[tuple[str, str]] = Counter()
    yield counted
    loads = [load for load in LOADS if any(load == one for _, one in counted)]
    print("\n" + "place".ljust(20), *(load.rjust(8) for load in loads))
    for place, what in PLACES.items():
        print(place.ljust(20), *(str(counted[place, load]).rjust(8) for load in loads), f"  {what}")


@pytest.mark.parametrize("load", LOADS)
def test_every_crash_point(load: str, crashing: Crashing, hits: Counter[tuple[str, str]]) -> None:
    begun_s = time.monotonic()
    with crashing(load) as world:
        for place in crashes(world, load):
            hits[place, load] += 1
        findings = judged(world)
        assert world.daemon.stop() == 0
    took_s = time.monotonic() - begun_s
    print(f"{load}: {world.transactions} transactions, {world.changes} changes, {took_s:.0f} s")
    if findings:
        with crashing(load) as world:
            findings = [f"{guilty(world, load)}: first seen behind this place", *findings]
    assert findings == []


ONCE = {"schema_level_set", "snapshot_begun", "slot_made", "snapshot_copied"}
"""Places that one run of the process may come by only once."""


def crashes(world: World, load: str) -> Iterator[str]:
    """One place after another, at which the daemon has ended, by the first or the second time it was there."""
    kinds, big_rows, _ = LOADS[load]
    world.fill(load)
    for number, place in enumerate(PLACES):
        if place == "received":
            run_script(world.dsn, SAY_NOTHING)
            world.write(load, 2, kinds=kinds, big_rows=big_rows, pause_s=0.3)
        if place == "produced":
            run_script(world.dsn, SAY)
        at = place if number % 2 or place in ONCE else f"{place}:2"
        world.daemon.environment = {VARIABLE: at}
        try:
            status: int | None = world.daemon.start().wait_exit(DEADLINE_S)
        except subprocess.TimeoutExpired:
            status = None
        done = {writer.name: dict(writer.done) for writer in world.writers}
        assert status == EXIT_STATUS, f"{at}: ended with {status}, {done}:\n{world.daemon.log()[-2000:]}"
        yield place


def judged(world: World) -> list[str]:
    """What the oracle says when the daemon has gone on without a crash."""
    world.daemon.environment = {}
    world.daemon.start()
    return [str(one) for one in world.judge()]


def guilty(world: World, load: str) -> str:
    """The same once more, judged behind each place: the first one with findings."""
    for place in crashes(world, load):
        if judged(world):
            return place
        assert world.daemon.stop() == 0
        world.go_on()
    return "no place alone"
