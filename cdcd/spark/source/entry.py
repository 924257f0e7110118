"""The first commit from which on a query can read the records of a progress topic one by one.

In: the records of a topic that has lost some, read twice; the ends of all partitions.  Out: the first commit.
Invariant: the first commit has all records of each partition up to there, also those of records that were removed.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdcd.spark.source.cuts import OWN, Commit, Offsets, add, merge
from cdcd.spark.source.slots import Slots, pairs_of


class Entry:
    """Finds the first commit of a progress topic that has lost records.

    A record that compaction has left does not describe the commits before it. A partition's offset is therefore known
    only from the first commit that names the partition, and only by the partition's own slot: a slot that has
    replaced another slot may have written to the partition before the first record that compaction has left of the
    new slot. The first commit is therefore the first commit by which every partition has been named.

    Partitions that no record names have been complete for a long time: their ends are before the first commit, if
    they were listed before the records were read, and if the records have each transaction that had written by then.
    Partitions that only the first snapshot or transaction of a slot names remain unchanged until that snapshot or
    transaction is complete.
    """

    def __init__(self) -> None:
        self.slots = Slots()
        self._complete: set[str] = set()
        self._owner: dict[str, str] = {}
        """By topic, the slot that has described it last."""
        self._names: dict[str, set[tuple[str, str]]] = {}
        """By slot, the partitions that its complete commits name."""
        self._own: dict[str, set[tuple[str, str]]] = {}
        """By slot, the partitions that its own records since its last complete commit name."""
        self._describing: set[str] = set()
        """The slots that have described topics."""
        self._place: int | None = None

    def add(self, record: Commit) -> None:
        """Add the next record."""
        slot = record.slot
        if record.described:
            self._describing.add(slot)
        self._forget(slot, record.described)
        self._owner |= dict.fromkeys(record.described, slot)
        own = self._own.setdefault(slot, set())
        own |= pairs_of(record.offsets)
        commit = self.slots.add(record)
        if commit is None:
            return
        self._complete.add(slot)
        names = self._names.setdefault(slot, set())
        if not own <= names:
            names |= own
            self._place = None
        del self._own[slot]
        if self._place is None:
            self._place = commit.place

    def _forget(self, slot: str, described: frozenset[str]) -> None:
        """Forget where other slots have named the topics that a slot has described.

        The slot may have written to these topics afterwards, in records before the first record that compaction has
        left of the slot.
        """
        for other, names in self._names.items():
            gone = set() if other == slot else {pair for pair in names if pair[0] in described}
            if gone:
                names -= gone
                self._place = None

    @property
    def _named(self) -> set[tuple[str, str]]:
        return set().union(*self._names.values())

    def unnamed_of(self, listed: Offsets) -> list[str]:
        """Return the topics that slots have described, that no record names, and that are not listed."""
        named = {topic for topic, _ in self._named}.union(*(one.offsets for one in self.slots.open.values()))
        return sorted(self._owner.keys() - named - listed.keys())

    def place(self, ends: Offsets) -> int | None:
        """Return the offset of the record that completes the first commit, None if it is not known yet.

        It is not known while a slot with commits has records that are not complete of a partition that none of the
        commits names; nor while a slot without a commit may have written such records to a partition that none of
        those names which are left. Compaction leaves the last of the former records of a slot, and all later ones.
        """
        unnamed = {topic for topic, numbers in self._unnamed(ends).items() if any(numbers.values())}
        for slot, parts in self.slots.open.items():
            if slot in self._complete and not parts.pairs <= self._named:
                return None
            if slot not in self._complete and any(self._may_write(slot, topic) for topic in unnamed):
                return None
        return self._place

    def _may_write(self, slot: str, topic: str) -> bool:
        """Return whether a topic may be one of a slot, as far as the slots have described theirs."""
        if slot in self._describing:
            return self._owner.get(topic) == slot
        return topic not in self._owner

    def first(self, ends: Offsets, commits: Iterable[Commit]) -> Commit | None:
        """Return the first commit, from the complete commits read once more, and none after it."""
        offsets: Offsets = {}
        former: frozenset[str] = frozenset()
        place, commit_us = self.place(ends), 0
        for commit in commits:
            add(offsets, commit)
            former |= commit.former
            commit_us = max(commit_us, commit.commit_us)  # of two slots the last commit may be an earlier one
            if place is not None and commit.place >= place:
                proved = merge(self._proved(offsets), self._unnamed(ends))
                found = replace(commit, positions=commit.slot_positions, commit_us=commit_us)
                return replace(found, offsets=proved, former=former, firsts=None, slot=OWN)
        return None

    def _proved(self, offsets: Offsets) -> Offsets:
        """Return the offsets of the partitions that their own slot has named."""
        named = self._named
        return {
            topic: {number: one for number, one in numbers.items() if (topic, number) in named}
            for topic, numbers in offsets.items()
        }

    def _unnamed(self, ends: Offsets) -> Offsets:
        """Return the ends of the partitions that no record names."""
        named = self._named.union(*(self._own.get(slot, set()) for slot in self.slots.open))
        return {
            topic: {number: end for number, end in numbers.items() if (topic, number) not in named}
            for topic, numbers in ends.items()
        }
