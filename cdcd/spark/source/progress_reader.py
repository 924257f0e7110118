"""The progress records of one daemon, in order.

In: `<prefix>.__progress`, one partition; the ids of the topics.  Out: `Commit`, a record each.
Invariant: a commit names no offset of a topic that was deleted since: Kafka has none of its rows. The topics that
lack rows until a copy brings them, by the slot's record of its topics, are loading as those of a copy are.
Must not: import PySpark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cdcd.spark.clients.kafka import Cluster, Tail
from cdcd.spark.source.cuts import Commit, parse_progress, without, without_offsets
from cdcd.spark.source.first_offsets import first_offsets, of_named
from cdcd.spark.source.topic_ids import TopicIds, described_in

_TOPICS = "/topics"


class ProgressReader:
    """A reader of `<prefix>.__progress` from its start."""

    def __init__(
        self,
        brokers: str,
        properties: Mapping[str, str],
        topic: str,
        cluster: Cluster,
        ids: TopicIds | None = None,
        topics: frozenset[str] | None = None,
    ) -> None:
        """`ids` None: all offsets are returned. `topics`: those that the query reads; None: all."""
        self._tail = Tail(brokers, properties, topic, cluster)
        self._ids = ids
        self._topics = topics
        self._counted = 0
        self._slots: set[str] = set()
        self._recorded: dict[str, dict[str, int]] = {}
        """By slot, the ids that it has described last, of the topics that the query reads."""
        self._new: dict[str, frozenset[str]] = {}
        """By slot, the topics that it has described first since its last progress record."""
        self._incomplete: dict[tuple[str, int], frozenset[str]] = {}
        """By slot and offset of its record of its topics, those that lack rows."""
        self._described_at: set[tuple[str, int]] = set()
        """The slots' records of their topics that were read: slot, offset."""
        self._commit_us: dict[str, int] = {}
        """By slot, the last commit time that was read."""
        self._has_all_before: bool | None = None
        self.changed: set[str] = set()
        """The topics that were created again since a record was read that names offsets of them."""

    @property
    def is_whole(self) -> bool:
        """Whether compaction has removed none of the progress records up to the last one read.

        Compaction retains the last record of a key. If it removed a record of a slot, there is a gap before the first
        remaining one. With two slots, the last record of one may be the first in the topic, which proves nothing.
        """
        return bool(self._has_all_before) and len(self._slots) == 1

    @property
    def has_topic(self) -> bool:
        """Whether the topic has been found."""
        return self._tail.exists

    @property
    def is_empty(self) -> bool:
        """Whether no progress record has been read."""
        return self._has_all_before is None

    @property
    def slots(self) -> frozenset[str]:
        """The slots that have progress records, of those that may have written to a topic of the query."""
        return frozenset(slot for slot in self._slots if self._recorded.get(slot) != {})

    def end_now(self) -> None:
        """End at the record that is the newest now: later ones are not read."""
        self._tail.end_now()

    def note_written(self) -> None:
        """Note the newest record that is written now, of a transaction that may not be complete."""
        self._tail.note_written()

    @property
    def has_read_written(self) -> bool:
        """Whether each transaction that had written at the last `note_written` is complete, and was read."""
        return self._tail.has_read_written

    def rewind(self) -> None:
        """Begin again with the first record."""
        self._tail.rewind()
        self._recorded.clear()
        self._described_at.clear()
        self._incomplete.clear()
        self._new.clear()
        self._commit_us.clear()
        self.changed.clear()  # what is read again names no offset of a former topic

    def read(self, passed: Collection[str] = ()) -> Iterator[Commit]:
        """Yield the records that were committed since the last call; none while the topic does not exist.

        A caller may stop in the middle: the next call continues there. `passed`: slots whose progress is not wanted,
        to which a caller may add in between.
        """
        for message in self._tail.messages():
            value, place = message.value(), message.offset()
            name = (message.key() or b"").decode(errors="replace")
            # With a / in its key the record describes a slot, not its progress.
            if value is not None and "/" not in name:
                if self._has_all_before is None:
                    self._has_all_before = place == self._counted
                self._slots.add(name)
                if name not in passed:
                    commit = self._dated(self._commit(name, value, place), message.timestamp())
                    yield replace(commit, firsts=of_named(first_offsets(message.headers()), commit.offsets))
            elif value is not None and name.endswith(_TOPICS):
                self._describe(name.removesuffix(_TOPICS), value, place)
            self._counted += 1

    def _dated(self, commit: Commit, timestamp: tuple[int, int]) -> Commit:
        """Return a record with its time: one without a new transaction has the commit time of the last one."""
        before_us = self._commit_us.get(commit.slot)
        self._commit_us[commit.slot] = max(commit.commit_us, before_us or 0)
        _, at_ms = timestamp
        if before_us is None or commit.commit_us > before_us or at_ms <= 0:
            return commit
        return replace(commit, since_us=at_ms * 1000)

    def _describe(self, slot: str, value: bytes, place: int) -> None:
        """Note a slot's record of its topics."""
        self._described_at.add((slot, place))
        found, incomplete = described_in(value)
        if incomplete:
            self._incomplete[slot, place] = incomplete
        if not found:
            self._recorded.pop(slot, None)
            return
        if self._topics is not None:
            found = {topic: one for topic, one in found.items() if topic in self._topics}
        new = found.keys() - self._recorded.get(slot, {}).keys()
        self._new[slot] = self._new.get(slot, frozenset()) | new
        self._recorded[slot] = found
        if self._ids is not None:
            self.changed |= self._ids.note(slot, found)

    def _commit(self, slot: str, value: bytes, place: int) -> Commit:
        """Return a progress record, without its offsets of former topics.

        If compaction has removed the record that described its topics, its offsets may be of former topics, and are
        left out. This is then the first progress record of the slot that is left, and `Entry` needs none of it: a
        partition that no later record names has had all of its records since.
        """
        new = self._new.pop(slot, frozenset[str]())
        is_foreign = self._recorded.get(slot) == {}
        commit = replace(parse_progress(value), place=place, slot=slot, described=new, is_foreign=is_foreign)
        if commit.topics_at >= 0 and (slot, commit.topics_at) not in self._described_at:
            return without_offsets(commit, commit.offsets.keys())
        if incomplete := self._incomplete_at(slot, commit.topics_at):
            # The same object where it can be: there may be thousands of commits with as many topics.
            copied = commit.loading
            waiting, loading = (
                (incomplete - copied, copied | incomplete) if copied else (incomplete, incomplete)
            )
            commit = replace(commit, loading=loading, waiting=waiting)
        recorded = self._recorded.get(slot)
        if self._ids is None or not recorded:
            return commit
        return without(commit, self._ids.former(recorded, commit.offsets))

    def _incomplete_at(self, slot: str, topics_at: int) -> frozenset[str]:
        """Return the topics that lack rows by the record of the topics that a progress record names."""
        for former in [one for one in self._incomplete if one[0] == slot and one[1] < topics_at]:
            del self._incomplete[former]
        return self._incomplete.get((slot, topics_at), frozenset())

    def close(self) -> None:
        """Close the consumer."""
        self._tail.close()
