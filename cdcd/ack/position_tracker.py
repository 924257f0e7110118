"""Track the positions of one session: the complete, the confirmable, and the end of a replay.

In: commits, messages and keepalives in the order of the wire.  Out: `CommitPosition`s.
Invariant: the confirmable position never goes back and never passes the oldest undecided PREPARE (F33), while the
commit LSN by which replayed transactions are recognized advances (F4).
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from cdcd.ack.group import CommitPosition
from cdcd.lsn import Lsn
from cdcd.model import PartPosition, PreparedBefore

__all__ = ["PositionTracker"]


class PositionTracker:
    """The positions of one session, which begin at the durable position."""

    __slots__ = ("_commit_us", "_confirmable_lsn", "commit_lsn", "end_lsn")

    def __init__(self, start_lsn: Lsn, written_commit_lsn: Lsn = 0, written_commit_us: int = 0) -> None:
        self.commit_lsn = written_commit_lsn
        """The commit LSN of the last transaction, or message outside a transaction, that was passed on."""
        self.end_lsn = start_lsn
        """The LSN up to which all committed data was received."""
        self._commit_us = written_commit_us
        self._confirmable_lsn = start_lsn

    def covers(self, commit_lsn: Lsn) -> bool:
        """Return whether this or an earlier session already passed on the transaction with this commit LSN (F4)."""
        return commit_lsn <= self.commit_lsn

    def committed(self, commit_lsn: Lsn, end_lsn: Lsn, commit_us: int) -> None:
        """Note that a transaction, or a batch of transactions that ends with it, was received completely."""
        self.commit_lsn, self.end_lsn, self._commit_us = commit_lsn, end_lsn, commit_us

    def message(self, lsn: Lsn) -> None:
        """Note a message outside a transaction, whose LSN is its commit position: a replay is recognized by it.

        F1: the message's LSN is its end LSN, and the next commit record may begin at that LSN. With one byte less the
        message counts as written, and the next commit does not.
        """
        self.commit_lsn = lsn - 1
        self.end_lsn = max(self.end_lsn, lsn)

    def idle(self, wal_end_lsn: Lsn) -> None:
        """Note a keepalive while no transaction is open: all data committed below its WAL end was received (F6, F11).

        A session decodes from the slot's restart LSN, so its first keepalives have lower LSNs than the start.
        """
        self.end_lsn = max(self.end_lsn, wal_end_lsn)

    def position(
        self,
        *,
        transactions: int,
        prepared_lsn: Lsn | None,
        prepared_before: PreparedBefore,
        part: PartPosition | None,
    ) -> CommitPosition:
        """Return the position after all received data. `prepared_lsn`: the start of the oldest undecided PREPARE."""
        end_lsn = self.end_lsn if prepared_lsn is None else min(self.end_lsn, prepared_lsn)
        # Never back: only a PREPARE from before two_phase was enabled may be lower, and the server sends its
        # transaction completely at COMMIT PREPARED, even if its PREPARE was confirmed (F34).
        self._confirmable_lsn = max(self._confirmable_lsn, end_lsn)
        return CommitPosition(
            self.commit_lsn,
            self._confirmable_lsn,
            self._commit_us,
            transactions,
            covered_lsn=self.end_lsn,
            prepared_before=prepared_before.left_at(self._confirmable_lsn),
            part=part,
        )
