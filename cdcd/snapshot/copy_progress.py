"""The commit positions of a snapshot: what is copied, what is left, where the stream begins. Pure.

In: the tables to copy, the consistent point of their snapshot; each begun topic and each complete table.
Out: `CommitPosition`s for the records copied so far.
Invariant: a table is pending until all of its rows precede the position, also one that is to be continued while the
stream runs. A range of blocks is left until all of its rows do, and a range of keys until those of all ranges before
it do as well. A topic is listed as begun before its first row, so that an attempt that copies its table again empties
it first. If the snapshot is later than the stream's start, a table gets a floor with its first row or truncate event.
It retains the floor, even if its copy is abandoned: the rows in its topic are newer than the changes below it (F40).
A table whose copy is abandoned is partial from then on. A later attempt copies it if it is included again, as it does
with a table that the attempts before have excluded.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeGuard

from cdcd.ack.group import CommitPosition
from cdcd.lsn import Lsn
from cdcd.model import CopyState, TableCopyState
from cdcd.snapshot.units import Blocks, CopyUnit, KeyRange, join_ranges


class CopyProgress:
    """The positions of one attempt."""

    def __init__(
        self,
        *,
        point_lsn: Lsn,
        stream_lsn: Lsn,
        written_commit_lsn: Lsn,
        since_us: int,
        before_us: int,
        begun_topics: Iterable[str],
        before: CopyState | None = None,
        later: Iterable[int] = (),
        signals_at: int = -1,
    ) -> None:
        """`point_lsn`: the snapshot's consistent point. `stream_lsn`: the slot's, at which the stream begins.

        `written_commit_lsn`: the last commit LSN in the topics before the snapshot. `since_us`: from this time on,
        commits may not be durable until the copy is complete. `before_us`: a time before the slot was created: a
        change that the copy does not have commits later. `before`: the state that an interrupted attempt has left.
        `later`: tables of it that an incremental snapshot continues: the stream begins before they are complete.
        `signals_at`: the first signal that is executed when the stream begins, -1 if it is not known.
        """
        self._point_lsn = point_lsn
        self._stream_lsn = stream_lsn
        self._written_commit_lsn = written_commit_lsn
        self._since_us, self._before_us = since_us, before_us
        self._begun = dict.fromkeys(begun_topics)
        was = before or CopyState()
        self._pending: dict[int, None] = dict.fromkeys(was.pending)
        self._partial, self._excluded = was.incomplete.union(was.partial), frozenset(was.excluded)
        self._floors, self._tables = dict(was.floors), dict(was.tables)
        self._ranges: dict[int, list[Blocks | KeyRange]] = {}
        self._partitions: Mapping[int, tuple[str, ...]] = {}
        self._later: dict[int, TableCopyState] = {relid: self._tables[relid] for relid in later}
        self._signals_at = signals_at
        self._now: CommitPosition | None = None
        self.tx_seq = 0
        """The number of the last record."""

    def is_begun(self, topic: str) -> bool:
        """Return whether the topic may have copied rows."""
        return topic in self._begun

    def announce(self, _relid: int, topic: str) -> None:
        """Note that records of this snapshot follow in the topic: none precedes this position."""
        if topic not in self._begun:
            self._begun[topic] = None
            self._now = None

    def begin(self, relid: int, topic: str) -> None:
        """Note that the topic has the truncate event or rows of this snapshot, which precede the next position."""
        self.announce(relid, topic)
        self._note_floor(relid)

    def to_copy(self, relids: Iterable[int], excluded: Iterable[int] = ()) -> None:
        """Set the tables to copy completely; of the others, only those that are continued later remain pending.

        The copy of the others is abandoned, and they are only streamed: see `streamed_from`. Their topics lack rows.
        `excluded`: of a first attempt, the published tables that it does not copy.
        """
        left, self._now = dict.fromkeys(relids), None
        self._pending = left | dict.fromkeys(self._later)
        self._partial = self._partial.difference(self._pending)
        self._excluded = self._excluded.union(excluded).difference(self._pending)
        self._tables = dict(self._later)

    def plan(self, units: Iterable[CopyUnit], partitions: Mapping[int, tuple[str, ...]]) -> None:
        """Note the units of the tables that can be continued where they are interrupted: large ones."""
        self._partitions = partitions
        for relid, of_table in groupby(units, lambda unit: unit.table.relid):
            found = list(of_table)
            ranges = [unit.range for unit in found if _is_place(unit.range)]
            if len(found) == len(ranges) > 1 and found[0].table.can_continue:
                self._ranges[relid] = ranges

    def complete_units(self, units: Iterable[CopyUnit], topic: str) -> None:
        """Note that all rows of these units of a table precede the next position."""
        for unit in units:
            relid, left = unit.table.relid, self._ranges.get(unit.table.relid)
            if left is None or unit.range not in left or len(left) == 1:
                continue
            left.remove(unit.range)
            state = _state_before(left)
            if state is None:
                continue
            partitions = self._partitions.get(relid, ())
            self._tables[relid] = replace(
                state,
                topic=topic,
                where=unit.table.where,
                columns=unit.table.wanted,
                row_filter=unit.table.filter_digest,
                partitions=partitions,
            )
            self._note_floor(relid)
            self._now = None

    def complete(self, relid: int) -> None:
        """Note that all rows of a table precede the next position."""
        self._pending.pop(relid, None)
        self._tables.pop(relid, None)
        self._note_floor(relid)
        self._now = None

    def _note_floor(self, relid: int) -> None:
        if self._point_lsn > self._stream_lsn and self._floors.get(relid) != self._point_lsn:
            self._floors[relid] = self._point_lsn
            self._now = None

    def streamed_from(self, relid: int) -> Lsn:
        """Return the LSN from which on a table's changes are written."""
        return self._floors.get(relid, self._stream_lsn)

    def so_far(self) -> CommitPosition:
        """Return the position after the rows added so far."""
        if self._now is None:
            self._now = CommitPosition(
                commit_lsn=self._written_commit_lsn,
                end_lsn=self._stream_lsn,
                commit_us=self._since_us,
                transactions=0,
                phase="snapshot",
                snapshot_tables=tuple(self._begun),
                copy=self._state(self._pending, self._tables),
            )
        assert self._now.copy is not None
        return replace(self._now, copy=replace(self._now.copy, tx_seq=self.tx_seq))

    def done(self) -> CommitPosition:
        """Return the position at which the stream begins."""
        return replace(
            self.so_far(),
            commit_lsn=self._stream_lsn - 1,
            commit_us=self._before_us,
            phase="streaming",
            snapshot_tables=(),
            copy=replace(self._state((), self._later), excluded=()).left_at(self._stream_lsn),
        )

    def _state(self, pending: Iterable[int], tables: Mapping[int, TableCopyState]) -> CopyState:
        return CopyState(
            tuple(pending),
            dict(self._floors),
            self._point_lsn,
            self.tx_seq,
            dict(tables),
            self._signals_at,
            partial=tuple(sorted(self._partial)),
            excluded=tuple(sorted(self._excluded)),
        )


def _is_place(one: Blocks | KeyRange | None) -> TypeGuard[Blocks | KeyRange]:
    """Return whether an incremental snapshot can begin at the range."""
    return bool(one.node if isinstance(one, Blocks) else one and one.order)


def _state_before(left: Sequence[Blocks | KeyRange]) -> TableCopyState | None:
    """Return the state of a copy that has these ranges left, None if it has to read all rows."""
    blocks = [one for one in left if isinstance(one, Blocks)]
    if blocks:
        return TableCopyState(after=tuple(one.text for one in join_ranges(blocks)), is_by_blocks=True)
    first = left[0]
    assert isinstance(first, KeyRange)
    return None if first.after is None else TableCopyState(after=(first.after,), key=first.order)
