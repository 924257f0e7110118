"""Drop changes of the stream that are contained in the copied rows of their table. Pure.

In: the floors of tables that were copied at a later point than the stream's start; batches with their commit LSN.
Out: what of a batch is to be written.
Invariant: a change is dropped exactly if its commit LSN is below the floor of its table: the copy's snapshot sees it
(the consistent point of a slot divides all transactions by their commit records). On every replay the same changes
are dropped, because the progress record has the floors until the stream has passed them.
Must not: read a row's values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import CopyState, RowBatch
from cdcd.txn.frames import first_relid, single_rows


class Floors:
    """The floors of one session."""

    def __init__(self, copy: CopyState | None = None) -> None:
        self._floors = {} if copy is None else copy.floors
        self._highest_lsn = max(self._floors.values(), default=INVALID_LSN)

    def concern(self, commit_lsn: Lsn) -> bool:
        """Return whether changes of a transaction with this commit LSN, or of a later one, may have to be dropped."""
        return commit_lsn < self._highest_lsn

    def dropped(self, relids: Collection[int], commit_lsn: Lsn) -> set[int]:
        """Return those of the relations whose changes with this commit LSN are dropped."""
        if commit_lsn >= self._highest_lsn:
            return set()
        return {relid for relid in relids if commit_lsn < self._floors.get(relid, INVALID_LSN)}


def without(batch: RowBatch, relids: Collection[int]) -> RowBatch | None:
    """Return the batch without the rows of these relations, None if nothing is left. Raises MessageTruncated."""
    rest = [row.frames for row in single_rows(batch) if first_relid(row) not in relids]
    return replace(batch, frames=b"".join(rest), count=len(rest)) if rest else None
