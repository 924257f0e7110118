"""The complete commits of all slots that write to one progress topic.

In: progress records in order.  Out: commits, each complete.
Invariant: a commit has all records of its slot since the slot's previous commit, and none of another slot, whose
transaction or snapshot may be incomplete at the same time. The tables that are loading at a commit are those of all
slots, each at its last complete commit.
Must not: do I/O.

A topic has one slot at a time. Slots of one name that run at the same time have different topics; where a slot
describes or writes to a topic of another one, it has replaced that one, whose records may never become complete.
`Writers` finds the topics of which this is not true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from cdcd.spark.source.cuts import Commit, Offsets, add, merge, normal, without, without_offsets
from cdcd.spark.source.first_offsets import earlier, of_named
from cdcd.spark.source.shared_topics import Writers


@dataclass(slots=True)
class Parts:
    """The records of a slot since its last complete commit. `newest`: the last of them, None without any."""

    offsets: Offsets = field(default_factory=dict)
    former: frozenset[str] = frozenset()
    newest: Commit | None = None
    has_snapshot: bool = False
    commit_us: int = 0
    firsts: Offsets | None = field(default_factory=dict)

    def add(self, record: Commit) -> None:
        """Add the slot's next record."""
        add(self.offsets, record)
        self.firsts = earlier(self.firsts, record.firsts if record.offsets else {})
        self.former |= record.former
        self.newest = record
        self.has_snapshot |= record.snapshot is not None
        self.commit_us = max(self.commit_us, record.commit_us)

    def take_over(self, other: Parts) -> None:
        """Add the records of a slot that this one has replaced."""
        self.offsets = merge(self.offsets, other.offsets)
        self.firsts = earlier(self.firsts, other.firsts)
        self.former |= other.former
        self.has_snapshot |= other.has_snapshot

    def completed_by(self, record: Commit) -> Commit:
        """Return all of them as one commit. `record`: the last of them, a complete one."""
        return replace(
            record,
            offsets=normal(self.offsets),
            firsts=of_named(self.firsts, self.offsets),
            former=self.former,
            ends_snapshot=self.has_snapshot and record.snapshot is None,
            commit_us=self.commit_us,
        )

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether the newest record is of a snapshot that is not complete."""
        return self.newest is not None and self.newest.snapshot is not None

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """The partitions that they name."""
        return pairs_of(self.offsets)


def pairs_of(offsets: Offsets) -> set[tuple[str, str]]:
    """Return topic and number of each partition."""
    return {(topic, number) for topic, numbers in offsets.items() for number in numbers}


class Slots:
    """The state of each slot. `open`: by slot, the records that are not complete."""

    def __init__(self) -> None:
        self.open: dict[str, Parts] = {}
        self._loading: dict[str, frozenset[str]] = {}
        self.writers = Writers()

    def add(self, record: Commit) -> Commit | None:
        """Return the commit that the next record completes, None for a part."""
        self.writers.add(record)
        parts = self.open.pop(record.slot, None)
        if not record.is_part or record.slot not in self._loading:
            self._loading[record.slot] = record.loading
        if len(self._loading) > 1:
            parts = self._replaced_others(record, parts)
        if record.is_part or parts is not None:
            parts = Parts() if parts is None else parts
            parts.add(record)
        if record.is_part and parts is not None:
            self.open[record.slot] = parts
            return None
        commit = record if parts is None else parts.completed_by(record)
        loading = frozenset[str]().union(*self._loading.values())
        return commit if loading == commit.loading else replace(commit, loading=loading)

    def _replaced_others(self, record: Commit, parts: Parts | None) -> Parts | None:
        """End the loading tables of slots that this record's slot has replaced; return its parts with theirs."""
        others = {slot for slot, loading in self._loading.items() if loading or slot in self.open}
        for slot in others - {record.slot}:
            topics = {*record.offsets, *record.loading, *(record.snapshot or ()), *record.described}
            self._loading[slot] -= topics
            if slot in self.open and not topics.isdisjoint(self.open[slot].offsets):
                parts = Parts() if parts is None else parts
                parts.take_over(self.open.pop(slot))
        return parts

    def remove(self, topics: frozenset[str], *, are_former: bool) -> None:
        """Remove the offsets of topics. `are_former`: they were created again."""
        self.writers.forget(topics)
        for parts in self.open.values():
            assert parts.newest is not None
            commit = replace(parts.newest, offsets=parts.offsets, former=parts.former)
            commit = without(commit, topics) if are_former else without_offsets(commit, topics)
            parts.offsets, parts.former = commit.offsets, commit.former

    @property
    def newest(self) -> list[Commit]:
        """The newest record of each slot that has records which are not complete."""
        return [parts.newest for parts in self.open.values() if parts.newest is not None]

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether a snapshot of some slot is not complete."""
        return any(parts.is_inside_snapshot for parts in self.open.values())


def complete_commits(records: Iterable[Commit], slots: Slots | None = None) -> Iterator[Commit]:
    """Yield the complete commits of records."""
    slots = Slots() if slots is None else slots
    for record in records:
        commit = slots.add(record)
        if commit is not None:
            yield commit
