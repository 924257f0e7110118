"""The topics and partitions that a query's options name, against those that there are.

In: the options of a query; a cluster; the topics that the records of the daemon name.
Out: nothing, or the error of a name that no topic has: such a query would read nothing, without an error.
Invariant: a topic that was deleted, and one that may not be described, is not a wrong name.
Must not: read records.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

from cdcd.errors import PositionUnavailable, SparkReadError
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source.cuts import ids_of, of_topics
from cdcd.spark.source.positions import OFFSETS, Position
from cdcd.spark.source.prefix_topics import topics_of

_OFFSETS_HINT = "`cdcd.spark.offsets(...)` returns the offsets of a position"


def check_names(
    cluster: Cluster,
    prefix: str,
    topics: frozenset[str] | None,
    positions: Iterable[Position | None],
    named: Collection[str],
) -> None:
    """Check the names that a query's options have. `topics`: the option; `named`: the topics that records name.

    Raises SparkReadError for a name of the option `topics`, PositionUnavailable for one of a position.
    """
    given = [one for one in positions if one is not None and one.kind == OFFSETS]
    if topics is None and not given:
        return
    existing = topics_of(cluster, prefix)
    known = frozenset({f"{prefix}.message", f"{prefix}.transaction", *named, *existing})
    for topic in _wrong(cluster, prefix, (topics or frozenset()) - known):
        hint = f"{_instead(topic, known)}; cdcd creates the topic of a table with its first row"
        raise SparkReadError(
            "the option topics has a name that no topic of the prefix has",
            hint=hint,
            topic=topic,
            prefix=prefix,
        )
    for position in given:
        unknown = of_topics(position.offsets).keys() - known - ids_of(position.offsets).keys()
        for topic in _wrong(cluster, prefix, frozenset(unknown)):
            raise PositionUnavailable(
                f"{position.given} has a topic that the prefix does not have",
                hint=f"{_instead(topic, known)}; {_OFFSETS_HINT}",
                topic=topic,
                prefix=prefix,
            )
        _check_partitions(position, existing)


def _check_partitions(position: Position, existing: Mapping[str, Sequence[int]]) -> None:
    for topic, offsets in of_topics(position.offsets).items():
        numbers = existing.get(topic)
        unknown = [one for one in offsets if numbers is not None and int(one) not in numbers]
        if numbers is not None and unknown:
            raise PositionUnavailable(
                f"{position.given} has a partition that its topic does not have",
                hint=_OFFSETS_HINT,
                topic=topic,
                partition=unknown[0],
                partitions=len(numbers),
            )


def _wrong(cluster: Cluster, prefix: str, topics: frozenset[str]) -> list[str]:
    """Return these topics without those that the principal may not describe: a read raises the error."""
    if not topics:
        return []
    unlisted = topics - cluster.partitions().keys()
    hidden = unlisted - cluster.missing(unlisted)
    return sorted(topic for topic in topics if topic not in hidden or not topic.startswith(f"{prefix}."))


def _instead(topic: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(topic, sorted(known), n=3)
    return f"did you mean {' or '.join(near)}" if near else "correct the topic or the prefix"
