"""The blockers of a write to Kafka: brokers that do not answer, partitions without leader or with too few replicas.

In: the sink's settings, the topics that are written to.  Out: blockers, as the brokers report them now. Blocking.
Invariant: the metadata is current; it comes from any broker that answers, however many do not.
Must not: create or alter anything, or wait longer than `_QUERY_TIMEOUT_S` for an answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from confluent_kafka.admin import ClusterMetadata, PartitionMetadata

from cdcd.errors import SinkError
from cdcd.sink.admin import Admin
from cdcd.sink.settings import SinkSettings
from cdcd.waits import Blocker

__all__ = ["partitions_without_leader"]

_QUERY_TIMEOUT_S = 5.0
_COORDINATION = "__transaction_state"
"""A transaction's coordinator is the leader of one of its partitions."""


def partitions_without_leader(settings: SinkSettings, topics: Collection[str]) -> tuple[Blocker, ...]:
    """Return the partitions of these topics that lack a leader or in-sync replicas, and the missing topics.

    Where no broker answers, return the brokers.
    """
    properties = {"log_level": "0", **settings.properties}
    admin = Admin(replace(settings, operation_timeout_s=_QUERY_TIMEOUT_S, properties=properties))
    try:
        metadata = admin.metadata(None, "querying the leaders of partitions")
    except SinkError as error:
        return (Blocker(f"brokers {settings.bootstrap_servers}", f"do not answer: {error.message}"),)
    found = [
        Blocker(f"topic {name}", "the broker that answered has no such topic")
        for name in sorted(set(topics) - metadata.topics.keys())
    ]
    for name in sorted({*topics, _COORDINATION} & metadata.topics.keys()):
        for number, partition in sorted(metadata.topics[name].partitions.items()):
            why = _why(partition, metadata)
            if why:
                found.append(Blocker(f"partition {number} of topic {name}", why))
    return tuple(found)


def _why(partition: PartitionMetadata, metadata: ClusterMetadata) -> str:
    replicas, in_sync = partition.replicas, partition.isrs
    away = sorted(set(replicas) - metadata.brokers.keys())
    of = f"; its replicas are on brokers {_listed(replicas)}"
    gone = f", of which {_listed(away)} are down" if away else ""
    if partition.leader not in metadata.brokers:
        return f"has no leader{of}{gone}"
    if len(in_sync) < len(replicas):
        return f"{len(in_sync)} of {len(replicas)} replicas are in sync{of}{gone}"
    return ""


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))
