"""Fault 18: brokers restart, are killed or all down, and the controller moves, while rows are inserted all the time.

F63, F64: the producer of the next session writes unacknowledged rows again, in order, and each row is there once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there, await_more_rows
from tests.faults.topics import consumer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.stack import confirmed_position
from tests.support.waiting import eventually

TOPICS = {"partitions": 3, "replication_factor": 3}


def controller_of(cluster: KafkaCluster) -> KafkaBroker:
    """Return the leader of the controllers' quorum by their own files; the metadata for clients names any broker."""
    state_files = [
        broker.folder / "data" / "__cluster_metadata-0" / "quorum-state" for broker in cluster.brokers
    ]
    votes = [json.loads(file.read_text()) for file in state_files]
    leader = max(votes, key=lambda vote: int(vote["leaderEpoch"]))["leaderId"]
    return next((broker for broker in cluster.brokers if broker.node_id == leader), cluster.brokers[0])


def leader_of(cluster: KafkaCluster, topic: str) -> KafkaBroker:
    """Return the leader of the topic's only partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
    return next(broker for broker in cluster.brokers if broker.node_id == leader)


def one_after_another(cluster: KafkaCluster, _daemon: Daemon) -> None:
    """Restart all brokers, one after another."""
    for broker in cluster.brokers:
        broker.stop()
        broker.start()


def killed(cluster: KafkaCluster, topic: str) -> None:
    """Kill the leader of this topic; it restarts after another broker has become the leader."""
    broker = leader_of(cluster, topic)
    broker.kill()
    eventually(lambda: leader_of(cluster, topic) is not broker, "another broker is the leader", 60)
    broker.start()


def the_leader(cluster: KafkaCluster, daemon: Daemon) -> None:
    """Kill the leader of a topic that each Kafka transaction writes to."""
    killed(cluster, f"{daemon.name}.__progress")


def the_coordinator(cluster: KafkaCluster, _daemon: Daemon) -> None:
    """Kill the transaction coordinator: the leader of the only partition of transactional ids."""
    killed(cluster, "__transaction_state")


def the_controller(cluster: KafkaCluster, _daemon: Daemon) -> None:
    """Kill the controller; it restarts after another broker has become the controller."""
    broker = controller_of(cluster)
    broker.kill()
    eventually(lambda: controller_of(cluster) is not broker, "another broker is the controller", 60)
    broker.start()


def all_of_them(cluster: KafkaCluster, daemon: Daemon) -> None:
    """Stop all brokers until the daemon has ended its session; the slot retains the new rows."""
    cluster.kill()
    eventually(
        lambda: daemon.status()["state"] != "streaming" or daemon.events("retrying"),
        "the daemon notices",
        120,
    )
    cluster.start()


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "strike",
    [
        pytest.param(one_after_another, marks=pytest.mark.long),
        the_leader,
        nightly(the_coordinator),
        nightly(the_controller),
        nightly(all_of_them),
    ],
)
def test_rows_flow_again(
    strike: Callable[[KafkaCluster, Daemon], None],
    cluster: KafkaCluster,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    """The process continues without any action, and each row is there once."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    sink = {
        "bootstrap_servers": cluster.bootstrap,
        "topics": TOPICS,
        "properties": {"socket.timeout.ms": "10000"},
    }
    with new_daemon(postgres, database, sink=sink) as daemon:
        if strike is all_of_them:
            daemon.entry = ("-m", "tests.faults.impatient")  # otherwise it ends the session after a minute
        daemon.start().wait_state("streaming")
        assert daemon.process is not None
        pid = daemon.process.pid
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            strike(cluster, daemon)
            daemon.wait_state("streaming", deadline_s=120)
            await_more_rows(daemon)
        await_confirmed(postgres, daemon, 120)
        assert daemon.process.pid == pid
        assert not daemon.events("halted")
        assert_all_there(Reader(cluster.bootstrap, registry.url).read(f"{daemon.name}.public.t"), rows)


@pytest.mark.own_broker
def test_rows_flow_again_after_the_only_broker_was_killed(
    kafka: KafkaBroker, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The process continues without any action, and each row is there once.

    All markers are written before the kill: Kafka 4.3.0 may skip the others at its start (docs/kafka.md).
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.entry = ("-m", "tests.faults.impatient")
        daemon.start().wait_state("streaming")
        process = daemon.process
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        topics = [f"{daemon.name}.public.t", f"{daemon.name}.__progress"]
        eventually(partial(are_stable, kafka.bootstrap, topics), "all markers are written")
        kafka.kill()
        known_lsn = confirmed_position(postgres, daemon.slot)
        with Inserting(postgres.dsn(database), after=rows.last) as rows:
            eventually(lambda: daemon.events("retrying"), "the daemon notices", 120)
            at = rows.last
            eventually(lambda: rows.last > at + 50, "rows are inserted", pause_s=0.01)
            assert confirmed_position(postgres, daemon.slot) == known_lsn
            kafka.start()
            daemon.wait_state("streaming")
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        assert daemon.process is process
        assert not daemon.events("halted")
        assert_all_there(reader.read(topics[0]), rows)


def are_stable(bootstrap: str, topics: Sequence[str]) -> bool:
    """Whether no transaction is open in these topics."""
    ends: list[list[tuple[int, int]]] = []
    for isolation in ("read_uncommitted", "read_committed"):
        with closing(consumer(bootstrap, isolation)) as reader:
            described = reader.list_topics(timeout=30).topics
            partitions = [
                TopicPartition(topic, number) for topic in topics for number in described[topic].partitions
            ]
            ends.append([reader.get_watermark_offsets(one, timeout=30) for one in partitions])
    return ends[0] == ends[1]
