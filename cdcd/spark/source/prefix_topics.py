"""The topics of one daemon among all topics of a cluster.

In: a cluster, a prefix.  Out: topics with changes of this prefix.
Must not: read records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source.cuts import Offsets, normal

PROGRESS_SUFFIX = ".__progress"


def existing_tables(connection: Connection) -> list[str]:
    """Return the topics of the tables that have one. Raises Sink errors."""
    prefix = connection.prefix
    topics = topics_of(Cluster(connection.brokers, connection.read_properties()), prefix)
    return [name for name in topics if name not in (f"{prefix}.message", f"{prefix}.transaction")]


def is_without_records(connection: Connection, topic: str) -> bool:
    """Return whether a topic never had a record. Raises Sink errors."""
    cluster = Cluster(connection.brokers, connection.read_properties())
    places = [(topic, number) for number in cluster.partitions().get(topic, [])]
    return not any(cluster.high_watermarks(places).values())


def topics_of(cluster: Cluster, prefix: str, outside: Collection[str] = ()) -> dict[str, list[int]]:
    """Return the partitions of the topics with this prefix, without topics of a longer prefix.

    `outside`: known topics of the daemon whose names do not begin with it (`sink.topics.template`).
    """
    existing = cluster.partitions()
    prefixes = [name.removesuffix(PROGRESS_SUFFIX) for name in existing if name.endswith(PROGRESS_SUFFIX)]
    prefixes = [other for other in prefixes if other.startswith(prefix + ".")]
    return {
        name: list(numbers)
        for name, numbers in existing.items()
        if belongs(name, prefix, prefixes) or (name in outside and is_outside(name, prefix))
    }


def is_outside(topic: str, prefix: str) -> bool:
    """Return whether a topic's name does not say that it is of this prefix."""
    return not topic.startswith(f"{prefix}.")


def partitions_of(
    cluster: Cluster, prefix: str, topics: frozenset[str] | None, outside: Collection[str] = ()
) -> list[tuple[str, int]]:
    """Return the partitions of these topics of a prefix; None: of all, with those of `outside`."""
    known = frozenset(outside) | (topics or frozenset())
    return [
        (name, partition)
        for name, numbers in topics_of(cluster, prefix, known).items()
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
