"""The offset in an answer of librdkafka to the question for the first or next offset of a partition.

In: the future of one partition, of `list_offsets` for the earliest or latest offset.  Out: the offset, 0 or more.
Invariant: an answer without an offset is an outage of the partition's leader. librdkafka returns -1001, and no error,
if the connection to the leader is lost at that moment, and _NOENT if there is none; as an offset the number would say
that the topic is empty. The topic exists: whoever asks has its partitions from the metadata.
"""

from __future__ import annotations

from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo

from cdcd.errors import SinkUnavailable
from cdcd.sink.error_map import error_of, translate


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
