"""The first or next offsets of partitions, as librdkafka answers.

In: partitions, or the future of one of `list_offsets` for the earliest or latest offset.  Out: offsets, 0 or more.
Invariant: an answer without an offset is an outage of the partition's leader. librdkafka returns -1001, and no error,
if the connection to the leader is lost at that moment, and _NOENT if there is none; as an offset the number would say
that the topic is empty. The topic exists: whoever asks has its partitions from the metadata.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from cdcd.errors import SinkUnavailable
from cdcd.sink.error_map import error_of, translate


def listed_offsets(
    client: AdminClient,
    places: Collection[tuple[str, int]],
    spec: OffsetSpec,
    doing: str,
    timeout_s: float,
    *,
    is_committed: bool = False,
) -> dict[tuple[str, int], int]:
    """Return an offset of each partition, by topic and number. `is_committed`: the latest is the last stable one.

    Raises SinkUnavailable, TopicMissing, SinkAuthorization. Blocks.
    """
    futures = client.list_offsets(
        {TopicPartition(*place): spec for place in places},
        isolation_level=IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED,
        request_timeout=timeout_s,
    )
    return {
        (one.topic, one.partition): listed_offset(future, doing, one.topic) for one, future in futures.items()
    }


def listed_offset(answer: Future[ListOffsetsResultInfo], doing: str, topic: str) -> int:
    """Return the offset. Raises SinkUnavailable, TopicMissing, SinkAuthorization."""
    try:
        offset = int(answer.result().offset)
    except KafkaException as failure:
        cause = error_of(failure)
        if cause.code() != KafkaError._NOENT:
            raise translate(cause, doing, topic=topic) from failure
        offset = -1
    if offset < 0:
        raise SinkUnavailable(f"{doing}: a partition has no leader", topic=topic)
    return offset
