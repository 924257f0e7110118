"""The progress of one session's stream: what is written already, what is complete, what copies contain.

In: the progress record with which the session began; notes of what the stream has passed.
Out: the commit positions after what was received.
Invariant: a commit position has everything that the next session needs: the confirmable LSN, which never passes the
oldest undecided PREPARE (F33), the commit LSN, a part that waits for its rest, and the state of the copies.
Must not: do I/O.
"""

from __future__ import annotations

from dataclasses import replace

from cdcd.ack.group import CommitPosition
from cdcd.ack.position_tracker import PositionTracker
from cdcd.lsn import Lsn
from cdcd.model import PartPosition
from cdcd.pipeline.floors import Floors
from cdcd.pipeline.partial_transaction import PartialTransaction
from cdcd.pipeline.table_copies import TableCopies
from cdcd.txn.assembler import Assembler

__all__ = ["StreamProgress"]


class StreamProgress:
    """`floors`, `copies`: those of the progress record, none by default. `part`: the part that waits for its rest."""

    def __init__(
        self,
        assembler: Assembler,
        position: PositionTracker,
        *,
        part: PartPosition | None = None,
        floors: Floors | None = None,
        copies: TableCopies | None = None,
    ) -> None:
        self._assembler = assembler
        self.position = position
        self.partial = PartialTransaction(part)
        self.floors = floors or Floors()
        self.copies = copies or TableCopies()

    @property
    def commit_lsn(self) -> Lsn:
        """The commit LSN of the last transaction that was passed on."""
        return self.position.commit_lsn

    @property
    def covered_lsn(self) -> Lsn:
        """The LSN up to which everything committed was received, also above an undecided PREPARE (F33)."""
        return self.position.end_lsn

    def idle(self, wal_end_lsn: Lsn) -> CommitPosition:
        """Note a keepalive outside a transaction; return the position. Raises PartialTransactionMissing."""
        self.position.idle(wal_end_lsn)
        self.partial.passed(self.position.end_lsn)
        return self.commit_position()

    def commit_position(self, *, transactions: int = 0) -> CommitPosition:
        """Return the position after everything received, if no transaction is open."""
        return self.with_copies(self.without_copies(transactions))

    def with_copies(self, position: CommitPosition) -> CommitPosition:
        """Return a position with the present state of the copies."""
        copy, noted = self.copies.state_at(position.end_lsn), self.copies.incomplete.noted
        return position if copy is None and not noted else replace(position, copy=copy, copies_noted=noted)

    def without_copies(self, transactions: int = 0) -> CommitPosition:
        """Return the position after everything received, without the state of the copies."""
        oldest = self._assembler.oldest_prepared
        return self.position.position(
            transactions=transactions,
            prepared_lsn=None if oldest is None else oldest.oldest_lsn,
            prepared_before=self._assembler.prepared_before,
            part=self.partial.pending,
        )
