"""The tables that a mirror reads from an earlier commit than its others, because it had fewer topics before.

In: the version to continue from; the commits that are read.  Out: the late tables at the end of a batch.
Invariant: while a table is late, it is loading, and the mirror's position remains that of the version: the others are
as of this position. A version without late tables is as of one commit, and so are those that follow it.
Must not: do I/O.
"""

from __future__ import annotations

from typing import Protocol

from cdcd.spark.mirroring.batches import is_table
from cdcd.spark.source.cuts import Offsets, of_topics
from cdcd.spark.source.late_topics import Late
from cdcd.spark.source.source_position import SourcePosition, has_reached
from cdcd.spark.target.versions import TargetVersion

__all__ = ["LateTables", "Read"]


class Read(Protocol):
    """The commits that are read."""

    def late(self, end: Offsets) -> Late:
        """Return which topics are behind the others at these offsets."""

    def position(self, end: Offsets) -> SourcePosition:
        """Return the position of these offsets in the source."""


class LateTables:
    """Finds the late topics until there is none. `topics`: those at the last end."""

    def __init__(self, start: TargetVersion, asked: frozenset[str] | None) -> None:
        """`asked`: the topics that the mirror reads, None: all."""
        loading = frozenset(start.loading)
        self._before = SourcePosition(start.end_lsn, 0, start.positions)
        self._whole = start.tables.keys() - loading
        self._loading = loading if asked is None else loading & asked
        self._prefix = start.prefix
        self._has_read = of_topics(start.offsets).keys()
        self._may_be_late = True
        self.topics: frozenset[str] = frozenset()

    @property
    def tables(self) -> frozenset[str]:
        """The topics of the late tables."""
        return frozenset(one for one in self.topics if is_table(one, self._prefix))

    def note(self, read: Read, start: Offsets, end: Offsets) -> None:
        """Take the next batch.

        Its start comes first: without late tables its position is that of the version, while later ones may be lower,
        as in a new snapshot.
        """
        for offsets in (start, end):
            if self._may_be_late and (found := self._late_at(read, offsets)) is not None:
                self.topics, self._may_be_late = found, bool(found)

    def _late_at(self, read: Read, offsets: Offsets) -> frozenset[str] | None:
        """Return the late topics at these offsets, None if they are not known yet."""
        late, position = read.late(offsets), read.position(offsets)
        if not late.is_known:
            return None
        if late.is_last:
            return frozenset()
        if late.topics:
            return late.topics | self._added(late)
        if not position.slots:
            return None
        return frozenset() if has_reached(position, self._before) else self._added(late)

    def _added(self, late: Late) -> frozenset[str]:
        """Return the topics that may be behind: those of which the version has not all rows, or has read none.

        It has offsets of a dropped table whose topic it has not read since.
        """
        lacking = (late.named | self._loading) - self._whole
        return frozenset(one for one in lacking if one not in self._has_read or is_table(one, self._prefix))
