"""Fault 2: kills at twenty moments of an initial snapshot under load, and cuts of the exported snapshot's connection.

The moments are in the copy, at the hand-over to the stream, and after it. The oracle judges the topics of each run; a
table that was complete at an interruption is not copied again. A mirror of the topics equals the source, also one
that has read rows of an attempt before the next one removed them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.mirrored import FORMS, Form, WorldMirror
from tests.faults.snapshot_kills import (
    CHAINS,
    CONFIGURATION,
    LOAD,
    LOAD_OF_RANGES,
    OF_RANGES,
    RANGES,
    ROWS,
    Kills,
    account,
)
from tests.faults.world import World
from tests.support.doors import through
from tests.support.forked import Forks
from tests.support.proxy import Proxy
from tests.support.snapshot_commands import await_copied
from tests.support.stack import PostgresServers, drop_database, new_database_name

MAJORS = (14, 16, 18)
SHORT, FEW_ROWS = ("few", 18), ROWS // 2
"""The case that `make test` runs; `make faults` runs every chain on every version, with all rows."""
NIGHTLY = "hand-over"
STREAMED = {("random", 16), ("random", 18), ("two", 16), ("two", 18)}
"""Here each transaction is streamed while it is open, and many are prepared, with two_phase."""
AT_LEAST_ONCE = {("groups", 16), ("after", 16)}
FOLLOWED = "hand-over"
"""In this chain the mirror runs from the start on with each version, in each other chain with one version."""
IMMEDIATE = "?options=-c%20debug_logical_replication_streaming%3Dimmediate"
CASES = [
    (*SHORT, FEW_ROWS),
    *(
        pytest.param(
            chain,
            major,
            ROWS,
            marks=pytest.mark.nightly if chain == NIGHTLY and major != MAJORS[0] else pytest.mark.long,
        )
        for chain in CHAINS
        if chain != SHORT[0]
        for major in MAJORS
    ),
]


def _configuration(chain: str, major: int) -> dict[str, Any]:
    delivery = "at_least_once" if (chain, major) in AT_LEAST_ONCE else "exactly_once"
    configuration = OF_RANGES if chain == RANGES else CONFIGURATION
    return {**configuration, "sink": {**configuration["sink"], "delivery": delivery}}


def _form(chain: str, major: int) -> Form:
    """Return the form of the mirror: each chain has each format, each version has each form."""
    place = [*CHAINS].index(chain) + 2 * MAJORS.index(major)
    return ("parquet", 1) if (chain, major) == SHORT else FORMS[place % len(FORMS)]


def _follows(chain: str, major: int) -> bool:
    """Whether the mirror runs during the interruptions, and reads rows of the first attempt before the next one."""
    number = [*CHAINS].index(chain)
    return chain == FOLLOWED or (chain != SHORT[0] and MAJORS[number % len(MAJORS)] == major)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("chain", "major", "rows"), CASES)
def test_an_interrupted_snapshot_loses_and_repeats_nothing(
    chain: str,
    major: int,
    rows: int,
    tmp_path: Path,
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    forks: Forks,
    spark: SparkSession,
) -> None:
    """F36, F37, F40: topics and mirror have each row and each change once, whatever interrupted the snapshot."""
    begun_s, is_streamed, form = time.monotonic(), (chain, major) in STREAMED, _form(chain, major)
    server, database = pg_server(major), new_database_name()
    server.create_database(database)
    try:
        with (
            Proxy(server.port) as link,
            World(
                tmp_path / "cdcd",
                f"kills{database}",
                server,
                database,
                bootstrap=kafka.bootstrap,
                registry_url=registry.url,
                daemon_dsn=through(server.dsn(database), server, link) + (IMMEDIATE if is_streamed else ""),
                source={"protocol": {"two_phase": is_streamed}},
                buffer={"memory": "1MiB", "spill_dir": str(tmp_path / "spill")},
                **_configuration(chain, major),
            ) as world,
            WorldMirror(spark, world, kafka, registry, form) as mirror,
        ):
            world.daemon.spawn = forks.spawn
            if chain == RANGES:
                world.daemon.entry = ("-m", "tests.support.small_units")
            load = LOAD_OF_RANGES if chain == RANGES else LOAD
            kills = Kills(world, link, f"{chain} {major}", load | {"prepared": 60} if is_streamed else load)
            kills.begin(rows)
            if _follows(chain, major):
                mirror.start()
            for moment in CHAINS[chain]:
                kills.strike(moment)
                mirror.await_rows()
            link.heal()
            if world.daemon.process is None or world.daemon.process.poll() is not None:
                world.daemon.start()
            await_copied(world.daemon)
            kills.end()
            assert bool(world.daemon.events("snapshot_continues_while_streaming")) == (chain == RANGES)
            findings = world.judge()
            assert [str(one) for one in findings] == []
            judged_s = time.monotonic()
            assert mirror.differences() == []
            mirrored_s = time.monotonic() - judged_s
            assert world.daemon.stop() == 0
            assert world.last_block is not None
            copied, abandoned, complete_before = account(world.last_block)
    finally:
        drop_database(server, database)
    print(
        f"\n{chain} on {major}: {len(kills.done)} interruptions, {world.transactions} transactions,"
        f" {copied} rows copied, {abandoned} of them at earlier points, {complete_before} tables complete before,"
        f" {time.monotonic() - begun_s:.0f} s, {mirrored_s:.0f} s of them for the mirror:"
        f" {' '.join(map(str, form))}{', followed' if _follows(chain, major) else ''}"
    )
