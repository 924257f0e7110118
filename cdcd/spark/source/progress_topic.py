"""Whether Kafka has the progress topic of a prefix, as the principal sees it.

In: the topics that Kafka lists.  Out: the problem, if the progress topic is not among them.
Invariant: a broker may not know a topic yet, so it is asked again before its absence is an error.
Must not: read records.
"""

from __future__ import annotations

import time

from cdcd.errors import PositionUnavailable
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source import retained_ranges
from cdcd.spark.source.prefix_topics import PROGRESS_SUFFIX

PREFIX_HINT = (
    "correct the prefix or the brokers, or start cdcd with this name; if the topic exists, grant the principal Read "
    "and Describe on it"
)


def absence(cluster: Cluster, prefix: str) -> str | None:
    """Return the problem if Kafka lists no progress topic of this prefix now."""
    topic = prefix + PROGRESS_SUFFIX
    if topic in cluster.partitions():
        return None
    return f"Kafka has no topic {topic}: no cdcd with this prefix has written to these brokers"


def require(cluster: Cluster, prefix: str) -> None:
    """Raise PositionUnavailable if Kafka lists no progress topic of this prefix."""
    until_s = time.monotonic() + retained_ranges.SETTLES_WITHIN_S
    while (problem := absence(cluster, prefix)) is not None:
        if time.monotonic() > until_s:
            raise PositionUnavailable(problem, hint=PREFIX_HINT)
        time.sleep(retained_ranges.LOOK_AGAIN_S)
