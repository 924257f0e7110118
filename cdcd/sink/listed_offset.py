"""The offset in an answer of librdkafka to the question for the first or next offset of a partition.

In: the future of one partition, of `list_offsets` for the earliest or latest offset.  Out: the offset, 0 or more.
Invariant: an answer without an offset is an error. librdkafka returns -1001, and no error, if the connection to the
partition's leader is lost at that moment; as an offset it would say that the topic is empty.
"""

from __future__ import annotations

from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo


def listed_offset(answer: Future[ListOffsetsResultInfo]) -> int:
    """Return the offset. Raises KafkaException; without an offset, that of a partition without a leader."""
    offset = int(answer.result().offset)
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError._NOENT))
    return offset
