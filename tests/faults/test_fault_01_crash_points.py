"""cdcd ends at every named place, in three kinds of load, and comes back: fault 1. A place not reached fails.

Each load has one database: the daemon is started with one place after another, each start takes up what the crash
before left, and the oracle judges all of it at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdcd.crash_points import EXIT_STATUS, PLACES, VARIABLE
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.world import World
from tests.support.stack import drop_database, new_database_name

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
            f"crash{load}{os.getpid()}",
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


@pytest.mark.parametrize("load", LOADS)
def test_every_crash_point(
    load: str,
    tmp_path: Path,
    postgres: PostgresServer,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    kinds, big_rows, _ = LOADS[load]
    postgres.start()
    with world_of(load, tmp_path, postgres, kafka, registry) as world:
        world.fill(load)
        begun_s = time.monotonic()
        for number, place in enumerate(PLACES):
            if place == "received":
                world.write(load, 2, kinds=kinds, big_rows=big_rows, pause_s=0.3)
            # Once at the first time, and once later, where more has happened before.
            reached(world, place if number % 2 else f"{place}:2" if place not in ONCE else place)
        world.daemon.environment = {}
        world.daemon.start()
        findings = world.judge()
        took_s = time.monotonic() - begun_s
        assert world.daemon.stop() == 0
    print(f"{load}: {world.transactions} transactions, {world.changes} changes, {took_s:.0f} s")
    assert [str(one) for one in findings] == []


ONCE = {"snapshot_begun", "slot_made", "snapshot_copied"}
"""Places that one run of the process comes by once."""


def reached(world: World, at: str) -> None:
    """The daemon ends there, and nowhere else."""
    world.daemon.environment = {VARIABLE: at}
    assert world.daemon.start().wait_exit(DEADLINE_S) == EXIT_STATUS, world.daemon.log()[-2000:]
    print(f"{world.daemon.name:22} {at:20} {PLACES[at.partition(':')[0]]}")
