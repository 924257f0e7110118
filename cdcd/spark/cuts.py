"""The end of a batch: offsets of all topics at one PostgreSQL commit.

In: progress records in order and a batch's start offsets.  Out: the batch's end offsets.
Invariant: a cut is the sum of whole progress records, and never ends after one that marks a part or a gap, so that it
never splits a PostgreSQL transaction; offsets never decrease. It ends inside a snapshot only for a query that asks
for the loading tables (`seen`). Offsets are {topic: {partition as text: next offset}}, the JSON that Spark stores in
its checkpoint. A table that is loading at the cut is in them, too, as a pseudo topic (`with_loading`), so that a
batch knows its loading tables whenever it is repeated.
Must not: do I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdcd.errors import ProgressUnreadable
from cdcd.lsn import parse_lsn

Offsets = dict[str, dict[str, int]]
PROGRESS_FORMATS = (1, 2)


@dataclass(frozen=True, slots=True)
class Commit:
    """One progress record: the partitions that its Kafka transaction wrote to, with their next offsets.

    `is_part`: a PostgreSQL transaction is written only in part, the markers of an accepted gap are not written yet,
    or the stream has not passed the point at which the last tables were copied, so a batch must not end here.
    `loading`: the topics of the tables that cdcd copies while it streams, or will copy: rows are still missing.
    `snapshot`: the topics of which an incomplete snapshot may have written rows; None outside a snapshot.
    `end_lsn`: all commits below it are in Kafka. `commit_us`: the time of the last commit (Unix epoch), 0 if unknown.
    """

    commit_lsn: str
    offsets: Offsets
    is_part: bool = False
    loading: frozenset[str] = frozenset()
    snapshot: frozenset[str] | None = None
    end_lsn: str = "0/0"
    commit_us: int = 0

    @property
    def size(self) -> int:
        """What it takes to store it, counted in offsets."""
        return 1 + sum(map(len, self.offsets.values()))


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
            is_part=fields.get("part") is not None or fields.get("gap") is not None or _is_apart(fields),
            loading=_loading_of_record(fields),
            snapshot=_snapshot_of_record(fields),
            end_lsn=str(fields["end_lsn"]),
            commit_us=int(fields["commit_us"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProgressUnreadable("this version cannot read a progress record") from error
    if not known:
        raise ProgressUnreadable("a progress record has an unknown format", format=fields["format"])
    return commit


def _loading_of_record(fields: Mapping[str, Any]) -> frozenset[str]:
    copy = fields.get("copy", {})
    tables = [*copy.get("tables", {}).values(), *copy.get("blocking", {}).values()]
    topics = [table["topic"] for table in tables]
    if not all(isinstance(topic, str) for topic in topics):
        raise TypeError
    return frozenset(topics)


def _snapshot_of_record(fields: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the topics that the snapshot has begun, None if no row of it is missing.

    After `snapshot.mode: initial_only` the phase remains "snapshot", but no table is left to copy.
    """
    phase, topics = fields["phase"], fields["snapshot_tables"]
    if phase not in ("snapshot", "streaming") or not all(isinstance(topic, str) for topic in topics):
        raise ValueError
    if phase == "streaming":
        return None
    copy = fields.get("copy")
    is_complete = copy is not None and not copy["pending"] and not copy.get("tables")
    return None if is_complete else frozenset(topics)


def _is_apart(fields: Mapping[str, Any]) -> bool:
    """Return whether tables were copied at different points, and the stream has not reached the last one.

    No stream follows `initial_only`, whose last record is written without rows.
    """
    floors = fields.get("copy", {}).get("floors")
    is_final = fields["phase"] == "snapshot" and not fields["offsets"]
    if not floors or is_final:
        return False
    reached = max(parse_lsn(fields["commit_lsn"]), parse_lsn(fields["end_lsn"]))
    return max(map(parse_lsn, floors.values())) > reached


def seen(commit: Commit, topics: frozenset[str] | None, *, loading: bool) -> Commit:
    """Return what a query of these topics (None: all) sees of a record.

    `loading`: the query asks for the loading tables, so it sees the tables of an incomplete snapshot as such tables.
    For other queries the snapshot is one commit, and this record a part of it.
    """
    inside = commit.snapshot or frozenset()
    of_query = (commit.loading | inside) if loading else frozenset()
    return replace(
        commit,
        offsets=only(commit.offsets, topics),
        is_part=commit.is_part or (commit.snapshot is not None and not loading),
        loading=of_query if topics is None else of_query & topics,
    )


LOADING = "loading/"
"""The prefix of the pseudo topics of loading tables; no Kafka topic has a slash in its name."""


def with_loading(offsets: Offsets, loading: frozenset[str]) -> Offsets:
    """Return offsets of Kafka topics together with the loading tables."""
    return normal({**offsets, **{LOADING + topic: {"0": 1} for topic in loading}}) if loading else offsets


def loading_of(offsets: Offsets) -> frozenset[str]:
    """Return the topics of the loading tables."""
    return frozenset(topic.removeprefix(LOADING) for topic in offsets if topic.startswith(LOADING))


def without_loading(offsets: Offsets) -> Offsets:
    """Return the offsets of Kafka topics only."""
    return {topic: found for topic, found in offsets.items() if not topic.startswith(LOADING)}


def covers(offsets: Offsets, commit: Commit) -> bool:
    """Return whether all records of a commit are before these offsets."""
    return all(
        offsets.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in commit.offsets.items()
        for partition, offset in partitions.items()
    )


def as_one(start: Offsets | None, commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits; the first of them, as far as `start` covers them, are one, up to a complete transaction.

    `start` None: all of them, as far as they are complete.
    """
    count = 0
    for at, commit in enumerate(commits, 1):
        if start is not None and not covers(start, commit):
            break
        if not commit.is_part:
            count = at
    if count < 2:
        return list(commits)
    return [replace(commits[count - 1], offsets=total(commits[:count])), *commits[count:]]


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


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a batch, None: no limit. `bytes_between` returns the bytes between two cuts."""

    max_rows: int | None = None
    max_commits: int | None = None
    max_bytes: int | None = None
    bytes_between: Callable[[Offsets, Offsets], float] = distance


NO_LIMITS = BatchLimits()


def cut(start: Offsets, commits: Iterable[Commit], limits: BatchLimits = NO_LIMITS) -> Offsets:
    """Return the offsets after as many commits as the limits allow.

    At least one commit with records is included, however large, because the query could not progress otherwise. A
    commit without records is included only if it changes the loading tables.
    """
    reached, loading, taken, rows, size = without_loading(start), loading_of(start), 0, 0, 0.0
    parts: Offsets = {}
    for commit in commits:
        if commit.is_part:
            parts = merge(parts, commit.offsets)
            continue
        following, parts = merge(reached, merge(parts, commit.offsets)), {}
        if following != reached or commit.loading != loading:
            rows += distance(reached, following)
            size += 0.0 if limits.max_bytes is None else limits.bytes_between(reached, following)
            if taken and _exceeds(limits, rows, taken + 1, size):
                break
            taken += 1
        reached, loading = following, commit.loading
    return with_loading(reached, loading)


def _exceeds(limits: BatchLimits, rows: int, commits: int, size_bytes: float) -> bool:
    pairs = ((rows, limits.max_rows), (commits, limits.max_commits), (size_bytes, limits.max_bytes))
    return any(limit is not None and value > limit for value, limit in pairs)


def after_compaction(ends: Offsets, commits: Sequence[Commit]) -> list[Commit] | None:
    """Return the commits of a progress topic that has lost records, the first one with all partitions before it.

    Partitions that no record names have been complete for a long time, so that their `ends` are before the first
    commit. The remaining records do not describe the commits between them, so the first commit is the last complete
    one. None if there is none, or if a partition is named only by a part after it.
    """
    last = max((at for at, one in enumerate(commits) if not one.is_part), default=None)
    if last is None:
        return None
    named, later = total(commits[: last + 1]), total(commits[last + 1 :])
    if any(number not in named.get(topic, {}) for topic, numbers in later.items() for number in numbers):
        return None
    unnamed = {
        topic: {number: end for number, end in partitions.items() if number not in named.get(topic, {})}
        for topic, partitions in ends.items()
    }
    return [replace(commits[last], offsets=merge(named, unnamed)), *commits[last + 1 :]]


def total(commits: Iterable[Commit]) -> Offsets:
    """Return the offsets after all of these records."""
    offsets: Offsets = {}
    for commit in commits:
        for topic, partitions in commit.offsets.items():
            known = offsets.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = max(offset, known.get(partition, 0))
    return normal(offsets)


def only(offsets: Offsets, topics: frozenset[str] | None) -> Offsets:
    """Return the offsets of the given topics; None means all topics."""
    if topics is None:
        return offsets
    return {topic: partitions for topic, partitions in offsets.items() if topic in topics}
