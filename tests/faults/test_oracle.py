"""The oracle finds nothing in a good run, and finds each bug planted in a block or in the daemon."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.faults.facts import Block
from tests.faults.oracle import Oracle
from tests.faults.planted import BUGS, SNAPSHOT_BUGS
from tests.faults.plants import (
    FOUND_BY_COMPACTION,
    HIDDEN_BY_REPETITIONS,
    PLANTS,
    REPEATING,
    killed_in_between,
    lost_by_the_kill,
    row_dropped,
    tombstone_lost,
)
from tests.faults.snapshot_kills import CONFIGURATION, PAUSE_S, WRITES_BETWEEN, fill
from tests.faults.truth import TABLES
from tests.faults.workload import EVERYTHING
from tests.faults.world import World
from tests.support.doors import KafkaDoors
from tests.support.forked import Forks
from tests.support.nightly import nightly_except
from tests.support.stack import drop_database, new_database_name

pytestmark = pytest.mark.own_broker

WITHOUT_DDL = {name: weight for name, weight in EVERYTHING.items() if name != "altered"}
"""Frequent DDL would make each snapshot start again."""
OF_EACH_ASSERTION = {letter: plant for plant, letter in reversed(PLANTS.items())}.values()
"""The first bug for each assertion of the oracle."""
_numbers = itertools.count(1)
NewWorld = Callable[..., World]


@pytest.fixture(scope="module")
def new_world(
    postgres: PostgresServer,
    own_kafka_and_doors: tuple[KafkaBroker, KafkaDoors],
    own_registry: SchemaRegistry,
    tmp_path_factory: pytest.TempPathFactory,
    forks: Forks,
) -> Iterator[NewWorld]:
    """`new_world(**configuration)`: a database with its daemon, not started."""
    postgres.start()
    kafka, registry = own_kafka_and_doors[0], own_registry
    made: list[World] = []

    def make(**over: Any) -> World:
        database = new_database_name()
        postgres.create_database(database)
        name = f"oracle{os.getpid()}x{next(_numbers)}"
        folder: Path = tmp_path_factory.mktemp(name)
        world = World(
            folder,
            name,
            postgres,
            database,
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            **over,
        )
        world.daemon.spawn = forks.spawn
        made.append(world)
        return world.__enter__()

    yield make
    for world in made:
        world.__exit__()
        drop_database(postgres, world.dbname)


@pytest.fixture(scope="module")
def good_run(new_world: NewWorld) -> Block:
    """A run without a fault: a snapshot, and all kinds of transactions of the load."""
    world = new_world()
    world.fill("good")
    world.daemon.start().wait_state("snapshot", "streaming")
    world.write("good", kinds=WITHOUT_DDL, big_rows=200)
    world.daemon.wait_state("streaming")
    world.write("ddl", 1, kinds={"altered": 1, "small": 1, "emptied": 1})
    world.wait_for_writes(100)
    block = world.block()
    world.daemon.stop()
    return block


def test_a_good_run_is_good(good_run: Block) -> None:
    assert [str(one) for one in Oracle(TABLES).judge(good_run)] == []
    operations = {event.op for event in good_run.events}
    assert operations == set("cudtrmx"), "the load has all operations"
    assert len(good_run.samples) > 5
    assert len(good_run.lags) > 3
    assert good_run.seen_live.keys() <= good_run.digests.keys()
    assert good_run.seen_live


@pytest.mark.parametrize(
    "plant", nightly_except(PLANTS, *OF_EACH_ASSERTION), ids=lambda plant: plant.__name__
)
def test_a_bug_in_the_account_is_named(plant: Callable[[Block], Block], good_run: Block) -> None:
    findings = Oracle(TABLES).judge(plant(good_run))
    letters = {one.assertion for one in findings}
    assert PLANTS[plant] in letters, [str(one) for one in findings]
    named = next(one for one in findings if one.assertion == PLANTS[plant])
    print(f"planted {plant.__name__:27} caught by ({')('.join(sorted(letters))}): {named.what[:90]}")


@pytest.mark.parametrize("plant", FOUND_BY_COMPACTION, ids=lambda plant: plant.__name__)
def test_what_only_compaction_meets_is_named_by_nothing_else(
    plant: Callable[[Block], Block], good_run: Block
) -> None:
    findings = Oracle(TABLES).judge(plant(good_run))
    assert findings
    assert all("the compacted topic" in one.what for one in findings), [str(one) for one in findings]


def test_a_repetition_is_none_where_they_are_allowed(good_run: Block) -> None:
    killed = killed_in_between(good_run)
    assert len(killed.events) > len(good_run.events)
    assert {"c", "e"} <= {one.assertion for one in Oracle(TABLES).judge(killed)}
    assert [str(one) for one in Oracle(TABLES, "at_least_once").judge(killed)] == []


def test_a_kill_after_any_progress_record_is_none(good_run: Block) -> None:
    """Also after the first ones, which are before the position of the snapshot's rows."""
    streaming = [one for one in good_run.progress if one.phase == "streaming"]
    for durable in streaming[:: max(len(streaming) // 6, 1)]:
        killed = killed_in_between(good_run, durable)
        assert [str(one) for one in Oracle(TABLES, "at_least_once").judge(killed)] == [], durable


@pytest.mark.parametrize(
    "plant",
    nightly_except((*HIDDEN_BY_REPETITIONS, *REPEATING), row_dropped, tombstone_lost, lost_by_the_kill),
    ids=lambda plant: plant.__name__,
)
def test_a_bug_in_the_account_is_reported_in_addition_to_repetitions(
    plant: Callable[[Block], Block], good_run: Block
) -> None:
    """`at_least_once` allows only the repetitions after a start."""
    bad = plant(killed_in_between(good_run)) if plant in REPEATING else killed_in_between(plant(good_run))
    findings = Oracle(TABLES, "at_least_once").judge(bad)
    letters = {one.assertion for one in findings}
    wanted = (PLANTS | REPEATING)[plant]
    assert wanted in letters, [str(one) for one in findings]
    print(f"planted {plant.__name__:27} at least once: caught by ({')('.join(sorted(letters))})")


@pytest.mark.parametrize("bug", nightly_except(BUGS, "confirmed_early", "row_lost"))
def test_a_bug_in_the_daemon_is_named(bug: str, new_world: NewWorld) -> None:
    waits_ms = {"confirmed_early": 700, "lag_never_reported": 4000}
    over: dict[str, Any] = {"sink": {"commit": {"max_wait_ms": waits_ms[bug]}}} if bug in waits_ms else {}
    world = new_world(**over)
    world.daemon.entry = ("-m", "tests.faults.planted", bug)
    world.daemon.config["source"]["dsn"] += "?options=-c%20debug_logical_replication_streaming%3Dimmediate"
    world.daemon.start().wait_state("streaming")
    world.write(bug, 1, kinds={"small": 4, "savepoints": 1, "emptied": 1})
    world.wait_for_writes(30)
    world.catch_up_within_s = 8  # with a planted bug the daemon may never catch up
    findings = world.judge()
    letters = {one.assertion for one in findings}
    assert BUGS[bug][1] in letters, [str(one) for one in findings]
    print(f"planted in cdcd {bug:22} caught by ({')('.join(sorted(letters))})")


@pytest.mark.parametrize("bug", [None, *nightly_except(SNAPSHOT_BUGS, "unit_skipped", "floor_too_high")])
def test_a_bug_in_the_snapshot_is_named(bug: str | None, new_world: NewWorld) -> None:
    """Without a bug the same run is good."""
    world = new_world(**CONFIGURATION)
    if bug is not None:
        world.daemon.entry = ("-m", "tests.faults.planted", bug)
    fill(world.dsn, 1500)
    world.write(f"snapshot {bug}", 2, kinds={"small": 4, "savepoints": 1}, pause_s=PAUSE_S)
    world.wait_for_writes(WRITES_BETWEEN)
    world.daemon.environment = {VARIABLE: "committed:4"}
    assert world.daemon.start().wait_exit() == EXIT_STATUS
    world.wait_for_writes(WRITES_BETWEEN)
    world.daemon.environment = {}
    world.daemon.start().wait_state("streaming")
    world.wait_for_writes(WRITES_BETWEEN)
    findings = world.judge()
    world.daemon.stop()
    letters = {one.assertion for one in findings}
    if bug is None:
        assert [str(one) for one in findings] == []
        return
    assert SNAPSHOT_BUGS[bug][1] in letters, [str(one) for one in findings]
    print(f"planted in cdcd {bug:22} caught by ({')('.join(sorted(letters))})")
