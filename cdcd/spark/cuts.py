"""The end of a batch: offsets of all topics at one PostgreSQL commit.

In: progress records in order and a batch's start offsets.  Out: the batch's end offsets.
Invariant: a cut is the sum of whole progress records, and never ends after one that marks a part or a gap, so that it
never splits a PostgreSQL transaction; offsets never decrease. Offsets are {topic: {partition as text: next offset}},
the JSON that Spark stores in its checkpoint.
Must not: do I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdcd.errors import ProgressUnreadable

Offsets = dict[str, dict[str, int]]
PROGRESS_FORMATS = (1, 2)


@dataclass(frozen=True, slots=True)
class Commit:
    """One progress record: the partitions that its Kafka transaction wrote to, with their next offsets.

    `is_part`: a PostgreSQL transaction is written only in part, or the markers of an accepted gap are not written
    yet, so a batch must not end here.
    """

    commit_lsn: str
    offsets: Offsets
    is_part: bool = False


def parse_progress(value: bytes) -> Commit:
    """Parse the JSON of a progress record. Raises ProgressUnreadable for an unknown format."""
    try:
        fields = json.loads(value)
        known = fields["format"] in PROGRESS_FORMATS
        commit = Commit(
            commit_lsn=str(fields["commit_lsn"]),
            offsets={
                str(topic): {str(int(partition)): int(offset) for partition, offset in partitions.items()}
                for topic, partitions in fields["offsets"].items()
            },
            is_part=fields.get("part") is not None or fields.get("gap") is not None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProgressUnreadable("this version cannot read a progress record") from error
    if not known:
        raise ProgressUnreadable("a progress record has an unknown format", format=fields["format"])
    return commit


def normal(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Sort topics and partitions: Spark compares offsets by their JSON text."""
    return {
        topic: {partition: int(offsets[topic][partition]) for partition in sorted(offsets[topic], key=int)}
        for topic in sorted(offsets)
    }


def merge(base: Mapping[str, Mapping[str, int]], more: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return for each partition the larger offset of both."""
    merged = {topic: dict(partitions) for topic, partitions in base.items()}
    for topic, partitions in more.items():
        known = merged.setdefault(topic, {})
        for partition, offset in partitions.items():
            known[partition] = max(offset, known.get(partition, 0))
    return normal(merged)


def distance(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> int:
    """Return the number of offsets between two cuts, an upper bound of the number of rows."""
    return sum(
        max(0, offset - start.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def cut(
    start: Offsets, commits: Iterable[Commit], *, max_rows: int | None = None, max_commits: int | None = None
) -> Offsets:
    """Return the offsets after as many commits as the limits allow.

    At least one commit with records is included, however large, because the query could not progress otherwise.
    """
    reached, taken, rows = start, 0, 0
    parts: Offsets = {}
    for commit in commits:
        if commit.is_part:
            parts = merge(parts, commit.offsets)
            continue
        following, parts = merge(reached, merge(parts, commit.offsets)), {}
        if following != reached:
            more = distance(reached, following)
            full = max_rows is not None and rows + more > max_rows
            if taken and (full or (max_commits is not None and taken >= max_commits)):
                break
            taken += 1
            rows += more
        reached = following
    return reached


def only(offsets: Offsets, topics: frozenset[str] | None) -> Offsets:
    """Return the offsets of the given topics; None means all topics."""
    if topics is None:
        return offsets
    return {topic: partitions for topic, partitions in offsets.items() if topic in topics}
