"""A rolling restart of the brokers: a reader that runs meanwhile finds the new leaders by itself."""

from __future__ import annotations

import uuid
from contextlib import closing

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source.commits import Commits
from cdcd.spark.source.cuts import Offsets
from cdcd.spark.source.source_options import parse_options
from tests.spark.events import progress_value
from tests.support.waiting import eventually

PARTITIONS = 6


def test_a_running_query_survives_a_rolling_restart(cluster: KafkaCluster) -> None:
    """librdkafka's offsets are refused for the former epoch of a leader until it lists the metadata again."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    progress, items = f"{prefix}.__progress", f"{prefix}.public.items"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic(progress, 1, 3), NewTopic(items, PARTITIONS, 3)]).values():
        future.result(60)
    places = [(progress, 0), *((items, number) for number in range(PARTITIONS))]
    commit(cluster, progress, items)

    def led_by_others(broker: KafkaBroker) -> bool:
        topics = admin.list_topics(timeout=30).topics
        return all(
            topics[name].partitions[number].leader not in (-1, broker.node_id) for name, number in places
        )

    def in_sync() -> bool:
        topics = admin.list_topics(timeout=30).topics
        return all(len(topics[name].partitions[number].isrs) == 3 for name, number in places)

    options = {"brokers": cluster.bootstrap, "prefix": prefix, "registry": "none"}
    asked = Cluster(cluster.bootstrap, {})
    with closing(Commits(parse_options(options))) as commits:
        start = commits.initial()
        for broker in cluster.brokers:
            assert_readable(asked, commits, start, places)
            broker.stop()
            eventually(lambda broker=broker: led_by_others(broker), "the other brokers lead")
            assert_readable(asked, commits, start, places)
            broker.start()
            eventually(in_sync, "the broker has all records")
        assert_readable(asked, commits, start, places)


def commit(cluster: KafkaCluster, progress: str, items: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": progress})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(items, value=b"row", partition=number)
    offsets = {items: dict.fromkeys(range(PARTITIONS), 1)}
    producer.produce(progress, key=b"test", value=progress_value(10, offsets), partition=0)
    producer.commit_transaction(60)


def assert_readable(asked: Cluster, commits: Commits, start: Offsets, places: list[tuple[str, int]]) -> None:
    assert set(asked.starts(places).values()) == {0}
    assert asked.bounds(places)[1].keys() == set(places)
    commits.refresh(start)
    end = commits.newest(start)
    assert len(commits.ranges(start, end)) == PARTITIONS
