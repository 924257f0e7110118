"""Fault 19: too few in-sync replicas for acks=all. Nothing is confirmed; the daemon waits until they are back.

Unclean leader election is off in Kafka since 0.11; cdcd cannot prevent the loss of one: see docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker, new_cluster_id
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.test_fault_16_spill_disk import metric
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed, await_received
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import confirmed_position


class BrokerOnly(KafkaBroker):
    """A node that is no controller: the quorum of controllers remains while it is down."""

    def _properties(self) -> dict[str, str]:
        found = super()._properties()
        listeners = found["listeners"].split(",")
        own = ",".join(one for one in listeners if not one.startswith("CONTROLLER:"))
        return {**found, "process.roles": "broker", "listeners": own}


@pytest.fixture
def pair(artefacts: Cache, stack_folder: Path) -> Iterator[tuple[KafkaBroker, KafkaBroker]]:
    """Two running brokers with two copies of each topic; the first is the only controller."""
    folder, cluster_id = Path(mkdtemp(prefix="kafka-pair-", dir=stack_folder)), new_cluster_id()
    first = KafkaBroker(folder / "node-1", cache=artefacts)
    second = BrokerOnly(folder / "node-2", cache=artefacts, node_id=2)
    voters = first.voters
    for broker in (first, second):
        broker.join(voters, 2, cluster_id)
        broker.launch()
    with first, second:
        yield first, second


def clock_s(server: PostgresServer) -> float:
    """Return the time of the server's clock, which commit times have."""
    ((now_s,),) = server.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
    return float(now_s)


@pytest.mark.timeout(300)
def test_a_topic_that_wants_more_replicas_than_there_are_is_waited_for(
    pair: tuple[KafkaBroker, KafkaBroker],
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    """F63: min.insync.replicas is 2, and one of two brokers, which leads each second partition, was killed.

    A single broker does not do: Kafka wants no more replicas than a topic has.
    """
    first, second = pair
    bootstrap = f"{first.bootstrap},{second.bootstrap}"
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    sink = {
        "bootstrap_servers": bootstrap,
        "topics": {"partitions": 3, "replication_factor": 2, "properties": {"min.insync.replicas": "2"}},
        "properties": {"delivery.timeout.ms": "5000", "request.timeout.ms": "2000"},
    }
    reader = Reader(bootstrap, registry.url)
    with new_daemon(postgres, database, sink=sink) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        reader.wait([topic], lambda events: len(events) == 1)
        # A reader can see the row before cdcd has the answer to its commit; until then the lag is that row's age.
        await_confirmed(postgres, daemon)
        second.kill()
        began_s = clock_s(postgres)
        postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
        ended_s = clock_s(postgres)
        await_received(postgres, daemon)
        daemon.wait_state("backoff", deadline_s=60)
        asked_s = clock_s(postgres)
        lag_s = metric(daemon, "cdcd_replication_lag_seconds")
        assert asked_s - ended_s <= lag_s <= clock_s(postgres) - began_s, (
            "the lag is the age of the waiting row"
        )
        before = confirmed_position(postgres, daemon.slot)
        # A new leader may not know yet that the first row has all replicas, and cannot learn it meanwhile.
        assert {event.value["after"]["id"] for event in reader.read(topic)} <= {1}
        assert confirmed_position(postgres, daemon.slot) == before
        second.start()
        await_confirmed(postgres, daemon, 120)
        events = reader.read(topic)
        assert_each_once(events)
        assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
        assert not daemon.events("halted")
