"""Sort records by partition and produce them, with as little work per record as possible.

In: records in commit order, the producer's `produce`.  Out: how many it accepted, and its exception at the next one.
Invariant: the records of a partition are produced in their order (F47) and none is left out. The first and the last
record of each partition ask for a delivery report: their offsets are the group's first and last in that partition.
Must not: block, or read the content of a record.
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
"""With more partitions, too few records are neighbours for their order to matter."""


def by_partition(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records grouped by partition, in their order within each partition.

    Records produced one after the other are adjacent in memory. librdkafka reads and frees them partition by
    partition when it makes its batches, which is half of the time of its thread. The partitions are in the order of
    their first records. With more than `MOST_PARTITIONS` the records are returned unchanged.
    """
    if _EXTENSION is not None and type(records) is list:
        ordered: list[Record] = _EXTENSION.by_partition(records)
        return ordered
    return by_partition_in_python(records)


def by_partition_in_python(records: Sequence[Record]) -> Sequence[Record]:
    """Do the same as `by_partition`: the C extension's specification."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record)
    return (
        [record for of_one in found.values() for record in of_one]
        if len(found) <= MOST_PARTITIONS
        else records
    )


def produce_batch(
    produce: Call, reported: Call, records: Sequence[Record], start: int, direct: object = None
) -> tuple[int, Exception | None]:
    """Produce `records[start:]`; return the index of the first record that was not accepted, and the exception.

    `produce` is called with topic, value, key and partition, and for the first and the last record of each
    partition also with `reported`. Without an exception the index is the number of records. `direct`: the producer's
    `DirectProducer`, which takes the records without `reported` instead.
    """
    if _EXTENSION is not None and type(records) is list:
        found: tuple[int, Exception | None] = _EXTENSION.produce_reported(
            produce, reported, records, start, direct
        )
        return found
    return produce_batch_in_python(produce, reported, records, start)


def produce_batch_in_python(
    produce: Call, reported: Call, records: Sequence[Record], start: int
) -> tuple[int, Exception | None]:
    """Do the same as `produce_batch`: the C extension's specification."""
    first = at = start
    try:
        for last in sorted(ends_of_each(records, start)):
            for at in range(first, last):
                topic, partition, key, value = records[at]
                produce(topic, value, key, partition)
            at, first = last, last + 1
            topic, partition, key, value = records[last]
            produce(topic, value, key, partition, reported)
    except Exception as failure:  # noqa: BLE001 - the caller raises it, with the record
        return at, failure
    return len(records), None


def ends_of_each(records: Sequence[Record], start: int) -> set[int]:
    """Return the indexes of the first and the last record of each partition from `start` on."""
    places = [*map(_TOPIC_AND_PARTITION, records[start:] if start else records)]
    last = dict(zip(places, count(start), strict=False))
    first = dict(zip(reversed(places), count(len(records) - 1, -1), strict=False))
    return {*last.values(), *first.values()}
