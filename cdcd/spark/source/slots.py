"""The complete commits of all slots that write to one progress topic.

In: progress records in order.  Out: commits, each complete.
Invariant: a commit has all records of its slot since the slot's previous commit, and none of another slot, whose
transaction or snapshot may be incomplete at the same time. The tables that are loading at a commit are those of all
slots, each at its last complete commit. So are its positions in the source (`SlotPositions`). Both are without slots
that have retired, of which Kafka has no topic any more.
Must not: do I/O.

A topic has one slot at a time. Slots of one name that run at the same time have different topics; where a slot
describes or writes to a topic of another one, it has replaced that one, whose records may never become complete.
`Writers` finds the topics of which this is not true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cdcd.spark.source.cuts import Commit, Offsets, add, merge, normal, without, without_offsets
from cdcd.spark.source.first_offsets import earlier, of_named
from cdcd.spark.source.shared_topics import Writers
from cdcd.spark.source.source_position import JOINING, NOTHING, SlotPosition


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
        self.commit_us = max(self.commit_us, other.commit_us)

    def completed_by(self, record: Commit) -> Commit:
        """Return all of them as one commit. `record`: the last of them, a complete one."""
        return replace(
            record,
            offsets=normal(self.offsets),
            firsts=of_named(self.firsts, self.offsets),
            former=self.former,
            ends_snapshot=self.has_snapshot and record.snapshot is None,
            commit_us=self.commit_us,
            since_us=0
            if self.has_snapshot
            else record.since_us,  # a snapshot's rows are as of its commit time
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


class SlotPositions:
    """The position of each slot at its last complete commit, without slots that others have replaced completely.

    A slot is replaced when others have described all of its topics since, and lives again with its next record. So
    is one whose topics that no other slot has described were all deleted: it has retired, and nobody replaces those.
    """

    def __init__(self) -> None:
        self._last: dict[str, Commit | None] = {}
        """By slot, its last complete commit, None while there is none."""
        self.ended: frozenset[str] = frozenset()
        """The slots that were replaced, or have no topic of the query."""
        self._topics: dict[str, set[str]] = {}
        """By slot, the topics that it has described or written to, and that no other one has described since."""
        self.first: dict[str, int] = {}
        """By slot, an LSN before which it has sent no commit: its position before its first rows of the stream."""
        self._has_sent: set[str] = set()

    def add(self, record: Commit) -> None:
        """Add the next record."""
        slot = record.slot
        if record.is_foreign:
            self.end(slot)
            return
        if slot in self.ended:
            self.ended -= {slot}
        if slot not in self._has_sent:
            self._note_first(record)
        self._last[slot] = self._last.get(slot) if record.is_part else record
        if record.described and len(self._last) > 1:
            self._end_replaced(slot, record.described)
        topics = self._topics.setdefault(slot, set())
        topics.update(record.offsets, record.described)

    def _note_first(self, record: Commit) -> None:
        if record.offsets and record.snapshot is None:
            self._has_sent.add(record.slot)
            self.first = {record.slot: NOTHING, **self.first}
        else:
            self.first = {**self.first, record.slot: record.position.end_lsn}  # commits have the former ones

    def _end_replaced(self, slot: str, described: frozenset[str]) -> None:
        for other in self._last.keys() - {slot}:
            topics = self._topics.get(other, set())
            if topics and topics <= described:
                self.end(other)
            topics -= described

    @property
    def together(self) -> frozenset[str]:
        """The slots that have not ended, if there are several."""
        return frozenset(self._last) if len(self._last) > 1 else frozenset()

    def topics(self, slot: str) -> frozenset[str]:
        """Return the topics of a slot that no other one has described since."""
        return frozenset(self._topics.get(slot, ()))

    def end(self, slot: str) -> None:
        """End a slot; it lives again with its next record."""
        self._last.pop(slot, None)
        self.ended |= {slot}

    def at(self, commit: Commit) -> Mapping[str, SlotPosition] | None:
        """Return the positions at a commit that was added last; None if it is of the only slot."""
        if self._last.keys() == {commit.slot}:
            return None
        return {slot: JOINING if last is None else last.position for slot, last in self._last.items()}


class Slots:
    """The state of each slot. `open`: by slot, the records that are not complete."""

    def __init__(self) -> None:
        self.open: dict[str, Parts] = {}
        self._loading: dict[str, frozenset[str]] = {}
        self._positions = SlotPositions()
        self._sent: set[str] | None = None
        """The slots with a record since the last look for deleted topics, None before the first look."""
        self.writers = Writers()

    def add(self, record: Commit) -> Commit | None:
        """Return the commit that the next record completes, None for a part."""
        self.writers.add(record)
        if self._sent is not None:
            self._sent.add(record.slot)
        parts = self.open.pop(record.slot, None)
        self._positions.add(record)
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
        positions, ended = self._positions.at(record), self._positions.ended
        if positions is None and not ended and loading == commit.loading:
            return commit
        first = self._positions.first
        return replace(commit, loading=loading, positions=positions, ended=ended, first_lsns=first)

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
    def together(self) -> frozenset[str]:
        """The slots that have not ended, if there are several."""
        return self._positions.together

    def end_deleted(self, are_gone: Callable[[frozenset[str]], bool]) -> Mapping[str, frozenset[str]]:
        """End the slots whose topics are all gone, as others have replaced them; return the topics of each.

        One that has sent a record since the last call runs: its position goes on, although it has no topic.
        """
        ended: dict[str, frozenset[str]] = {}
        runs, self._sent = self._sent or set(), set()
        for slot in sorted(self.together - runs):
            written = self.open[slot].offsets.keys() if slot in self.open else frozenset[str]()
            topics = self._positions.topics(slot) | written | self._loading.get(slot, frozenset())
            if topics and self.together and are_gone(topics):
                self._positions.end(slot)
                self._loading.pop(slot, None)
                self.open.pop(slot, None)
                ended[slot] = topics
        return ended

    @property
    def newest(self) -> list[Commit]:
        """The newest record of each slot that has records which are not complete."""
        return [parts.newest for parts in self.open.values() if parts.newest is not None]

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether a snapshot of some slot is not complete."""
        return any(parts.is_inside_snapshot for parts in self.open.values())


def without_slot(commit: Commit, slot: str, topics: frozenset[str]) -> Commit:
    """Return a commit without the tables and the position of a slot that was ended, if another one has a position."""
    commit = replace(commit, loading=commit.loading - topics, waiting=commit.waiting - topics)
    positions = {other: one for other, one in commit.slot_positions.items() if other != slot}
    if not positions or slot not in commit.slot_positions:
        return commit
    return replace(commit, positions=positions, ended=commit.ended | {slot})


def complete_commits(records: Iterable[Commit], slots: Slots | None = None) -> Iterator[Commit]:
    """Yield the complete commits of records."""
    slots = Slots() if slots is None else slots
    for record in records:
        commit = slots.add(record)
        if commit is not None:
            yield commit
