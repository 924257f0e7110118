"""How far one session has come: what is complete, what may be confirmed, and where a replay ends.

In: commits, messages and keepalives in the order of the wire.  Out: `CommitPosition`s.
Invariant: the position that may be confirmed never goes back, and never passes the oldest PREPARE that is undecided
(F33), while the commit LSN that tells a replay apart goes on (F4).
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from cdcd.ack.group import CommitPosition
from cdcd.lsn import Lsn
from cdcd.model import PartPosition, PreparedBefore

__all__ = ["PositionTracker"]


class PositionTracker:
    """One for each session. It begins at what is durable already."""

    __slots__ = ("_commit_us", "_confirmable_lsn", "commit_lsn", "end_lsn")

    def __init__(self, start_lsn: Lsn, written_commit_lsn: Lsn = 0, written_commit_us: int = 0) -> None:
        self.commit_lsn = written_commit_lsn
        """Of the last transaction, or message outside of one, that was handed on."""
        self.end_lsn = start_lsn
        """Up to here everything that is committed was received."""
        self._commit_us = written_commit_us
        self._confirmable_lsn = start_lsn

    def covers(self, commit_lsn: Lsn) -> bool:
        """Return whether what commits there was handed on before, by this session or by one before it (F4)."""
        return commit_lsn <= self.commit_lsn

    def committed(self, commit_lsn: Lsn, end_lsn: Lsn, commit_us: int) -> None:
        """A transaction was received completely, or the last one of many."""
        self.commit_lsn, self.end_lsn, self._commit_us = commit_lsn, end_lsn, commit_us

    def message(self, lsn: Lsn) -> None:
        """A message outside any transaction is its own commit position, which orders it and tells a replay apart.

        F1: its LSN is its end LSN, and the next commit record may begin there. With one byte less the message counts
        as written, and that commit does not.
        """
        self.commit_lsn = lsn - 1
        self.end_lsn = max(self.end_lsn, lsn)

    def idle(self, wal_end_lsn: Lsn) -> None:
        """No transaction is open, and nothing that is committed below this is still to come (F6, F11).

        A session decodes from the slot's restart LSN on, so its first keepalives lie behind the start.
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
        """Return the position after what was received. `prepared_lsn`: where the oldest undecided PREPARE begins."""
        end_lsn = self.end_lsn if prepared_lsn is None else min(self.end_lsn, prepared_lsn)
        # Never back: only what was prepared before two_phase was switched on lies behind, and that is sent whole
        # at its COMMIT PREPARED, whatever was confirmed (F34).
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
