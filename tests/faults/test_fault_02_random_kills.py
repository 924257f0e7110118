"""Fault 2: a few random kills, cuts and crashes under load. `make faults ROUNDS=N` runs more of them."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.oracle import Oracle
from tests.faults.plants import row_dropped
from tests.faults.rounds import begin, one_block, summary
from tests.faults.strikes import Scene
from tests.faults.truth import TABLES
from tests.faults.world import World
from tests.support.doors import KafkaDoors, registry_through, through
from tests.support.forked import Forks
from tests.support.nightly import nightly
from tests.support.proxy import Proxy

pytestmark = pytest.mark.own_broker

SMALL_WORK_MEM = "?options=-c%20logical_decoding_work_mem%3D64kB"


@pytest.mark.parametrize(
    ("seed", "delivery", "rounds"),
    [(2, "exactly_once", 6), nightly(2, "exactly_once", 12), nightly(3, "at_least_once", 2)],
)
def test_random_faults_lose_repeat_tear_and_reorder_nothing(
    seed: int,
    delivery: str,
    rounds: int,
    tmp_path: Path,
    postgres: PostgresServer,
    database: str,
    own_kafka_and_doors: tuple[KafkaBroker, KafkaDoors],
    own_registry: SchemaRegistry,
    forks: Forks,
) -> None:
    (kafka, doors), struck = own_kafka_and_doors, Counter[str]()
    kafka.start()
    registry = own_registry
    with (
        Proxy(postgres.port) as to_postgres,
        Proxy(registry.port) as to_registry,
        World(
            tmp_path,
            f"random{os.getpid()}x{seed}x{rounds}",
            postgres,
            database,
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            daemon_dsn=through(postgres.dsn(database), postgres, to_postgres) + SMALL_WORK_MEM,
            daemon_bootstrap=doors.bootstrap,
            daemon_registry_url=registry_through(registry, to_registry),
            sink={"delivery": delivery},
            buffer={"memory": "1MiB", "spill_dir": str(tmp_path / "spill")},
        ) as world,
    ):
        world.daemon.spawn = forks.spawn
        brokers: Any = SimpleNamespace(brokers=[kafka])
        scene = Scene(world, brokers, registry, doors, to_postgres, to_registry, random.Random(seed))
        begun_s = time.monotonic()
        begin(scene, seed)
        findings = one_block(scene, struck, rounds)
        print(summary(world, struck, findings, time.monotonic() - begun_s, seed))
    assert [str(one) for one in findings] == []
    assert struck.total() == rounds
    assert world.last_block is not None
    less_one = Oracle(TABLES, delivery).judge(row_dropped(world.last_block))
    assert "a" in {one.assertion for one in less_one}, "the oracle finds a dropped row in this run"
    assert world.changes > 100
