"""The commit positions of a snapshot: what is copied, what is left, where the stream begins. Pure.

In: the tables to copy, the consistent point of their snapshot; each begun topic and each complete table.
Out: `CommitPosition`s for the records copied so far.
Invariant: a table is pending until all of its rows precede the position. A topic is listed as begun before its first
row, so that an attempt that copies its table again empties it first. If the snapshot is later than the stream's
start, a complete table gets a floor.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdcd.ack.group import CommitPosition
from cdcd.lsn import Lsn
from cdcd.model import CopyState


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
    ) -> None:
        """`point_lsn`: the snapshot's consistent point. `stream_lsn`: the slot's, at which the stream begins.

        `written_commit_lsn`: the last commit LSN in the topics before the snapshot. `since_us`: from this time on,
        commits may not be durable until the copy is complete. `before_us`: a time before the slot was created: a
        change that the copy does not have commits later. `before`: the state that an interrupted attempt has left.
        """
        self._point_lsn = point_lsn
        self._stream_lsn = stream_lsn
        self._written_commit_lsn = written_commit_lsn
        self._since_us, self._before_us = since_us, before_us
        self._begun = dict.fromkeys(begun_topics)
        self._pending: dict[int, None] = dict.fromkeys(() if before is None else before.pending)
        self._floors = {} if before is None else dict(before.floors)
        self._now: CommitPosition | None = None

    def is_begun(self, topic: str) -> bool:
        """Return whether the topic may have copied rows."""
        return topic in self._begun

    def begin(self, topic: str) -> None:
        """Note that the topic may have copied rows from now on."""
        if topic not in self._begun:
            self._begun[topic] = None
            self._now = None

    def to_copy(self, relids: Iterable[int]) -> None:
        """Set the tables to copy; those that are not published any more are not pending."""
        self._pending, self._now = dict.fromkeys(relids), None

    def complete(self, relid: int) -> None:
        """Note that all rows of a table precede the next position."""
        self._pending.pop(relid, None)
        if self._point_lsn > self._stream_lsn:
            self._floors[relid] = self._point_lsn
        self._now = None

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
                copy=CopyState(tuple(self._pending), dict(self._floors), self._point_lsn),
            )
        return self._now

    def done(self) -> CommitPosition:
        """Return the position at which the stream begins."""
        return replace(
            self.so_far(),
            commit_lsn=self._stream_lsn - 1,
            commit_us=self._before_us,
            phase="streaming",
            snapshot_tables=(),
            copy=CopyState((), dict(self._floors), self._point_lsn).left_at(self._stream_lsn),
        )
