"""Divide the ranges of a batch among tasks, by bytes.

In: ranges of Kafka partitions, the estimated bytes of a record of each topic.  Out: the ranges of each task.
Invariant: the pieces have each offset of the ranges once. A range may be divided at any offset, also inside a Kafka
transaction: a fetch names the aborted transactions that began before it.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdcd.spark.clients.kafka import Range
from cdcd.spark.source.record_sizes import UNKNOWN_BYTES

PIECE_BYTES = 8 << 20
"""The fewest bytes of one of several tasks: the start of a task costs as much as reading them."""
ROW_BYTES = 50
"""The bytes of a row without key and value: topic, partition, offset and time."""


def pieces(ranges: Sequence[Range], record_bytes: Mapping[str, float], most: int) -> list[list[Range]]:
    """Return the ranges of at most `most` tasks; each task has about the same number of bytes.

    The ranges are placed one after another, and cut where the shares end, so that a task has few topics.
    """
    placed = sorted(ranges, key=lambda part: (part.topic, part.partition))
    weights = [ROW_BYTES + record_bytes.get(part.topic, UNKNOWN_BYTES) for part in placed]
    total_bytes = sum(weight * (part.end - part.start) for part, weight in zip(placed, weights, strict=True))
    count = max(1, min(most, int(total_bytes / PIECE_BYTES)))
    shares: list[list[Range]] = [[] for _ in range(count)]
    passed_bytes = 0.0
    for part, weight in zip(placed, weights, strict=True):
        cuts = [
            part.start + round((total_bytes * at / count - passed_bytes) / weight) for at in range(1, count)
        ]
        bounds = [part.start, *(min(max(cut, part.start), part.end) for cut in cuts), part.end]
        for share, start, end in zip(shares, bounds[:-1], bounds[1:], strict=True):
            if start < end:
                share.append(replace(part, start=start, end=end))
        passed_bytes += weight * (part.end - part.start)
    return [share for share in shares if share]
