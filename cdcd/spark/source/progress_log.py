"""The complete commits of one daemon that a query has not passed yet.

In: the options of a query; the progress topic.  Out: commits in order, none of them inside a transaction.
Invariant: the records of a progress topic that was compacted are read one by one only from the commit on at which the
offset of each partition is known. No commit names a topic that Kafka does not have, unless the query has read it.
Must not: import PySpark.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from cdcd.errors import SinkAuthorization, SparkReadError
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source.cuts import (
    OWN,
    SEVERAL,
    Commit,
    Offsets,
    add,
    commit_of_query,
    covers,
    has_records,
    of_topics,
    without,
    without_offsets,
)
from cdcd.spark.source.entry import Entry
from cdcd.spark.source.joined_commits import as_one, without_firsts
from cdcd.spark.source.positions import LATEST
from cdcd.spark.source.prefix_topics import PROGRESS_SUFFIX, by_topic, is_outside, partitions_of
from cdcd.spark.source.progress_reader import ProgressReader
from cdcd.spark.source.retained_ranges import DeletedTopics
from cdcd.spark.source.slots import Slots, complete_commits, pairs_of, without_slot
from cdcd.spark.source.source_options import SourceOptions
from cdcd.spark.source.topic_ids import TopicIds

log = logging.getLogger("cdcd.spark.data_source")
_HIDDEN = "the principal may not describe a topic: the query would leave out its rows"
_HIDDEN_HINT = "grant the principal Read and Describe on it, or name the others in the option `topics`"
_UNDESCRIBED = (
    "the progress topic has lost records, and the tables' topics do not begin with the prefix, so that the query "
    "does not find those of which no record is left"
)
_UNDESCRIBED_HINT = (
    "name the topics in the option `topics`; or run the slot's daemon, if it still exists: it describes them"
)
READ_OFFSETS = 100_000
"""After records with this many offsets, the commits at which no batch can end are combined into one.

With limits of a batch the other commits remain, and no more records are read until batches have passed them.
"""

_INCOMPLETE = (
    "%s: a transaction is not complete, and compaction has removed the progress records before it; the query reads "
    "nothing until the transaction is complete"
)
COMPLETE_WITHIN_S = 10.0
"""The time that a transaction usually needs at most; a query looks again at its next batch."""
LOOK_AGAIN_S = 0.05
RETIRED_EVERY_S = 10.0
"""How often the topics of several slots are looked up."""


class ProgressLog:
    """The commits that are read and not passed (`pending`), and the offsets after all that were read (`reached`).

    `passed`: the offsets after those that were passed.
    `is_behind`: progress records of a backlog are not read yet. `is_opened`: the records are read one by one.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster, ids: TopicIds) -> None:
        self._options = options
        self._cluster = cluster
        connection = options.connection
        self._reader = ProgressReader(
            connection.brokers,
            connection.read_properties(),
            connection.prefix + PROGRESS_SUFFIX,
            cluster,
            ids,
            options.topics,
        )
        self._deleted = DeletedTopics(cluster)
        self._slots = Slots()
        self._entry: Entry | None = None
        self._joins = options.starting.kind == LATEST and not options.loading
        self.pending: deque[Commit] = deque()
        self.reached: Offsets = {}
        self.passed: Offsets = {}
        self._passed_by: dict[tuple[str, str], str] = {}
        """By partition, the slot of the last passed commit that names it."""
        self.is_behind = self.is_opened = False
        self._outside: set[str] = set()
        """The topics that records name or describe, and that do not begin with the prefix: no list has them."""
        self._naming: set[str] = set()
        """The slots whose records name such topics."""
        self._describing: set[str] = set()
        self._looked_at: frozenset[str] = frozenset()
        self._look_again_s = 0.0

    def end_now(self) -> None:
        """Read no further than the progress record that is the newest now."""
        self._reader.end_now()

    @property
    def is_whole(self) -> bool:
        """Whether compaction has removed none of the progress records."""
        return self._reader.is_whole

    @property
    def has_topic(self) -> bool:
        """Whether the progress topic has been found."""
        return self._reader.has_topic

    @property
    def is_empty(self) -> bool:
        """Whether no progress record has been read."""
        return self._reader.is_empty

    @property
    def is_waiting(self) -> bool:
        """Whether there are records, but the first commit from which to read them one by one is not known yet."""
        return self._entry is not None

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether a snapshot is not complete, so that no batch may have its rows."""
        return (self._slots if self._entry is None else self._entry.slots).is_inside_snapshot

    @property
    def parts(self) -> list[Commit]:
        """The newest record of each slot whose records are not complete."""
        return self._slots.newest

    @property
    def shared(self) -> dict[str, tuple[str, ...]]:
        """By topic, the slots that write to it at the same time."""
        return self._slots.writers.shared

    @property
    def named(self) -> frozenset[str]:
        """The topics that the records name, also those that were deleted."""
        return frozenset(self.reached) | self._deleted.known

    def refresh(self, start: Offsets | None, *, each: bool = False) -> None:
        """Read the progress records committed since the last call. `start`: where the query is, None: a new one.

        Of a backlog it reads only as many as it may store (`READ_OFFSETS`), and more at the next call. `each`, and
        for a new query: no commits are combined, because a position may be behind each of them.
        """
        wanted = None if each else start
        if start is not None and self.is_behind:
            self.forget(start)
            self._leave_out_deleted(start)
            if _has_enough(start, self.pending):
                return
        self._take(self._commits(wanted), start)
        while wanted is not None and self.is_behind and not _has_enough(wanted, self.pending):
            self.forget(wanted)  # those before were of topics that were deleted
            self._take(self._commits(wanted), start)

    def _take(self, commits: list[Commit], start: Offsets | None) -> None:
        self.pending += commits
        for one in commits:
            add(self.reached, one)
        self._leave_out_deleted(start or {})

    def _commits(self, start: Offsets | None) -> list[Commit]:
        """Return the new commits."""
        if self._entry is None:
            commits = self._read([], start)
            self.is_opened = self.is_opened or self._reader.is_whole
            if self.is_opened or self._reader.is_empty:
                return commits
            self.is_opened = start is not None and self._has_read(start)
            self._rewind()
            if self.is_opened:
                return self._read([], start)
            self._entry = Entry()
        return self._entered(self._entry, start)

    def _entered(self, entry: Entry, start: Offsets | None) -> list[Commit]:
        """Return the first commit of a topic that has lost records, and those after it; none while it is unknown."""
        while True:
            known = frozenset(self._outside)
            # A table's last records may be older than the records left: listed before these are read.
            ends = by_topic(self._cluster.ends(self._places()))
            has_all = self._read_written(entry)
            if self._outside <= known:
                break
            self._rewind()
            self._entry = entry = Entry()
        self._refuse_undescribed()
        self._refuse_unlisted(entry.unnamed_of(ends))
        if has_all and entry.place(ends) is None:  # nothing completes the last transaction of a retired slot
            entry.slots.end_deleted(self._deleted.has_all)
        if not has_all or entry.place(ends) is None:
            return []  # the partitions' ends are inside a transaction or a snapshot
        self._rewind()
        first = entry.first(ends, complete_commits(map(self._seen, self._reader.read()), self._slots))
        self._entry = None
        if first is None:  # Kafka has removed it since
            self._rewind()
            return []
        self.is_opened = True
        return self._read([first], start)

    def _read_written(self, entry: Entry) -> bool:
        """Add the new records; return whether they have each transaction that had written when this was called.

        Kafka completes a transaction in one partition after another: its rows may be readable, so that a listed end
        is after them, while its progress record is not readable yet.
        """
        until_s = time.monotonic() + COMPLETE_WITHIN_S
        self._reader.note_written()
        while True:
            for one in self._reader.read():
                entry.add(self._seen(one))
            if self._reader.has_read_written:
                return True
            if time.monotonic() > until_s:
                log.warning(_INCOMPLETE, self._options.connection.prefix)
                return False
            time.sleep(LOOK_AGAIN_S)

    def _refuse_unlisted(self, topics: list[str]) -> None:
        """Raise SinkAuthorization for a topic that exists and may not be described: its rows would be left out."""
        hidden = sorted(set(topics) - self._cluster.missing(topics))
        if hidden:
            raise SinkAuthorization(_HIDDEN, hint=_HIDDEN_HINT, topic=hidden[0], topics=len(hidden))

    def _refuse_undescribed(self) -> None:
        """Raise SparkReadError if a slot has topics outside the prefix, and has not described them.

        All of its topics are described in one record, which compaction does not remove; an early version had none.
        """
        undescribed = self._naming - self._describing
        if undescribed and self._options.topics is None:
            raise SparkReadError(
                _UNDESCRIBED,
                hint=_UNDESCRIBED_HINT,
                slot=min(undescribed),
                topic=min(self._outside),
                prefix=self._options.connection.prefix,
            )

    def _has_read(self, start: Offsets) -> bool:
        """Return whether a query has read the first commit that is left of each slot.

        Then the query has the offset of each partition, so that the later records can be read one by one; except for
        a partition that the query did not read before, because it had fewer topics; and if topics are outside the
        prefix, of which one may have had its only records since then.
        """
        prefix = self._options.connection.prefix
        if any(is_outside(topic, prefix) for topic in of_topics(start)):
            return False
        if not self._are_named(self._unread(start)):
            return False
        self._rewind()
        read: set[str] = set()
        for commit in complete_commits(map(self._seen, self._reader.read(read)), self._slots):
            if commit.offsets:  # without any it would be covered by each start
                if not covers(start, commit):
                    return False
                read.add(commit.slot)
        return read >= self._reader.slots

    def _unread(self, start: Offsets) -> set[tuple[str, str]]:
        """Return the partitions that have records after `start`, by what Kafka has.

        The marker that ends a Kafka transaction has an offset of its own.
        """
        ends = by_topic(self._cluster.ends(self._places()))
        return {
            (topic, number)
            for topic, numbers in ends.items()
            for number, end in numbers.items()
            if end > (start[topic][number] + 1 if number in start.get(topic, {}) else 0)
        }

    def _are_named(self, unread: set[tuple[str, str]]) -> bool:
        """Return whether the records that are left name all of these partitions."""
        self._rewind()
        records = self._reader.read()
        while unread and (record := next(records, None)) is not None:
            unread -= pairs_of(record.offsets)
        return not unread

    def _places(self) -> list[tuple[str, int]]:
        options = self._options
        return partitions_of(self._cluster, options.connection.prefix, options.topics, self._outside)

    def _rewind(self) -> None:
        self._reader.rewind()
        self._slots = Slots()
        self._looked_at = frozenset()

    def _seen(self, commit: Commit) -> Commit:
        asked = self._options
        self._note_outside(commit)
        return commit_of_query(commit, asked.topics, loading=asked.loading, copies=asked.refuses_copies)

    def _note_outside(self, commit: Commit) -> None:
        prefix = self._options.connection.prefix
        outside = [topic for topic in commit.offsets.keys() | commit.described if is_outside(topic, prefix)]
        self._outside.update(outside)
        if outside:
            self._naming.add(commit.slot)
        if commit.described:
            self._describing.add(commit.slot)

    def _read(self, commits: list[Commit], start: Offsets | None) -> list[Commit]:
        """Return these commits and the new ones; those at which no batch can end are combined: there may be millions.

        `start` None: they are not combined, but only the newest have first offsets, which a query that starts at a
        position before them needs only if retention removes this position meanwhile. The read stops when the reader
        finds that records are missing and the first commit is not known yet.
        """
        asked, room = self._options, READ_OFFSETS
        self.is_behind = False
        for one in self._reader.read():
            commits = self._without_changed(commits)
            if not self.is_opened and not self._reader.is_whole:
                break
            commit = self._slots.add(self._seen(one))
            if commit is None:
                continue
            commits.append(commit)
            room -= commit.size
            if room > 0:
                continue
            room = READ_OFFSETS
            if start is None and not self._joins:
                commits = without_firsts(commits)
                continue
            commits = as_one(start, commits, rest=not asked.has_limits)
            if start is not None and asked.has_limits and _has_enough(start, commits):
                self.is_behind = True
                break
        return self._without_changed(commits)

    def _without_changed(self, commits: list[Commit]) -> list[Commit]:
        """Return these commits without topics that were created again meanwhile; remove these from all others."""
        if not self._reader.changed:
            return commits
        gone = frozenset(self._reader.changed)
        self._reader.changed.clear()
        self._deleted.known -= gone
        self._slots.remove(gone, are_former=True)
        self.pending = deque(without(one, gone) for one in self.pending)
        for topic in gone:
            self.reached.pop(topic, None)
            self.passed.pop(topic, None)
        return [without(one, gone) for one in commits]

    def _leave_out_deleted(self, start: Offsets) -> None:
        """Remove the topics that were deleted, unless the query has read records of them."""
        gone = self._deleted.among([topic for topic in self.reached if not has_records(start, topic)])
        if gone:
            self._slots.remove(gone, are_former=False)
            self.pending = deque(without_offsets(one, gone) for one in self.pending)
            self.reached = {topic: found for topic, found in self.reached.items() if topic not in gone}
            self.passed = {topic: found for topic, found in self.passed.items() if topic not in gone}
        self._end_retired()

    def _end_retired(self) -> None:
        """End the slots whose topics were all deleted: nothing would ever move their positions, or load their tables.

        Also if the query has read the topics: a query that starts again must not take up the former position. With
        one slot nothing is asked; with the same ones as before, now and then: a retired one has no hurry.
        """
        now_s, slots = time.monotonic(), self._slots.together
        if not slots or (slots == self._looked_at and now_s < self._look_again_s):
            return
        for slot, topics in self._slots.end_deleted(self._deleted.has_all).items():
            self.pending = deque(without_slot(one, slot, topics) for one in self.pending)
        self._looked_at, self._look_again_s = self._slots.together, now_s + RETIRED_EVERY_S

    def forget(self, start: Offsets) -> None:
        """Remove commits up to `start`, and none after it: Spark may ask again from the same start.

        The last of them remains, because it has the tables that are loading now.
        """
        while len(self.pending) > 1 and all(covers(start, self.pending[place]) for place in (0, 1)):
            passed = self.pending.popleft()
            add(self.passed, passed)
            self._passed_by |= dict.fromkeys(pairs_of(passed.offsets), passed.slot)

    def has_all_since(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether the pending commits have each one that names a partition after this offset.

        Then a commit ends at the offset that was read in this process: records before those that are left, which
        compaction has removed, may name the partition, too. The commit at this offset and those after it are of one
        slot: compaction leaves all records of a slot after one that it has left, but also the last one of a slot that
        another one has replaced.
        """
        if offset == 0:
            return self.is_whole
        number = str(partition)
        found = self.passed.get(topic, {}).get(number) == offset
        slots = {self._passed_by[topic, number]} if found else set()
        for one in self.pending:
            reached = one.offsets.get(topic, {}).get(number, -1)
            if reached >= offset:
                found |= reached == offset
                slots.add(one.slot)
        return found and SEVERAL not in slots and len(slots - {OWN}) <= 1

    def close(self) -> None:
        """Close the connections to Kafka."""
        self._reader.close()


def _has_enough(start: Offsets, commits: Sequence[Commit]) -> bool:
    """Return whether there is a next batch, with many commits after it."""
    return sum(one.size for one in commits) >= READ_OFFSETS // 2 and any(
        not covers(start, one) for one in commits
    )
