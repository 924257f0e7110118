"""A mirror that follows an initial snapshot with kills: it equals the source. Tables are compared by PostgreSQL."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from cdcd.demo.compare import compare_table, report
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.snapshot_kills import CHAINS, CONFIGURATION, LOAD, Kills
from tests.faults.truth import TABLES
from tests.faults.world import World
from tests.spark.test_fault_14_ddl_storm import MirrorProcess
from tests.support.doors import through
from tests.support.forked import Forks
from tests.support.proxy import Proxy
from tests.support.stack import PostgresServers, drop_database, new_database_name
from tests.support.waiting import eventually

WITHOUT_DDL = {kind: weight for kind, weight in LOAD.items() if kind != "altered"}
"""The default of an added column is not in the stream."""
DEADLINE_S = 240.0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("major", [14, 16, 18])
def test_a_mirror_of_an_interrupted_snapshot_equals_the_source(
    major: int,
    tmp_path: Path,
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    forks: Forks,
) -> None:
    """F36, F37, F40: the truncate event of a table that is copied again removes the rows of the attempt before."""
    server, database = pg_server(major), new_database_name()
    server.create_database(database)
    try:
        with (
            Proxy(server.port) as link,
            World(
                tmp_path / "cdcd",
                f"mirrored{database}",
                server,
                database,
                bootstrap=kafka.bootstrap,
                registry_url=registry.url,
                daemon_dsn=through(server.dsn(database), server, link),
                **CONFIGURATION,
            ) as world,
        ):
            world.daemon.spawn = forks.spawn
            kills = Kills(world, link, f"mirrored {major}", WITHOUT_DDL)
            kills.begin()
            moments = CHAINS["hand-over"]
            kills.strike(moments[0])
            mirror = MirrorProcess(tmp_path, world.daemon, kafka, registry)
            try:
                for moment in (*moments[1:4], "killed in the copy", *moments[4:]):
                    kills.strike(moment)
                link.heal()
                world.daemon.start()
                findings = world.judge()
                assert [str(one) for one in findings] == []
                compare(world, mirror, kafka)
            finally:
                mirror.stop()
            assert world.daemon.stop() == 0
    finally:
        drop_database(server, database)


def compare(world: World, mirror: MirrorProcess, kafka: KafkaBroker) -> None:
    """Wait for the mirror, and compare each table. The writers pause."""
    end = mirror.tables.end(kafka.bootstrap)
    eventually(
        lambda: mirror.check() and mirror.tables.has_reached(end),
        "the mirror has all changes",
        DEADLINE_S,
        0.2,
    )
    with closing(psycopg2.connect(world.dsn)) as connection:
        outcomes = [
            compare_table(connection, "public", table.name, mirror.tables.read("public", table.name))
            for table in TABLES
        ]
    print("\n".join(f"{one.table}: {one.source_rows} rows" for one in outcomes))
    assert report(outcomes) == []
    assert sum(outcome.mirror_rows > 0 for outcome in outcomes) > len(TABLES) // 2
