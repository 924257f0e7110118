"""Put records in the order in which the producer gets them, and give them to it, next to nothing besides.

In: records in commit order, the producer's `produce`.  Out: how many it took, and what it raised at the next one.
Invariant: the records of a partition are given in their order (F47) and none is left out; the last one of each asks
for its delivery report, whose offset is that of the group's end there.
Must not: block, or look into a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter

from cdcd.extensions import extension
from cdcd.model import Record

_EXTENSION = extension("cdcd.sink._produce_batch")
_TOPIC_AND_PARTITION = itemgetter(0, 1)

Call = Callable[..., None]

MOST_PARTITIONS = 64
"""Among more, too few records are neighbours for it to matter where they are."""


def by_partition(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records with those of each partition one after the other, in their order.

    What is produced together lies together in memory, and that is how Kafka's client goes through it to make its
    batches, partition by partition, and to free it: half of the time of its thread. The partitions are in the order
    of their first records. Where there are more than `MOST_PARTITIONS`, all is left as it is.
    """
    if _EXTENSION is not None and type(records) is list:
        ordered: list[Record] = _EXTENSION.by_partition(records)
        return ordered
    return by_partition_in_python(records)


def by_partition_in_python(records: Sequence[Record]) -> Sequence[Record]:
    """Do what `by_partition` says: the C extension's specification."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record)
    return (
        [record for of_one in found.values() for record in of_one]
        if len(found) <= MOST_PARTITIONS
        else records
    )


def produce_batch(
    produce: Call, reported: Call, records: Sequence[Record], start: int
) -> tuple[int, Exception | None]:
    """Produce `records[start:]`; return the index of the first one that was not taken, and why it was not.

    `produce` is called with topic, value, key and partition, and for the last record of each partition with
    `reported` besides; what it raises is returned, with the record's index. Without, the index is the number of
    records.
    """
    if _EXTENSION is not None and type(records) is list:
        found: tuple[int, Exception | None] = _EXTENSION.produce_batch(produce, reported, records, start)
        return found
    return produce_batch_in_python(produce, reported, records, start)


def produce_batch_in_python(
    produce: Call, reported: Call, records: Sequence[Record], start: int
) -> tuple[int, Exception | None]:
    """Do what `produce_batch` says: the C extension's specification."""
    first = at = start
    try:
        for last in sorted(last_of_each(records, start)):
            for at in range(first, last):
                topic, partition, key, value = records[at]
                produce(topic, value, key, partition)
            at, first = last, last + 1
            topic, partition, key, value = records[last]
            produce(topic, value, key, partition, reported)
    except Exception as failure:  # noqa: BLE001 - the caller's to raise, with the record it was raised for
        return at, failure
    return len(records), None


def last_of_each(records: Sequence[Record], start: int) -> set[int]:
    """Return the indexes of the last record of each partition from `start` on."""
    rest = records[start:] if start else records
    return set(dict(zip(map(_TOPIC_AND_PARTITION, rest), count(start), strict=False)).values())
