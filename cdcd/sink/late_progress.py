"""A progress record that arrived late and has overtaken later ones: the request of a session that has ended (F77).

In: the slot's last progress record; those before it, in the order of the log; the slot's confirmed LSN.
Out: the record that is the position instead, or None.
Invariant: the slot proves it. cdcd confirms an LSN only after Kafka has reported the progress record that ends there
(F3). So if the slot is confirmed up to the end of an earlier record of the same source and slot, Kafka has all of the
changes before it, and the last record, which ends below, is late. A record of another source or slot, a gap, or a
tombstone in between may have moved the position back on purpose: only the records after it count.
Only a record that was written without transactions can be late: otherwise its producer is fenced.
Must not: do I/O.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from cdcd.lsn import Lsn
from cdcd.model import Progress

__all__ = ["Overtaken", "may_be_late"]

T = TypeVar("T")


def may_be_late(last: Progress | None, confirmed_lsn: Lsn) -> bool:
    """Return whether the slot's last progress record may be late: the slot is ahead of it."""
    return last is not None and not last.transactional_id and last.end_lsn < confirmed_lsn


class Overtaken(Generic[T]):
    """The record that a late one has overtaken: `found`, as it was passed to `take`; None without proof."""

    def __init__(self, late: Progress, confirmed_lsn: Lsn) -> None:
        self._late = late
        self._confirmed_lsn = confirmed_lsn
        self._end_lsn = confirmed_lsn
        self.found: T | None = None

    def take(self, progress: Progress | None, record: T) -> None:
        """Consider the slot's next record before the late one; `progress` None: a tombstone, or not readable."""
        late = self._late
        if progress is None or (progress.identity, progress.gap) != (late.identity, late.gap):
            self.found = None
        elif progress.phase != "streaming":
            return
        elif progress.end_lsn == self._confirmed_lsn and self.found is None:
            self.found, self._end_lsn = record, progress.end_lsn
        elif self.found is not None and progress.end_lsn >= self._end_lsn:
            self.found, self._end_lsn = record, progress.end_lsn  # durable, and not confirmed yet
