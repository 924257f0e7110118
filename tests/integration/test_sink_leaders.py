"""Unavailable leaders and replicas of Kafka, as another client of the cluster sees them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from cdcd.demo.stack.kafka import KafkaCluster
from cdcd.sink.leaders import partitions_without_leader
from tests.support.sinks import sink_settings
from tests.support.topics import new_name
from tests.support.waiting import eventually


@pytest.mark.nightly
def test_partitions_without_a_leader_or_a_replica_are_named(cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    alone, three = new_name(), new_name()
    made = admin.create_topics([NewTopic(alone, 3, 1), NewTopic(three, 1, 3)])
    for future in made.values():
        future.result(30)
    settings = sink_settings(cluster.bootstrap)
    eventually(lambda: partitions_without_leader(settings, [alone, three]) == (), "all have leaders")
    # Each broker learns of a topic separately, and any of them may get the request.
    topic = eventually(lambda: described(admin).topics.get(alone), "the queried broker knows the topic")
    leaders = {number: one.leader for number, one in topic.partitions.items()}
    gone = cluster.brokers[0]
    gone.kill()
    eventually(lambda: gone.node_id not in described(admin).brokers, "the cluster has removed the broker", 60)
    found = {one.who: one.doing for one in partitions_without_leader(settings, [alone, three])}
    lost = {
        f"partition {number} of topic {alone}" for number, leader in leaders.items() if leader == gone.node_id
    }
    assert lost
    assert {who for who in found if alone in who} == lost
    assert all("has no leader" in found[who] for who in lost)
    assert f"of which {gone.node_id} are down" in found[lost.pop()]
    assert found[f"partition 0 of topic {three}"].startswith("2 of 3 replicas are in sync")
    found = {one.who: one.doing for one in partitions_without_leader(settings, ["no-such-topic"])}
    assert found["topic no-such-topic"] == "the broker that answered has no such topic"
    for broker in cluster.brokers:
        broker.kill()
    (silent,) = partitions_without_leader(settings, [alone])
    assert silent.who == f"brokers {cluster.bootstrap}"
    assert silent.doing.startswith("do not answer: ")


def described(admin: AdminClient) -> ClusterMetadata:
    """Return the brokers and topics. librdkafka leaves a request with the broker that was killed meanwhile."""

    def answer() -> ClusterMetadata | None:
        try:
            return admin.list_topics(timeout=5)
        except KafkaException:
            return None

    cluster = eventually(answer, "a broker describes the cluster")
    assert cluster is not None
    return cluster
