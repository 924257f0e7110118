"""The end of a batch: offsets of all topics at one PostgreSQL commit.

In: complete commits in order (`slots.Slots`) and a batch's start offsets.  Out: the batch's end offsets.
Invariant: a cut is the sum of complete commits, so that it never splits a PostgreSQL transaction; offsets of a topic
never decrease. It ends inside a snapshot only for a query that asks for the loading tables (`commit_of_query`).
Offsets are {topic: {partition as text: next offset}}, the JSON that Spark stores in its checkpoint. They contain
pseudo topics, too: the tables that are loading at the cut (`with_loading`), so that a repeated batch knows them; the
ids of the topics (`with_ids`), which distinguish the offsets of a topic that was created again from those of the
former one; and in the first end of a query its start (`with_start`), which Spark does not store.
Must not: do I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from cdcd.errors import ProgressUnreadable
from cdcd.lsn import parse_lsn
from cdcd.spark.source.first_offsets import of_named
from cdcd.spark.source.source_position import (
    UNKNOWN_ORIGIN,
    Origin,
    SlotPosition,
    SourcePosition,
    lowest,
    origin_of,
)

Offsets = dict[str, dict[str, int]]
PROGRESS_FORMATS = (1, 2)
SEVERAL, OWN = "/several", ""
"""In place of the slot of a commit that is the sum of commits of several slots; `OWN`: each partition's offset is of
the slot that writes to it now. No slot has a / in its name."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One progress record: the partitions that its Kafka transaction wrote to, with their next offsets.

    Or the sum of several records: of one slot, if they are complete together; or of all slots up to one record.
    `slot`: the slot that wrote it, `SEVERAL`, or `OWN`. `described`: the topics that the slot has described since its
    last record.
    `is_part`: a PostgreSQL transaction is written only in part, or the markers of an accepted gap are not written
    yet, so a batch must not end here. `is_apart`: tables were copied at different points, and the stream has not
    passed the last one: their rows are of different moments.
    `loading`: the topics of the tables that cdcd copies while it streams, or will copy: rows are still missing.
    `snapshot`: the topics of which an incomplete snapshot may have written rows; None outside a snapshot.
    `ends_snapshot`: a snapshot is complete with it. `firsts`: the offsets of its first records; None: not known.
    `end_lsn`: all commits below it are in Kafka. `commit_us`: the time of the last commit (Unix epoch), 0 if unknown.
    `since_us`: without a transaction after the slot's record before it (rows of a copy), when it was written; else 0.
    `place`: the offset of the record, -1 if unknown. `topics_at`: that of the slot's record of its topics, -1: none.
    `former`: the topics that were created again since this record: its offsets in them are left out, because Kafka
    has none of its rows.
    `origin`: of its LSNs. `positions`: by slot, that of each slot with topics of the query up to here; None: there is
    only this one. `ended`: the slots before that were replaced. `first_lsns`: `SourcePosition.first`. `is_foreign`:
    the slot has no topic of the query. `waiting`: those of `loading` that are not being copied.
    """

    commit_lsn: str
    offsets: Offsets
    is_part: bool = False
    is_apart: bool = False
    loading: frozenset[str] = frozenset()
    snapshot: frozenset[str] | None = None
    end_lsn: str = "0/0"
    commit_us: int = 0
    since_us: int = 0
    place: int = -1
    topics_at: int = -1
    former: frozenset[str] = frozenset()
    slot: str = ""
    described: frozenset[str] = frozenset()
    ends_snapshot: bool = False
    firsts: Offsets | None = None
    origin: Origin = UNKNOWN_ORIGIN
    positions: Mapping[str, SlotPosition] | None = None
    ended: frozenset[str] = frozenset()
    first_lsns: Mapping[str, int] = field(default_factory=dict)
    is_foreign: bool = False
    waiting: frozenset[str] = frozenset()

    @property
    def position(self) -> SlotPosition:
        """The position of its slot.

        F33: an undecided PREPARE holds `end_lsn` below commits that are in Kafka; it commits after these.
        """
        end_lsn = parse_lsn(self.end_lsn)
        if self.snapshot is None:  # in a snapshot `commit_lsn` is that of the stream before it
            end_lsn = max(end_lsn, parse_lsn(self.commit_lsn))
        return SlotPosition(end_lsn, *self.origin)

    @property
    def slot_positions(self) -> Mapping[str, SlotPosition]:
        """By slot, the positions of all slots up to here."""
        return {self.slot: self.position} if self.positions is None else self.positions

    @property
    def size(self) -> int:
        """The number of offsets and of first offsets, as a measure of the commit's memory."""
        firsts = {} if self.firsts is None else self.firsts
        return 1 + sum(map(len, self.offsets.values())) + sum(map(len, firsts.values()))


def position_at(offsets: Offsets, commits: Iterable[Commit]) -> SourcePosition:
    """Return the position of offsets that are the end of one of these commits, which are in order."""
    last, commit_us = None, 0
    for commit in commits:
        if not covers(offsets, commit):
            break
        last, commit_us = commit, max(commit.commit_us, commit_us)
    if last is None:
        return SourcePosition()
    slots = last.slot_positions
    return SourcePosition(lowest(slots), commit_us, slots, last.ended, last.first_lsns)


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
            is_apart=_is_apart(fields),
            loading=_loading_of_record(fields),
            snapshot=_snapshot_of_record(fields),
            end_lsn=str(fields["end_lsn"]),
            commit_us=int(fields["commit_us"]),
            topics_at=int(fields.get("topics_at", -1)),
            origin=_origin_of_record(fields),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProgressUnreadable("this version cannot read a progress record") from error
    if not known:
        raise ProgressUnreadable("a progress record has an unknown format", format=fields["format"])
    return commit


def _origin_of_record(fields: Mapping[str, Any]) -> Origin:
    began_lsn = parse_lsn(fields.get("timeline_lsn", "0/0"))
    return origin_of(str(fields.get("system_identifier", "")), int(fields.get("timeline", 0)), began_lsn)


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


def commit_of_query(
    commit: Commit, topics: frozenset[str] | None, *, loading: bool, copies: bool = False
) -> Commit:
    """Return what a query of these topics (None: all) sees of a record.

    `loading`: the query asks for the loading tables, so it sees the tables of an incomplete snapshot as such tables,
    also those that are apart. For other queries the snapshot is one commit, and this record a part of it. So is for
    both the stream until no table is apart. `copies`: such a query sees which of its tables cdcd copies while it
    streams.
    """
    inside = commit.snapshot or frozenset()
    copied = commit.loading if loading or copies else frozenset()
    of_query = copied | inside if loading else copied
    offsets = only(commit.offsets, topics)
    is_inside = commit.snapshot is not None
    return replace(
        commit,
        offsets=offsets,
        firsts=of_named(commit.firsts, offsets),
        is_part=commit.is_part or ((is_inside or commit.is_apart) and not (is_inside and loading)),
        loading=of_query if topics is None else of_query & topics,
        former=commit.former if topics is None else commit.former & topics,
    )


LOADING = "loading/"
"""The prefix of the pseudo topics of loading tables; no Kafka topic has a slash in its name."""
ID = "id/"
"""The prefix of the pseudo topics with the ids of topics."""
ID_BITS = 48
"""The bits of an id: every JSON parser represents such a number exactly."""
START = "from/"
"""The prefix of the pseudo topics with the start of a query's first batch."""


def with_loading(offsets: Offsets, loading: frozenset[str]) -> Offsets:
    """Return offsets of Kafka topics together with the loading tables."""
    return normal({**offsets, **{LOADING + topic: {"0": 1} for topic in loading}}) if loading else offsets


def loading_of(offsets: Offsets) -> frozenset[str]:
    """Return the topics of the loading tables."""
    return frozenset(topic.removeprefix(LOADING) for topic in offsets if topic.startswith(LOADING))


def with_ids(offsets: Offsets, ids: Mapping[str, int]) -> Offsets:
    """Return offsets together with the ids of the topics that have some."""
    known = [topic for topic, found in offsets.items() if topic in ids and any(found.values())]
    return normal({**offsets, **{ID + topic: {"0": ids[topic]} for topic in known}})


def ids_of(offsets: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the ids of the topics; offsets of a user, or of an earlier version, have none.

    Ids of earlier versions have 56 bits, of which this returns the first `ID_BITS`.
    """
    found = {topic.removeprefix(ID): one["0"] for topic, one in offsets.items() if topic.startswith(ID)}
    return {topic: one >> 8 if one >> ID_BITS else one for topic, one in found.items()}


def with_start(offsets: Offsets, start: Offsets) -> Offsets:
    """Return the end of a query's first batch together with its start, that of each topic of the end."""
    return normal({**offsets, **{START + topic: start.get(topic, {}) for topic in of_topics(offsets)}})


def start_of(offsets: Offsets) -> Offsets | None:
    """Return the start of a batch that its end has, None if it has none."""
    found = {topic.removeprefix(START): one for topic, one in offsets.items() if topic.startswith(START)}
    return found or None


def without_start(offsets: Offsets) -> Offsets:
    """Return the end of a batch without its start."""
    return {topic: found for topic, found in offsets.items() if not topic.startswith(START)}


def of_topics(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of Kafka topics only."""
    return {topic: dict(found) for topic, found in offsets.items() if not is_pseudo(topic)}


def is_pseudo(topic: str) -> bool:
    """Return whether this is no topic of Kafka."""
    return topic.startswith((LOADING, ID, START))


def covers(offsets: Offsets, commit: Commit) -> bool:
    """Return whether all records of a commit are before these offsets."""
    return all(
        offsets.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in commit.offsets.items()
        for partition, offset in partitions.items()
    )


def without(commit: Commit, topics: frozenset[str]) -> Commit:
    """Return a commit without its rows in these topics, which were created again."""
    gone = topics & commit.offsets.keys()
    return replace(without_offsets(commit, gone), former=commit.former | gone) if gone else commit


def without_offsets(commit: Commit, topics: Set[str]) -> Commit:
    """Return a commit without its offsets of these topics."""
    if topics.isdisjoint(commit.offsets):
        return commit
    left = {name: one for name, one in commit.offsets.items() if name not in topics}
    return replace(commit, offsets=left, firsts=of_named(commit.firsts, left))


def has_records(offsets: Offsets, topic: str) -> bool:
    """Return whether a topic has records before these offsets."""
    return any(offsets.get(topic, {}).values())


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
    """Return the offsets after as many commits as the limits allow, without ids.

    At least one commit with records is included, however large, because the query could not progress otherwise. A
    commit without records is included only if it changes the loading tables.
    """
    reached, loading, taken, rows, size = of_topics(start), loading_of(start), 0, 0, 0.0
    for commit in commits:
        before, after = _moved(reached, commit)
        if after or commit.loading != loading:
            rows += distance(before, after)
            size += 0.0 if limits.max_bytes is None else limits.bytes_between(before, after)
            if taken and _exceeds(limits, rows, taken + 1, size):
                break
            taken += 1
        for topic, partitions in after.items():
            reached.setdefault(topic, {}).update(partitions)
        loading = commit.loading
    return with_loading(normal(reached), loading)


def _moved(reached: Offsets, commit: Commit) -> tuple[Offsets, Offsets]:
    """Return the partitions that a commit moves, before and after it.

    The cost is that of the partitions that the commit names, as there may be hundreds of tables.
    """
    before: Offsets = {}
    after: Offsets = {}
    for topic, partitions in commit.offsets.items():
        known = reached.get(topic, {})
        for partition, offset in partitions.items():
            if offset > known.get(partition, 0):
                before.setdefault(topic, {})[partition] = known.get(partition, 0)
                after.setdefault(topic, {})[partition] = offset
    return before, after


def _exceeds(limits: BatchLimits, rows: int, commits: int, size_bytes: float) -> bool:
    pairs = ((rows, limits.max_rows), (commits, limits.max_commits), (size_bytes, limits.max_bytes))
    return any(limit is not None and value > limit for value, limit in pairs)


def total(commits: Iterable[Commit]) -> Offsets:
    """Return the offsets after all of these records."""
    offsets: Offsets = {}
    for commit in commits:
        add(offsets, commit)
    return normal(offsets)


def add(offsets: Offsets, commit: Commit) -> None:
    """Add a record to the offsets after those before it."""
    for topic, partitions in commit.offsets.items():
        known = offsets.setdefault(topic, {})
        for partition, offset in partitions.items():
            known[partition] = max(offset, known.get(partition, 0))


def only(offsets: Offsets, topics: frozenset[str] | None) -> Offsets:
    """Return the offsets of the given topics; None means all topics."""
    if topics is None:
        return offsets
    return {topic: partitions for topic, partitions in offsets.items() if topic in topics}
