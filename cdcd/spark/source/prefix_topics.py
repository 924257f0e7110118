"""The topics of one daemon among all topics of a cluster.

In: a cluster, a prefix.  Out: topics with changes of this prefix.
Must not: read records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source.cuts import Offsets, normal

PROGRESS_SUFFIX = ".__progress"


def existing_tables(connection: Connection) -> list[str]:
    """Return the topics of the tables that have one. Raises Sink errors."""
    prefix = connection.prefix
    topics = topics_of(Cluster(connection.brokers, connection.read_properties()), prefix)
    return [name for name in topics if name not in (f"{prefix}.message", f"{prefix}.transaction")]


def topics_of(cluster: Cluster, prefix: str) -> dict[str, list[int]]:
    """Return the partitions of the topics with this prefix, without topics of a longer prefix."""
    existing = cluster.partitions()
    prefixes = [name.removesuffix(PROGRESS_SUFFIX) for name in existing if name.endswith(PROGRESS_SUFFIX)]
    prefixes = [other for other in prefixes if other.startswith(prefix + ".")]
    return {name: list(numbers) for name, numbers in existing.items() if belongs(name, prefix, prefixes)}


def partitions_of(cluster: Cluster, prefix: str, topics: frozenset[str] | None) -> list[tuple[str, int]]:
    """Return the partitions of these topics of a prefix; None: of all."""
    return [
        (name, partition)
        for name, numbers in topics_of(cluster, prefix).items()
        if topics is None or name in topics
        for partition in numbers
    ]


def by_topic(found: Mapping[tuple[str, int], int]) -> Offsets:
    """Return offsets by topic and partition."""
    offsets: Offsets = {}
    for (topic, partition), offset in found.items():
        offsets.setdefault(topic, {})[str(partition)] = offset
    return normal(offsets)


def belongs(topic: str, prefix: str, longer_prefixes: Sequence[str]) -> bool:
    """Return whether a topic has changes of this prefix, and is neither internal nor another daemon's."""
    if not topic.startswith(prefix + ".") or topic.startswith(prefix + ".__"):
        return False
    return not any(topic.startswith(longer + ".") for longer in longer_prefixes)
