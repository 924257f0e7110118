"""A stream of two tables between which money moves, from a real daemon: the small form of `make cuts`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.transfers import KINDS, TOTAL, Mover, TransferWorld
from tests.spark.ledger import Change, Ledger, with_a_moved_end
from tests.spark.ledger_streams import DirectStream, SparkStream
from tests.support.forked import Forks

STREAMED = "options=-c%20debug_logical_replication_streaming%3Dimmediate"
SMALL_GROUPS = {"max_rows": 20, "max_wait_ms": 1}


@pytest.fixture
def world(
    tmp_path: Path,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    forks: Forks,
) -> Iterator[TransferWorld]:
    """Yield the tables and a daemon, to which PostgreSQL streams each transaction."""
    made = TransferWorld(
        tmp_path / "cdcd",
        f"bank{database}",
        postgres,
        database,
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
        daemon_dsn=f"{postgres.dsn(database)}?{STREAMED}",
        sink={"topics": {"partitions": 3}, "commit": SMALL_GROUPS},
    )
    made.daemon.spawn = forks.spawn
    with made:
        yield made


def _written(world: TransferWorld) -> None:
    """Run two transactions of each kind, and kill the daemon in between.

    The first two and the rest are in different Kafka transactions, however late the daemon is.
    """
    mover = Mover(world.dsn, "1", {})
    world.daemon.start().wait_state("streaming")
    for number, kind in enumerate([*KINDS] * 2):
        mover.once(kind)
        if number < 2:
            assert world.caught_up() is not None, world.daemon.log()
        if number == len(KINDS):
            world.daemon.kill()
            world.daemon.start()
    mover._connection.close()
    assert not {"refused", "away"} & mover.done.keys()
    assert world.caught_up() is not None, world.daemon.log()


def test_the_total_is_the_same_at_the_end_of_each_batch(world: TransferWorld) -> None:
    """Each batch's end that is moved by one record is a violation: otherwise the judge would prove nothing."""
    _written(world)
    stream = DirectStream(world.daemon.config_path)
    stream.read({"maxRows": "1"})
    assert stream.ledger.violations == []
    assert stream.ledger.state == world.state()
    assert len(stream.batches) > 3
    judged = [_judge(with_a_moved_end(stream.batches, at)) for at in range(len(stream.batches) - 1)]
    assert all(judged)
    assert any("the total is" in violation for found in judged for violation in found)


@pytest.mark.nightly
@pytest.mark.parametrize("limits", [{"maxCommits": "2"}, {"maxRows": "50"}, {}])
def test_with_other_limits(world: TransferWorld, limits: dict[str, str]) -> None:
    _written(world)
    stream = DirectStream(world.daemon.config_path)
    stream.read(limits)
    assert stream.ledger.violations == []
    assert stream.ledger.state == world.state()


@pytest.mark.nightly
def test_a_stream_of_spark(spark: SparkSession, world: TransferWorld, tmp_path: Path) -> None:
    _written(world)
    stream = SparkStream(spark, world.daemon.config_path, tmp_path / "checkpoint")
    stream.read({"maxRows": "1"})
    assert stream.ledger.violations == []
    assert stream.ledger.state == world.state()
    assert stream.ledger.batches > 3


def _judge(batches: list[list[Change]]) -> list[str]:
    ledger = Ledger(TOTAL)
    for batch in batches:
        ledger.add(batch)
    return ledger.violations
